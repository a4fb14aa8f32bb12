"""The Trainer of every run, which changes transformers' Trainer through its public methods.

It overrides two private methods, which have no public counterpart: `_clip_grad_norm` and `_load_from_checkpoint`.
`tests/training/test_trainer.py` fails if transformers renames a method that is overridden here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
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
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.embeddings import UsedEmbeddings
from bertkit.modeling.info import Model, is_sharded
from bertkit.modeling.load import collect_weights, restore_weights
from bertkit.modeling.sharding import gather_states, scatter_like
from bertkit.storage.files import null_for_nan
from bertkit.tokens.features import Collator, Tensor, Tensors
from bertkit.training import micro_batches
from bertkit.training.losses import LossTerms, RunningLoss, scale_learning_rate
from bertkit.training.pretrain_batches import Batches
from bertkit.training.unfreezing import LayerPlan

_ITEMS = "num_items_in_batch"


@dataclass(frozen=True)
class TrainingJob:
    """Model and data to train on, and the function that scores checkpoints; a job without it is only timed."""

    model: PreTrainedModel
    processing_class: PreTrainedTokenizerFast
    train_batches: Batches
    data_collator: Collator
    loss_terms: LossTerms
    compute_metrics: Callable[[Model, int], dict[str, float]] = lambda model, step: {}
    """Function that scores the model at a step on the validation rows: metric -> value."""
    metric_for_best_model: str = "loss"
    """Metric that chooses the best checkpoint."""
    greater_is_better: bool = False


class BertkitTrainer(transformers.Trainer):  # type: ignore[misc]
    """Trainer with seeded batches, the scores of `bertkit eval`, and a loss whose terms are means over a whole step."""

    def __init__(
        self,
        *,
        job: TrainingJob,
        dropout: DropoutStream,
        embeddings: UsedEmbeddings | None,
        padding_reason: str | None,
        layer_plan: LayerPlan | None,
        graphs: bool,
        **arguments: Any,
    ) -> None:
        super().__init__(model=job.model, processing_class=job.processing_class, **arguments)
        for unused in (transformers.PrinterCallback, transformers.ProgressCallback):
            self.remove_callback(unused)
        self.batches = job.train_batches
        self.collate = job.data_collator
        self.terms = job.loss_terms
        self.score_model = job.compute_metrics
        self.dropout = dropout
        self.padding_reason = padding_reason
        self.embeddings, self.layer_plan = embeddings, layer_plan
        self.device = Device(self.args.device.type)
        # For bf16 on XLA, Accelerate does not autocast, but sets a variable, which torch_xla has already read.
        if self.args.bf16:
            self.accelerator.native_amp = True
        # Accelerate must not wrap a model whose weights are sharded already.
        self.is_distributed_loading_by_transformers = is_sharded(job.model)
        # `get_batch_samples` counts the items of a whole step, so a loss needs no further scaling.
        self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True
        self.is_finite = torch.tensor(True).to(self.args.device)
        self.running_loss = RunningLoss(list(self.terms.weights), self.accelerator)
        self.gathered_states: dict[str, Any] | None = None
        self.micro_batch_tokens: int | None = None  # maximum, padding included; None: no limit
        self.graphs = self._make_graphs() if graphs else None

    # --- Before the first step: batches, optimizer, learning rate, weights of a checkpoint ---

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the loader of this process's share of the batches; batches for a GPU are in pinned memory."""
        args, partition = self.args, {"processes": self.args.world_size, "process": self.args.process_index}
        loader = self.batches.loader(self.collate, **partition, padding_reason=self.padding_reason)
        loader.pin_memory = args.dataloader_pin_memory and Device(args.device.type).pins_memory
        return loader

    def create_optimizer(self, model: Model | None = None) -> torch.optim.Optimizer:
        """Create the optimizer with learning rates per layer, and register hooks that save and load its states."""
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if self.layer_plan:
            self.layer_plan.split_groups(optimizer)
        scale_learning_rate(optimizer, self.model)
        # Apply the weight decay also to word embeddings that the optimizer does not train.
        if self.embeddings:
            self.embeddings.follow(optimizer)
        optimizer.register_state_dict_post_hook(self._take_gathered_states)
        optimizer.register_load_state_dict_post_hook(self._place_states)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Create the schedule of the learning rate, which follows the steps or, with a time budget, the clock."""
        if (budget := self.batches.budget) is None:
            return super().create_scheduler(num_training_steps, optimizer)
        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda step: budget.learning_rate_factor())
        return self.lr_scheduler

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load all weights of a checkpoint; transformers' version does not know heads that bertkit defines."""
        restore_weights(self.model, Path(resume_from_checkpoint) / "model.safetensors")

    def limit_micro_batches(self, tokens: int | None) -> None:
        """Set the maximum number of tokens in a micro-batch: `tokens` from a checkpoint, or a GPU's limit by trial."""
        # A device with its own memory can run out of it long before the system does.
        if tokens is None and self.device.memory is not None:
            longest = self.collate(self.batches.get_longest_rows())
            tokens = micro_batches.find_max_tokens(
                longest,
                lambda batch: micro_batches.probe_memory(self.model, self.optimizer, lambda: self._sum_terms(batch)),
            )
            # The trial drew dropout masks, so the first step must restart its stream.
            self.dropout.step = -1
            # All processes use the smallest limit among them.
            tokens = int(self.accelerator.gather(torch.tensor([tokens]).to(self.args.device)).min())
        self.micro_batch_tokens = tokens

    # --- A step ---

    def get_batch_samples(
        self, epoch_iterator: Iterator[Tensors], num_batches: int, device: torch.device
    ) -> tuple[list[Tensors], Tensor]:
        """Return the batches of a step, and the items of each term over all processes. Shape of items: (terms,)."""
        batches = list(islice(epoch_iterator, num_batches))
        counts = [self.terms.count(batch) for batch in batches]
        items = [float(sum(count.get(name, 0) for count in counts)) for name in self.terms.weights]
        totals = torch.tensor(items).to(device, non_blocking=True)
        return batches, self.accelerator.reduce(totals, "sum") if self.args.world_size > 1 else totals

    def training_step(self, model: nn.Module, inputs: Tensors, num_items_in_batch: Tensor) -> Tensor:
        """Add up the gradients of a batch, micro-batch by micro-batch, and return its loss.

        A micro-batch has the size that is fastest on a CPU, or that fits into a GPU's memory. Its loss is a sum over
        its items, divided by the items of the whole step (`compute_loss`). So the gradients of all micro-batches add
        up to the gradient of the batch for any split, except for rounding.
        """
        # Dropout masks come from a stream seeded by seed, process and step, so a resumed run draws the same masks.
        self.dropout.move_to(self.state.global_step)
        rows = micro_batches.choose_rows(inputs, self.micro_batch_tokens, self.model)
        if self.graphs or not self.device.shapes_may_change:
            rows = min(rows, self.device.padded_rows(self.args.per_device_train_batch_size))
        *first_parts, last_part = micro_batches.split_batch(inputs, rows)
        losses = []
        for micro_batch in first_parts:
            # Processes exchange gradients once per batch, with its last micro-batch.
            with self.accelerator.no_sync(model):
                losses.append(self._run_passes(model, micro_batch, num_items_in_batch))
            # On XLA, micro-batches of one shape share a compiled graph only if the graph ends with each micro-batch.
            self.device.end_graph()
        losses.append(self._run_passes(model, last_part, num_items_in_batch))
        self.device.end_graph()
        if self.layer_plan:
            self.layer_plan.drop_gradients()
        loss = torch.stack(losses).sum()
        self.running_loss.add(loss)
        return loss

    def _run_passes(self, model: nn.Module, batch: Tensors, items: Tensor) -> Tensor:
        """Run a micro-batch forward and backward, and return its share of the loss."""
        if self.graphs is None:
            return super().training_step(model, self._on_device(batch), items)  # type: ignore[no-any-return]
        return self._record_shares(self.graphs.run({**batch, _ITEMS: items}, self.args.device).unbind())

    def _on_device(self, batch: Tensors) -> Tensors:
        """Move the tensors of a batch to the device, asynchronously if they are in pinned memory."""
        return {name: to_device(values, self.args.device) for name, values in batch.items()}

    def _make_graphs(self) -> StepGraphs:
        def compute(inputs: Tensors) -> Tensor:
            batch = {name: values for name, values in inputs.items() if name != _ITEMS}
            self.model.train()
            with self.compute_loss_context_manager():
                shares = self._compute_shares(self.model, batch, inputs[_ITEMS])
                loss = self._weigh_shares(shares)
            self.accelerator.backward(loss)
            return torch.stack(shares).detach()

        preserve_state = partial(micro_batches.preserve_state, self.model)
        return StepGraphs(self.model.parameters(), compute, preserve_state)

    def _sum_terms(self, batch: Tensors) -> Tensor:
        """Compute the sum of all terms of a batch, to find out whether it fits into memory."""
        with self.compute_loss_context_manager():
            return torch.stack(list(self.terms.sums(self.model, self._on_device(batch)).values())).sum()

    def compute_loss(
        self, model: Model, inputs: Tensors, return_outputs: bool = False, *, num_items_in_batch: Tensor
    ) -> Tensor:
        """Compute this micro-batch's share of the weighted sum of the terms' means over all items of the step.

        Each term's sum over the micro-batch is divided by the term's items in the whole step. Summed over micro-batches
        and averaged over processes (like gradients), these shares are the means, for any split of the batch.
        """
        return self._record_shares(self._compute_shares(model, inputs, num_items_in_batch))

    def _compute_shares(self, model: Model, inputs: Tensors, items: Tensor) -> list[Tensor]:
        sums = self.terms.sums(model, inputs)
        divisors = items.clamp(min=1) / self.args.world_size
        return [
            sums[name] / divisor if name in sums else divisor * 0
            for name, divisor in zip(self.terms.weights, divisors, strict=True)
        ]

    def _weigh_shares(self, shares: Sequence[Tensor]) -> Tensor:
        pairs = zip(self.terms.weights.values(), shares, strict=True)
        loss: Tensor = sum(weight * share for weight, share in pairs)  # type: ignore[assignment]
        return loss

    def _record_shares(self, shares: Sequence[Tensor]) -> Tensor:
        """Add the shares of a micro-batch to the running means, and return their weighted sum."""
        self.running_loss.add_terms(shares)
        loss = self._weigh_shares(shares)
        # An `if` would wait for the GPU in every micro-batch.
        self.is_finite &= loss.detach().isfinite()
        return loss

    def floating_point_ops(self, inputs: Tensors) -> int:
        """Return 0: nothing reads the number, and counting the weights takes a tenth of a short step."""
        return 0

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        """Clip the gradients, and return their norm; a CPU does not multiply short gradients by 1, to save time."""
        # Comparing the norm would wait for a GPU.
        if self.args.device.type != "cpu" or is_sharded(self.model):
            return super()._clip_grad_norm(model)  # type: ignore[no-any-return]
        norm = get_total_norm([weights.grad for weights in model.parameters() if weights.grad is not None])
        # torch has the same condition. If the norm is NaN, the weights must become NaN, because they are checked.
        if not norm + 1e-6 <= self.args.max_grad_norm:
            clip_grads_with_norm_(model.parameters(), self.args.max_grad_norm, norm)
        return norm

    # --- Between two steps: log lines, scores, checkpoints ---

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log numbers, and replace the Trainer's mean loss by the running means, which a checkpoint stores."""
        if "loss" in logs:
            logs = {**logs, **self.running_loss.take_means(self.state.global_step)}
        super().log(logs, start_time)

    def evaluate(
        self, eval_dataset: object = None, ignore_keys: object = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Score the model in the same way as `bertkit eval`."""
        model_scores = self.score_model(self.model, self.state.global_step)
        scores = {f"{metric_key_prefix}_{name}": value for name, value in model_scores.items()}
        self.log(null_for_nan(scores))
        self.control: TrainerControl = self.callback_handler.on_evaluate(self.args, self.state, self.control, scores)
        return scores

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the weights under their names in the model; the file that was loaded can have other names.

        transformers' version would move the model to the CPU and back on XLA.
        """
        weights = collect_weights(self.model)
        # All processes gather the optimizer's states; the first process saves them next.
        states = gather_states(self.optimizer) if is_sharded(self.model) else None
        if self.args.should_save:
            self.gathered_states = states
            self.model.save_pretrained(output_dir, state_dict=weights, save_original_format=False)
            self.processing_class.save_pretrained(output_dir)

    def _take_gathered_states(self, *_: object) -> dict[str, Any] | None:
        """Return the gathered states once, or None to save the states of this process."""
        states, self.gathered_states = self.gathered_states, None
        return states

    def _place_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep this process's part of the loaded states; on XLA, AdamW reads the number of steps on the CPU."""
        for weights, state in optimizer.state.items():
            for name, value in state.items():
                if name != "step":
                    state[name] = scatter_like(value, weights)
                elif not self.device.shapes_may_change:
                    state[name] = value.cpu()
