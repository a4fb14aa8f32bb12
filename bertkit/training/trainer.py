"""The Trainer of all runs: seeded batches, losses of several terms, micro-batches, and steps that are captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerFast, TrainerControl

from bertkit.hardware.cuda_graphs import StepGraphs
from bertkit.hardware.device import Device
from bertkit.hardware.tensors import to_device
from bertkit.metrics.basic import rank_step
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.embeddings import OccurringEmbeddings
from bertkit.modeling.info import Model, is_sharded
from bertkit.modeling.load import restore_weights, weights_to_save
from bertkit.modeling.sharding import scatter_like, whole_states
from bertkit.storage.checkpoints import checkpoint_folder
from bertkit.storage.files import disk_errors, null_for_nan
from bertkit.tokens.features import Collator, Tensors
from bertkit.training import micro_batches
from bertkit.training.batching import Batches
from bertkit.training.callbacks import checkpoint_bytes
from bertkit.training.losses import LoggedTerms, Terms, mean_over_processes
from bertkit.training.target_scale import scale_learning_rate
from bertkit.training.unfreezing import LayerPlan

_ITEMS = "num_items_in_batch"


def _no_metrics(model: Model, step: int) -> dict[str, float]:
    return {}


@dataclass(frozen=True)
class TrainingJob:
    """Model and data of a training, and how its checkpoints are scored. A job without metrics is only timed."""

    model: PreTrainedModel
    processing_class: PreTrainedTokenizerFast
    train_batches: Batches
    data_collator: Collator
    loss_terms: Terms
    compute_metrics: Callable[[Model, int], dict[str, float]] = _no_metrics
    """Scores the model of a step on the validation rows: metric -> value."""
    metric_for_best_model: str = "loss"
    """Metric that chooses the best checkpoint."""
    greater_is_better: bool = False


class BertkitTrainer(transformers.Trainer):  # type: ignore[misc]
    """A Trainer with seeded batches, our evaluation, and terms of a loss that are means over the whole step."""

    def __init__(
        self,
        *,
        job: TrainingJob,
        dropout: DropoutStream,
        embeddings: OccurringEmbeddings | None,
        padding: str | None,
        plan: LayerPlan | None,
        graphs: bool,
        **arguments: Any,
    ) -> None:
        super().__init__(model=job.model, processing_class=job.processing_class, **arguments)
        for unused in (transformers.PrinterCallback, transformers.ProgressCallback):
            self.remove_callback(unused)
        self.batches, self.collate, self.terms = job.train_batches, job.data_collator, job.loss_terms
        self.score_model, self.dropout, self.padding = job.compute_metrics, dropout, padding
        self.embeddings, self.plan, self.device = embeddings, plan, Device(self.args.device.type)
        # on XLA, Accelerate sets a variable in its place, which torch_xla has read before
        if self.args.bf16:
            self.accelerator.native_amp = True
        # Its weights are shares already, so that Accelerate must not wrap it.
        self.is_distributed_loading_by_transformers = is_sharded(job.model)
        self._defer_fsdp_gradient_reduction = nullcontext  # gradients of micro-batches that wait would be whole
        # items are counted over all micro-batches and processes of a step, and the loss below is divided by that count
        self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True
        self.finite = torch.tensor(True).to(self.args.device)
        self.logged_terms = LoggedTerms(list(self.terms.weights), self.args.device)
        self.micro_batch_tokens: int | None = None  # at most, padding included; None without a limit
        self.graphs = self._make_graphs() if graphs else None

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the loader of this process's share of the batches; those for a GPU are in pinned memory."""
        args, share = self.args, {"processes": self.args.world_size, "process": self.args.process_index}
        loader = self.batches.loader(self.collate, **share, padding=self.padding)
        loader.pin_memory = args.dataloader_pin_memory and Device(args.device.type).pins_memory
        return loader

    def _prepare_input(self, data: object) -> object:
        """Move a tensor of a batch to the device; from pinned memory, nothing waits for it."""
        return to_device(data, self.args.device) if isinstance(data, torch.Tensor) else super()._prepare_input(data)

    def floating_point_ops(self, inputs: Tensors) -> int:
        """Return 0: nothing reads the number, and to count weights takes as long as a tenth of a short step."""
        return 0

    def create_optimizer(self, model: Model | None = None) -> torch.optim.Optimizer:
        """Create the optimizer, and let the word embeddings that it does not train follow its weight decay."""
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if self.plan:
            self.plan.split_groups(optimizer)
        scale_learning_rate(optimizer, self.model)
        if self.embeddings:
            self.embeddings.follow(optimizer)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Create the schedule of the learning rate: by steps, or by the clock where the run has a budget of time."""
        if (budget := self.batches.budget) is None:
            return super().create_scheduler(num_training_steps, optimizer)
        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda step: budget.rate())
        return self.lr_scheduler

    def _get_num_items_in_batch(self, batch_samples: list[Tensors], device: torch.device) -> torch.Tensor:
        """Count the items of each term over all micro-batches and processes of a step: (terms,)."""
        counts = [self.terms.count(batch) for batch in batch_samples]
        items = [float(sum(count.get(name, 0) for count in counts)) for name in self.terms.weights]
        totals = torch.tensor(items).to(device, non_blocking=True)
        return self.accelerator.reduce(totals, "sum") if self.args.world_size > 1 else totals

    def training_step(self, model: nn.Module, inputs: Tensors, num_items_in_batch: torch.Tensor) -> torch.Tensor:
        """Add up the gradients of a batch, micro-batch by micro-batch."""
        self.dropout.move_to(self.state.global_step)
        # Processes exchange gradients once per batch, with its last micro-batch. A loss is a share of the step's mean,
        # so the micro-batches add up to that of the batch.
        rows = micro_batches.rows_at_once(inputs, self.micro_batch_tokens, self.model)
        if self.graphs or not self.device.shapes_may_change:
            rows = min(rows, self.device.whole_rows(self.args.per_device_train_batch_size))
        *others, last = micro_batches.split_batch(inputs, rows)
        losses = []
        for micro_batch in others:
            with self.accelerator.no_sync(model):
                losses.append(self._run_passes(model, micro_batch, num_items_in_batch))
            # one for any micro-batch of its shape, wherever in a step it comes
            self.device.end_graph()
        losses.append(self._run_passes(model, last, num_items_in_batch))
        self.device.end_graph()
        if self.plan:
            self.plan.drop_gradients()
        return torch.stack(losses).sum()

    def _run_passes(self, model: nn.Module, batch: Tensors, items: torch.Tensor) -> torch.Tensor:
        """Run a micro-batch forward and backward, and return its share of the loss."""
        if self.graphs is None:
            return super().training_step(model, batch, items)  # type: ignore[no-any-return]
        shares = self.graphs.run({**batch, _ITEMS: items}, self.args.device)
        return self._note(shares.unbind())

    def _make_graphs(self) -> StepGraphs:
        def compute(inputs: Tensors) -> torch.Tensor:
            batch = {name: values for name, values in inputs.items() if name != _ITEMS}
            self.model.train()
            with self.compute_loss_context_manager():
                shares = self._shares(self.model, batch, inputs[_ITEMS])
                loss = self._weigh(shares)
            self.accelerator.backward(loss)
            return torch.stack(shares).detach()

        without_trace = partial(micro_batches.without_trace, self.model)
        return StepGraphs(self.model.parameters(), compute, without_trace)

    def limit_micro_batches(self, kept: int | None) -> None:
        """Find by trial what fits into a GPU's memory, unless a checkpoint has kept what was found then."""
        if kept is None and micro_batches.has_own_memory(self.args.device):
            longest = self.collate(self.batches.longest())
            kept = micro_batches.tokens_that_fit(
                longest, lambda batch: micro_batches.try_step(self.model, self.optimizer, lambda: self._sum_of(batch))
            )
            self.dropout.step = -1  # the first step starts its numbers anew
            kept = micro_batches.least_of(kept, self.args)
        self.micro_batch_tokens = kept

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        """Clip the gradients, and return their norm; on a CPU, short ones are left as they are, not multiplied by 1."""
        if self.args.device.type != "cpu" or is_sharded(self.model):  # a GPU would wait for the norm
            return super()._clip_grad_norm(model)  # type: ignore[no-any-return]
        norm = get_total_norm([weights.grad for weights in model.parameters() if weights.grad is not None])
        if not norm + 1e-6 <= self.args.max_grad_norm:  # as torch reckons; also where the norm is no number
            clip_grads_with_norm_(model.parameters(), self.args.max_grad_norm, norm)
        return norm

    def _sum_of(self, batch: Tensors) -> torch.Tensor:
        """Compute the sum of all terms of a batch that is tried."""
        with self.compute_loss_context_manager():
            return torch.stack(list(self.terms.sums(self.model, self._prepare_inputs(batch)).values())).sum()

    def compute_loss(
        self, model: Model, inputs: Tensors, return_outputs: bool = False, *, num_items_in_batch: torch.Tensor
    ) -> torch.Tensor:
        """Compute this micro-batch's share of the weighted sum of the terms' means over all items of the step.

        A term's sum over the micro-batch is divided by its items in the whole step, (terms,). Summed over micro-batches
        and averaged over processes (as gradients are), the shares are those means, however the batch was split.
        """
        return self._note(self._shares(model, inputs, num_items_in_batch))

    def _shares(self, model: Model, inputs: Tensors, items: torch.Tensor) -> list[torch.Tensor]:
        sums = self.terms.sums(model, inputs)
        means = items.clamp(min=1) / self.args.world_size
        return [
            sums[name] / mean if name in sums else mean * 0
            for name, mean in zip(self.terms.weights, means, strict=True)
        ]

    def _weigh(self, shares: Sequence[torch.Tensor]) -> torch.Tensor:
        weighted = zip(self.terms.weights.values(), shares, strict=True)
        loss: torch.Tensor = sum(weight * share for weight, share in weighted)  # type: ignore[assignment]
        return loss

    def _note(self, shares: Sequence[torch.Tensor]) -> torch.Tensor:
        """Note the shares of a micro-batch for log lines, and whether they are finite; return their weighted sum."""
        self.logged_terms.add(shares)
        loss = self._weigh(shares)
        # no `if`: it would wait for the GPU in every micro-batch
        self.finite &= loss.detach().isfinite()
        return loss

    def loss_state(self) -> dict[str, Any]:
        """Return the losses summed since the last log line, for a checkpoint; all processes call it together."""
        return {
            "pending": float(mean_over_processes(self._tr_loss, self.accelerator)),
            "total": self._total_loss_scalar,
            "last_logged": self._globalstep_last_logged,
            "terms": self.logged_terms.state(self.accelerator),
        }

    def set_pending_loss(self, loss: float) -> None:
        """Set the loss since the last log line, moved from the CPU: made on the device, it is one more graph of XLA."""
        self._tr_loss = torch.tensor(loss).to(self.args.device)

    def load_loss_state(self, state: dict[str, Any]) -> None:
        """Go on from what `loss_state` returned."""
        self.set_pending_loss(state["pending"])
        self._total_loss_scalar = state["total"]
        self._globalstep_last_logged = int(state["last_logged"])
        self.logged_terms.load_state(state["terms"])

    def log(self, logs: dict[str, float], *arguments: object, **keywords: object) -> None:
        """Log the mean of each term beside that of the whole loss, where there are several."""
        if "loss" in logs:
            logs = {**logs, **self.logged_terms.take(self.state.global_step, self.accelerator)}
        super().log(logs, *arguments, **keywords)

    def _save_checkpoint(self, model: nn.Module, trial: object) -> None:
        """Save a checkpoint; where the disk refuses it, say why before its part is deleted."""
        folder = checkpoint_folder(Path(self.args.output_dir), self.state.global_step)
        with disk_errors(folder, needed=checkpoint_bytes(self)):
            super()._save_checkpoint(model, trial)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the weights; not by the Trainer's own way for XLA, which moves the model to the CPU and back."""
        if (weights := weights_to_save(self.model)) is None:
            super().save_model(output_dir, _internal_call)
        else:
            self._save(output_dir, weights)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save both; states that are split among processes are gathered, so that any number of them can go on."""
        optimizer: Any = self.__dict__["optimizer"]
        self.__dict__["optimizer"] = whole_states(optimizer) if is_sharded(self.model) else optimizer
        super()._save_optimizer_and_scheduler(output_dir)
        self.__dict__["optimizer"] = optimizer

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load both, each process its share; on XLA the number of a step stays on the CPU, where AdamW reads it."""
        super()._load_optimizer_and_scheduler(checkpoint)
        for weights, state in self.optimizer.state.items():
            if not self.device.shapes_may_change:
                state.update({name: value.cpu() for name, value in state.items() if name == "step"})
            state.update({name: scatter_like(value, weights) for name, value in state.items() if name != "step"})

    def _save(self, output_dir: str | None = None, state_dict: Tensors | None = None) -> None:
        """Write the weights under the model's own names; the file that they came from may have others."""
        if self.args.should_save:  # one process, since two would write into one file
            self.model.save_pretrained(output_dir, state_dict=state_dict, save_original_format=False)
            self.processing_class.save_pretrained(output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load the weights of a checkpoint, all of them."""
        restore_weights(self.model, Path(resume_from_checkpoint) / "model.safetensors")

    def evaluate(self, *arguments: object, **keywords: object) -> dict[str, float]:
        """Score the model through the same path as `bertkit eval`."""
        scored = self.score_model(self.model, self.state.global_step)
        scores = {f"eval_{name}": value for name, value in scored.items()}
        self.log(null_for_nan(scores))
        self.control: TrainerControl = self.callback_handler.on_evaluate(self.args, self.state, self.control, scores)
        return scores

    def _determine_best_metric(self, metrics: dict[str, float], trial: object) -> bool:
        """Note this step if it is the best so far; while the best metric is undefined, the loss decides."""
        metric = f"eval_{self.args.metric_for_best_model}"
        *before, last = [
            rank_step(entry[metric], entry.get("eval_loss"), greater_is_better=self.args.greater_is_better)
            for entry in self.state.log_history
            if metric in entry
        ]
        if is_best := all(last > rank for rank in before):
            self.state.best_global_step = self.state.global_step
            self.state.best_metric = null_for_nan(metrics[metric])
        return is_best
