"""The one place that touches transformers.Trainer: from features to a trained model in a run's folder."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import TrainingArguments
from transformers.trainer_utils import set_seed

from bertkit.encoded import lengths_of
from bertkit.errors import ModelError, RecipeError, UsageError
from bertkit.features import Collator, Feature
from bertkit.precision import Machine
from bertkit.progress import Progress
from bertkit.recipe import Training, closest
from bertkit.training.batching import KeyedBatches, KeyedLoader, split_batch
from bertkit.training.callbacks import Conduct
from bertkit.training.checkpoints import checkpoint_folder, find_fault, newest_whole, read_manifest
from bertkit.training.forward import count_items
from bertkit.training.losses import Loss
from bertkit.training.signals import StopFlag

log = logging.getLogger("bertkit")

Evaluate = Callable[[Any, int], dict[str, float]]  # the model of a step -> metric -> value on the validation rows

# What the recipe or bertkit itself decides; `training.extra` may set every other field.
_DECIDED = {
    "num_train_epochs": "training.epochs",
    "per_device_train_batch_size": "training.batch_size",
    "learning_rate": "training.learning_rate",
    "lr_scheduler_type": "training.schedule",
    "warmup_steps": "training.warmup_ratio",
    "weight_decay": "training.weight_decay",
    "max_grad_norm": "training.max_grad_norm",
    "seed": "training.seed",
    "data_seed": "training.seed",
    "bf16": "training.precision",
    "gradient_accumulation_steps": "training.gradient_accumulation",
    "gradient_checkpointing": "training.gradient_checkpointing",
    "label_smoothing_factor": "training.label_smoothing",
    "logging_steps": "training.log_every",
    "eval_strategy": "training.evaluate_every",
    "eval_steps": "training.evaluate_every",
    "save_strategy": "training.evaluate_every",
    "save_steps": "training.evaluate_every",
    "metric_for_best_model": "best_metric",
    "output_dir": "--output",
    "greater_is_better": "best_metric",
    **dict.fromkeys(("use_cpu", "logging_nan_inf_filter", "remove_unused_columns", "disable_tqdm"), "bertkit itself"),
}


@dataclass(frozen=True)
class Fitted:
    """What training leaves: its history and where its best and last checkpoints are, None without training."""

    history: list[dict[str, Any]]
    best: Path | None
    last: Path | None
    best_step: int
    steps: int
    epochs: float

    @property
    def train_loss(self) -> float:
        """The mean loss over all steps, those before a resume included."""
        logged = [(entry["step"], entry["loss"]) for entry in self.history if "loss" in entry]
        before = [0, *(step for step, _ in logged)]
        weighted = sum(loss * (step - start) for (step, loss), start in zip(logged, before, strict=False))
        return weighted / logged[-1][0] if logged else float("nan")


class _Trainer(transformers.Trainer):  # type: ignore[misc]
    """A Trainer with keyed batches, our evaluation, and a loss that is the mean over the whole optimizer step."""

    def __init__(
        self,
        *,
        training: Training,
        collate: Collator,
        loss: Loss | None,
        evaluate_with: Evaluate,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.training, self.collate, self.loss, self.evaluate_with = training, collate, loss, evaluate_with
        # items are counted over all parts and processes of a step, and the loss below is divided by that count
        self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True
        self.finite = torch.tensor(True, device=self.args.device)

    def get_train_dataloader(self) -> Any:
        """Give this process its share of the keyed batches."""
        batches = KeyedBatches(
            lengths_of(self.train_dataset),
            self.training.batch_size,
            self.training.seed,
            parts=self.training.gradient_accumulation,
            processes=self.args.world_size,
            process=self.args.process_index,
        )
        return KeyedLoader(self.train_dataset, batches, self.collate)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> torch.Tensor:
        items = torch.tensor(float(sum(map(count_items, batch_samples))), device=device)
        return self.accelerator.reduce(items, "sum") if self.args.world_size > 1 else items

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Add up the gradients of a batch, on a CPU part by part."""
        heads = getattr(self.model.config, "num_attention_heads", 12)
        *others, last = split_batch(inputs, heads) if self.args.device.type == "cpu" else [inputs]
        losses = []
        for part in others:
            with self.accelerator.no_sync(model):
                losses.append(super().training_step(model, part, num_items_in_batch))
        return torch.stack([*losses, super().training_step(model, last, num_items_in_batch)]).sum()

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Give this part's share of the mean loss over all items of the optimizer step.

        Summed over the parts and averaged over processes (as gradients are), the shares make up that mean,
        however the batch was split.
        """
        items = count_items(inputs)
        outputs = model(**inputs)
        if not items:
            summed = outputs.logits.sum() * 0  # a mean over no label at all is not a number
        else:
            summed = self.loss(outputs.logits, inputs["labels"]) if self.loss else outputs.loss * items
        loss = summed / num_items_in_batch.clamp(min=1) * self.args.world_size
        self.finite &= loss.detach().isfinite()
        return (loss, outputs) if return_outputs else loss

    def evaluate(self, *arguments: Any, **keywords: Any) -> dict[str, float]:
        """Score the model through the same path as `bertkit eval`."""
        scores = {
            f"eval_{name}": value for name, value in self.evaluate_with(self.model, self.state.global_step).items()
        }
        self.log(dict(scores))
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, scores)
        return scores


def fit(
    model: Any,
    tokenizer: Any,
    features: Sequence[Feature],
    collate: Collator,
    training: Training,
    machine: Machine,
    folder: Path,
    *,
    best_metric: str,
    greater_is_better: bool,
    evaluate: Evaluate,
    loss: Loss | None,
    stop: StopFlag,
    progress: Progress,
) -> Fitted:
    """Train a model, or go on from the newest whole checkpoint in `folder`; the best weights end in `model`.

    Raises:
        DivergedError: the loss or a weight is not finite any more; the last good checkpoint stays.
        StoppedError: a signal asked for it; a checkpoint of the last step was written first.
    """
    arguments = _training_arguments(training, machine, folder, len(features), best_metric, greater_is_better)
    set_seed(training.seed)  # the dropout stream starts here, whatever loading the model has drawn
    conduct = Conduct(training, best_metric, stop, progress, rows=len(features), tokens=int(lengths_of(features).sum()))
    trainer = _Trainer(
        model=model,
        args=arguments,
        train_dataset=features,
        processing_class=tokenizer,
        callbacks=[conduct],
        training=training,
        collate=collate,
        loss=loss,
        evaluate_with=evaluate,
    )
    for callback in (transformers.PrinterCallback, transformers.ProgressCallback):
        trainer.remove_callback(callback)
    conduct.trainer = trainer
    start, skipped = newest_whole(folder)
    for line in skipped:
        log.info(line)
    if start is None or not read_manifest(start)["finished"]:
        trainer.train(resume_from_checkpoint=str(start) if start else None)
        progress.finish()
        if stop.signal:
            raise stop.error()
    return _load_best(model, folder)


def untrained() -> Fitted:
    """Give what is left where there was nothing to train."""
    return Fitted([], best=None, last=None, best_step=0, steps=0, epochs=0.0)


def _load_best(model: Any, folder: Path) -> Fitted:
    last, _ = newest_whole(folder)
    if last is None:
        raise ModelError("no checkpoint was left by training", "look at the disk, then run again", file=folder)
    state = json.loads((last / "trainer_state.json").read_text(encoding="utf-8"))
    best_step = state["best_global_step"] or state["global_step"]
    best = checkpoint_folder(folder, best_step)
    fault = find_fault(best)
    if fault:
        raise ModelError(f"the best checkpoint is damaged: {fault}", "--fresh starts anew", file=best)
    from safetensors.torch import load_model

    load_model(model, best / "model.safetensors", device=str(model.device))
    return Fitted(
        history=state["log_history"],
        best=best,
        last=last,
        best_step=best_step,
        steps=state["global_step"],
        epochs=state["epoch"],
    )


def check_batch(training: Training, rows: int, processes: int) -> None:
    """Check that a batch can be shared out evenly, and the last one too.

    Raises:
        UsageError: the batch size is no multiple of processes times parts, or there are too few rows.
    """
    shares = processes * training.gradient_accumulation
    if training.batch_size % shares:
        raise UsageError(
            f"batch_size {training.batch_size} cannot be shared by {processes} process(es) in "
            f"{training.gradient_accumulation} part(s) each",
            f"make it a multiple of {shares}",
        )
    if rows // training.steps_per_epoch(rows) < shares:
        raise UsageError(f"{rows} rows are too few for {shares} shares of a batch", "use fewer processes or parts")


def check_extra(training: Training) -> None:
    """Check that `training.extra` names fields of TrainingArguments that nothing else decides.

    Raises:
        RecipeError: an unknown field, or one that a recipe key sets.
    """
    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    for name in training.extra:
        if name in _DECIDED:
            raise RecipeError(f"training.extra.{name} is decided by {_DECIDED[name]}", "leave it out")
        if name not in known:
            raise RecipeError(f"TrainingArguments has no field {name!r}", closest(name, known))


def _training_arguments(
    training: Training, machine: Machine, folder: Path, rows: int, best_metric: str, greater_is_better: bool
) -> TrainingArguments:
    check_extra(training)
    decided = {
        "output_dir": str(folder),
        "num_train_epochs": training.epochs,
        "per_device_train_batch_size": training.batch_size,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": training.schedule,
        "warmup_steps": training.warmup_ratio,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm,
        "seed": training.seed,
        "bf16": machine.precision == "bf16",
        "use_cpu": machine.device == "cpu",
        "gradient_accumulation_steps": training.gradient_accumulation,
        "logging_steps": training.log_every,
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "save_steps": 2**40,  # `Conduct` says when
        "metric_for_best_model": best_metric,
        "greater_is_better": greater_is_better,
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }
    defaults = {"report_to": [], "ddp_find_unused_parameters": False}
    try:
        arguments = TrainingArguments(**{**decided, **defaults, **training.extra})
    except (TypeError, ValueError) as error:
        raise RecipeError(f"training.extra is wrong: {error}", "see transformers' TrainingArguments") from None
    if training.gradient_checkpointing:
        arguments.activation_checkpointing = True
    check_batch(training, rows, arguments.world_size)
    arguments.per_device_train_batch_size //= arguments.world_size * training.gradient_accumulation
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several GPUs are used by launching several processes
    return arguments
