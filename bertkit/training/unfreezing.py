"""Learning rates by depth, and which depths are trained from which step on.

Weights are frozen by `requires_grad` alone. The groups of the optimizer hold all weights that will ever be trained, so
a checkpoint from before a weight was unfrozen fits the optimizer after it. AdamW skips a weight without a gradient, and
counts its steps from the first one that it has.
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

_COUNT = "trainable_parameters"  # in metrics.jsonl


class Stage(NamedTuple):
    """The lowest depth that is trained from a step on."""

    step: int
    lowest: int


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
        trained = {weights: depth for weights, depth in depths.by_weight.items() if weights.requires_grad}
        self.depths = Depths(depths.layers, trained)
        self.held_back: list[nn.Parameter] = []
        # With LoRA, only the adapters of a layer are trained.
        self.trained = "adapters in " if training.lora else ""
        # Each trained depth has its peak learning rate (Howard and Ruder 2018, section 3.2).
        decay = training.layerwise_lr_decay or 1.0
        self.rates = {
            depth: training.learning_rate * decay ** max(0, depths.layers - depth) for depth in trained.values()
        }
        if self.depths.head in self.rates and training.head_learning_rate is not None:
            self.rates[self.depths.head] = training.head_learning_rate
        encoder = set(model.base_model.parameters())
        # Weights outside the encoder are the head, which can be trained first.
        has_head = any(weights.requires_grad and weights not in encoder for weights in model.parameters())
        self.stages = _stages(self.depths, training, rows, has_head=has_head)
        steps = training.total_steps(rows)
        # A run that ends before its last stage never trains all layers.
        if self.stages and self.stages[-1].step >= steps:
            reached = sum(stage.step < steps for stage in self.stages)
            log.warning(
                f"training.gradual_unfreezing: the run ends at step {steps}, in stage {reached} of "
                f"{len(self.stages)}; all would be trained from step {self.stages[-1].step} on"
            )

    def split_groups(self, optimizer: torch.optim.Optimizer) -> None:
        """Split an optimizer's groups by learning rate; the rate of the first group, the top layer's, is logged.

        An optimizer whose weights all have one rate is not changed.
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

        Several processes wait for each other's gradients of the same weights. So they compute the gradients of frozen
        weights as well, and `drop_gradients` drops them.
        """
        lowest = self.lowest(step)
        frozen = self.depths.select(0, lowest - 1)
        shares = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.held_back = frozen if shares else []
        for weights, depth in self.depths.by_weight.items():
            weights.requires_grad_(shares or depth >= lowest)
        return sum(weights.numel() for weights in self.depths.select(lowest))

    def drop_gradients(self) -> None:
        """Drop the gradients that were computed only because other processes wait for them."""
        for weights in self.held_back:
            weights.grad = None

    def lowest(self, step: int) -> int:
        """Return the lowest depth that is trained at a step."""
        return next((stage.lowest for stage in reversed(self.stages) if stage.step <= step), 0)

    def describe_rates(self) -> str:
        """Describe the learning rate of each depth, the highest first; empty if all rates are equal."""
        if len(set(self.rates.values())) < 2:
            return ""
        names = {depth: self.describe(depth, depth) for depth in sorted(self.rates, reverse=True)}
        return ", ".join(f"{names[depth]} {self.rates[depth]:.3g}" for depth in names)

    def describe(self, lowest: int, highest: int | None = None) -> str:
        """Name the weights from one depth to another, the head's by default: layers are counted from 0.

        >>> plan = LayerPlan.__new__(LayerPlan)
        >>> plan.depths = Depths(6, {})
        >>> plan.describe(7), plan.describe(5), plan.describe(0), plan.describe(2, 2)
        ('the head', 'layers 4 to 5 and the head', 'all layers, the embeddings and the head', 'layer 1')
        """
        layers = self.depths.layers
        highest = layers + 1 if highest is None else highest
        first, last = max(lowest, 1), min(highest, layers)
        names = []
        if first <= last:
            some_layers = f"layer {first - 1}" if first == last else f"layers {first - 1} to {last - 1}"
            names.append("all layers" if last - first == layers - 1 else some_layers)
        names += ["the embeddings"] * (lowest == 0) + ["the head"] * (highest > layers)
        return " and ".join([", ".join(names[:-1]), names[-1]]) if names[1:] else names[0]


class UnfreezingCallback(TrainerCallback):  # type: ignore[misc]
    """Callback that starts and logs each stage of a plan before its first step; `record` adds to the run's log."""

    def __init__(self, plan: LayerPlan, record: Callable[[dict[str, float]], None]) -> None:
        self.plan, self.record = plan, record

    def on_train_begin(self, args: object, state: TrainerState, control: object, **_: object) -> None:
        """Freeze the weights that are not trained at the first step of a new or resumed run."""
        if rates := self.plan.describe_rates():
            log.info(f"peak learning rates: {rates}")
        if self.plan.stages:
            count, lowest = self.plan.start(state.global_step), self.plan.lowest(state.global_step)
            log.info(f"training {self.plan.trained}{self.plan.describe(lowest)}: {count:,} parameters")
            if state.global_step == 0:
                self.record({_COUNT: count})

    def on_step_begin(self, args: object, state: TrainerState, control: object, **_: object) -> None:
        """Unfreeze the weights that are trained from the next step on."""
        for before, stage in pairwise(self.plan.stages):
            if stage.step == state.global_step:
                count, unfrozen = self.plan.start(stage.step), self.plan.describe(stage.lowest, before.lowest - 1)
                log.info(f"step {stage.step}: unfreezing {unfrozen}; {count:,} parameters are trained now")
                self.record({_COUNT: count})


def _stages(depths: Depths, training: TrainingConfig, rows: int, *, has_head: bool) -> list[Stage]:
    """Return the stages of a run, or an empty list if the same weights are trained in all steps."""
    period, head_only_epochs = training.gradual_unfreezing, training.head_only_epochs
    bottom = min(depths.by_weight.values())
    if period is None and head_only_epochs is None:
        return [Stage(0, bottom)] if bottom or training.lora else []
    if head_only_epochs is not None and not has_head:
        raise RecipeError("training.head_only_epochs: this model has no head with weights", "leave it out")
    epoch = training.steps_per_epoch(rows)
    every = epoch if period == "epoch" else period
    step = every if head_only_epochs is None else max(1, round(head_only_epochs * epoch))
    stages = [Stage(0, depths.head)] if has_head else []
    if every is None:
        return [*stages, Stage(int(step or 0), bottom)]
    start = int(step or 0) if has_head else 0
    lowest = range(depths.layers, bottom - 1, -1)
    return [*stages, *(Stage(start + index * every, depth) for index, depth in enumerate(lowest))]
