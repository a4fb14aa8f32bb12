"""Learning rates per depth, and the steps from which each depth is trained.

Weights are frozen only by `requires_grad`. The optimizer's groups hold all weights that are trained at some step, so a
checkpoint can be loaded after other weights were unfrozen. AdamW skips a weight without a gradient, and counts the
steps of a weight from its first gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel, TrainerCallback, TrainerState

from bertkit.errors import RecipeError
from bertkit.modeling.depths import Depths, find_depths
from bertkit.progress import log
from bertkit.recipe.sections import TrainingConfig

_COUNT_KEY = "trainable_parameters"  # in metrics.jsonl


class Stage(NamedTuple):
    """The lowest depth that is trained, from a step on."""

    step: int
    lowest_depth: int


class LayerPlan:
    """The rates and stages of one run, for a model that stays the same object until its end.

    Args:
        model: Model in training, with its replaced embeddings.
        training: Settings with rates or stages of layers.
        rows: Number of rows in an epoch.

    Raises:
        RecipeError: If the model has no head to train first.
    """

    def __init__(self, model: PreTrainedModel, training: TrainingConfig, rows: int) -> None:
        depths = find_depths(model)
        by_weight = {weights: depth for weights, depth in depths.by_weight.items() if weights.requires_grad}
        self.depths = Depths(depths.layers, by_weight)
        self.frozen_weights: list[nn.Parameter] = []
        # With LoRA, only the adapters of a layer are trained, which the log shows.
        self.trained_part = "adapters in " if training.lora else ""
        # Peak learning rate of each trained depth (Howard and Ruder 2018, section 3.2).
        decay = training.layerwise_lr_decay or 1.0
        self.rates = {
            depth: training.learning_rate * decay ** max(0, depths.layers - depth) for depth in by_weight.values()
        }
        if self.depths.head in self.rates and training.head_learning_rate is not None:
            self.rates[self.depths.head] = training.head_learning_rate
        encoder = set(model.base_model.parameters())
        # The weights outside the encoder form the head, which can be trained first.
        has_head = any(weights.requires_grad and weights not in encoder for weights in model.parameters())
        self.stages = _plan_stages(self.depths, training, rows, has_head=has_head)
        steps = training.total_steps(rows)
        # Warn if the run ends before its last stage, because some layers would never be trained.
        if self.stages and self.stages[-1].step >= steps:
            last_stage = sum(stage.step < steps for stage in self.stages)
            log.warning(
                f"training.gradual_unfreezing: the run ends at step {steps}, in stage {last_stage} of "
                f"{len(self.stages)}; all layers would be trained from step {self.stages[-1].step} on"
            )

    def split_groups(self, optimizer: torch.optim.Optimizer) -> None:
        """Split an optimizer's groups by learning rate. The first group is the top layer, whose rate the Trainer logs.

        The optimizer is not changed if all rates are equal.
        """
        if len(set(self.rates.values())) < 2:
            return
        top = max(depth for depth in self.rates if depth <= self.depths.layers)
        order = [top, *(depth for depth in sorted(self.rates, reverse=True) if depth != top)]
        groups = list(optimizer.param_groups)
        optimizer.param_groups.clear()
        for depth in order:
            for group in groups:
                if params := [weights for weights in group["params"] if self.depths.by_weight[weights] == depth]:
                    optimizer.add_param_group({**group, "params": params, "lr": self.rates[depth]})

    def start(self, step: int) -> int:
        """Freeze the weights that are not trained at a step, and return the number of parameters that are trained.

        Several processes wait for each other's gradients of all weights. So they also compute the gradients of frozen
        weights, and `drop_gradients` drops them.
        """
        lowest = self.get_lowest_depth(step)
        frozen = self.depths.select(0, lowest - 1)
        shares_gradients = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.frozen_weights = frozen if shares_gradients else []
        for weights, depth in self.depths.by_weight.items():
            weights.requires_grad_(shares_gradients or depth >= lowest)
        return sum(weights.numel() for weights in self.depths.select(lowest))

    def drop_gradients(self) -> None:
        """Drop the gradients that were computed only because other processes wait for them."""
        for weights in self.frozen_weights:
            weights.grad = None

    def get_lowest_depth(self, step: int) -> int:
        """Return the lowest depth that is trained at a step, or 0 without stages."""
        return next((stage.lowest_depth for stage in reversed(self.stages) if stage.step <= step), 0)

    def describe_rates(self) -> str:
        """Return a line with the learning rate of each depth, from the head down; empty if all rates are equal."""
        if len(set(self.rates.values())) < 2:
            return ""
        depths = sorted(self.rates, reverse=True)
        return ", ".join(f"{self.name_layers(depth, depth)} {self.rates[depth]:.3g}" for depth in depths)

    def name_layers(self, lowest: int, highest: int | None = None) -> str:
        """Return a name for the weights between two depths; by default, up to the head. Layers count from 0.

        >>> plan = LayerPlan.__new__(LayerPlan)
        >>> plan.depths = Depths(6, {})
        >>> plan.name_layers(7), plan.name_layers(5), plan.name_layers(0), plan.name_layers(2, 2)
        ('the head', 'layers 4 to 5 and the head', 'all layers, the embeddings and the head', 'layer 1')
        """
        layers = self.depths.layers
        highest = layers + 1 if highest is None else highest
        start, end = max(lowest, 1) - 1, min(highest, layers) - 1
        names = []
        if start <= end:
            some_layers = f"layer {start}" if start == end else f"layers {start} to {end}"
            names.append("all layers" if end - start == layers - 1 else some_layers)
        names += ["the embeddings"] * (lowest == 0) + ["the head"] * (highest > layers)
        return " and ".join([", ".join(names[:-1]), names[-1]]) if names[1:] else names[0]


class UnfreezingCallback(TrainerCallback):  # type: ignore[misc]
    """Callback that starts and logs each stage of a plan before its first step; `record` adds values to the log."""

    def __init__(self, plan: LayerPlan, record: Callable[[dict[str, float]], None]) -> None:
        self.plan, self.record = plan, record

    def on_train_begin(self, args: object, state: TrainerState, control: object, **_: object) -> None:
        """Freeze the weights that are not trained at the first step of a new or resumed run."""
        if rates := self.plan.describe_rates():
            log.info(f"peak learning rates: {rates}")
        if self.plan.stages:
            count = self.plan.start(state.global_step)
            layers = self.plan.name_layers(self.plan.get_lowest_depth(state.global_step))
            log.info(f"training {self.plan.trained_part}{layers}: {count:,} parameters")
            if state.global_step == 0:
                self.record({_COUNT_KEY: count})

    def on_step_begin(self, args: object, state: TrainerState, control: object, **_: object) -> None:
        """Unfreeze the weights that are trained from the next step on."""
        for earlier, stage in pairwise(self.plan.stages):
            if stage.step == state.global_step:
                count = self.plan.start(stage.step)
                unfrozen = self.plan.name_layers(stage.lowest_depth, earlier.lowest_depth - 1)
                log.info(f"step {stage.step}: unfreezing {unfrozen}; {count:,} parameters are trained now")
                self.record({_COUNT_KEY: count})


def _plan_stages(depths: Depths, training: TrainingConfig, rows: int, *, has_head: bool) -> list[Stage]:
    """Return the stages of a run, or an empty list if all weights are trained in all steps."""
    period, head_only_epochs = training.gradual_unfreezing, training.head_only_epochs
    lowest_depth = min(depths.by_weight.values())
    if period is None and head_only_epochs is None:
        return [Stage(0, lowest_depth)] if lowest_depth or training.lora else []
    if head_only_epochs is not None and not has_head:
        raise RecipeError("training.head_only_epochs: this model has no head with weights", "leave it out")
    epoch = training.steps_per_epoch(rows)
    period_steps = epoch if period == "epoch" else period
    step = period_steps if head_only_epochs is None else max(1, round(head_only_epochs * epoch))
    stages = [Stage(0, depths.head)] if has_head else []
    if period_steps is None:
        return [*stages, Stage(int(step or 0), lowest_depth)]
    start = int(step or 0) if has_head else 0
    depths_down = range(depths.layers, lowest_depth - 1, -1)
    return [*stages, *(Stage(start + index * period_steps, depth) for index, depth in enumerate(depths_down))]
