"""Events between two steps: evaluations, the best step, complete checkpoints, stops, and losses that are not finite.

A checkpoint holds the files of transformers (weights, optimizer, schedule, random states, state of the Trainer) and a
manifest, which is written last: only a checkpoint with a manifest counts. The manifest has checksums of all files, and
state that the Trainer does not store: the sums of the running loss, the used seconds of a time budget, the state of the
batches, and the size of micro-batches. So a run that is killed at any time resumes with the same weights and log lines.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from bertkit.errors import DivergedError
from bertkit.hardware.process import CpuContentionMonitor
from bertkit.metrics.registry import rank_step
from bertkit.modeling.info import is_sharded
from bertkit.modeling.load import collect_weights
from bertkit.modeling.sharding import gather
from bertkit.progress import get_progress
from bertkit.recipe.sections import MIN_LOGS, BaseTrainingConfig, PretrainingConfig
from bertkit.storage import checkpoints
from bertkit.storage.files import check_space, null_for_nan, to_json, write_text
from bertkit.training.stopping import StopFlag

if TYPE_CHECKING:
    from bertkit.training.pretrain_batches import PretrainBatches
    from bertkit.training.trainer import TrainingJob

_GC_THRESHOLD = 200_000  # new objects between two garbage collections


class TrainingCallback(TrainerCallback):  # type: ignore[misc]
    """Callback that decides what happens between two steps of a run; `fit` creates it and sets its `trainer`."""

    trainer: Any

    def __init__(self, training: BaseTrainingConfig, job: TrainingJob, stop: StopFlag) -> None:
        self.training, self.stop, self.progress = training, stop, get_progress()
        self.best_metric, self.best_key = job.metric_for_best_model, f"eval_{job.metric_for_best_model}"
        self.greater_is_better = job.greater_is_better
        self.batches, self.budget = job.train_batches, job.train_batches.budget
        self.last_tenth = 0
        self.shown_figures: dict[str, Any] = {}
        self.start_time, self.first_step, self.is_signaled = 0.0, 0, False
        self.idle_start = self.step_start = self.loading_seconds = self.computing_seconds = 0.0
        self.cpu_monitor = CpuContentionMonitor()
        self.times: dict[str, float] = {}

    def on_train_begin(self, args: object, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Restore the state in the manifest of a checkpoint, and check that the disk has room for the next ones."""
        # The command line sets a higher threshold during its imports.
        if gc.get_threshold()[0] > _GC_THRESHOLD:
            gc.set_threshold(_GC_THRESHOLD, 50, 100)
        self.first_step, used_seconds, tokens = state.global_step, 0.0, None
        if state.global_step:
            folder = checkpoints.checkpoint_folder(self._folder, state.global_step)
            manifest = checkpoints.read_manifest(folder)
            # Without these sums, the first mean after a resume would lack the steps before the checkpoint.
            self.trainer.running_loss.load_state(manifest["losses"])
            used_seconds, tokens = manifest.get("seconds", 0.0), manifest.get("micro_batch_tokens")
        self.trainer.limit_micro_batches(tokens)
        state.logging_steps = self.training.steps_per_log(state.max_steps)
        self.start_time = self.idle_start = time.perf_counter()
        self.cpu_monitor.waiting_share()  # starts the measurement
        # The disk must have room for the checkpoints that this run will write.
        num_saves = self.training.count_evaluations(state.max_steps, self.batches.rows)
        weight_bytes = sum(weights.nbytes for weights in self.trainer.model.parameters())
        max_checkpoints = self.training.count_kept_checkpoints(num_saves)
        sizes = weight_bytes, checkpoint_bytes(self.trainer)
        needed_bytes = checkpoints.max_disk_usage(*sizes, num_saves, max_checkpoints)
        check_space(self._folder, needed_bytes - checkpoints.written_bytes(self._folder))
        self._write_log(state)
        if self.budget:
            self.budget.start(used_seconds)
            self.last_tenth = int(10 * self.budget.fraction)
            self.progress.start("training (seconds)", round(self.budget.seconds), round(used_seconds))
        else:
            self.progress.start("training", state.max_steps, state.global_step)

    def on_step_begin(self, args: object, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Pass the completed fraction of training to models whose loss depends on it."""
        self.loading_seconds += time.perf_counter() - self.idle_start
        fraction = self.budget.fraction if self.budget else state.global_step / state.max_steps
        if set_progress := getattr(self.trainer.model, "set_progress", None):
            set_progress(fraction)
        # On XLA, pending operations of an evaluation must not become part of the graph of the step.
        self.trainer.device.end_graph()
        self.step_start = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Decide whether the Trainer logs, evaluates, saves or stops after this step."""
        self.trainer.device.end_graph()
        # Batches of pretraining are numbered by step, so the Trainer treats all steps as one epoch.
        if isinstance(self.training, PretrainingConfig):
            state.epoch = cast("PretrainBatches", self.batches).count_epochs(state.global_step)
        if self.budget:
            num_logs = int(MIN_LOGS * self.budget.fraction)
            self.budget.read()
            # With a time budget, the number of steps is unknown, so log lines follow the clock.
            if self.training.log_every == "auto" and int(MIN_LOGS * self.budget.fraction) > num_logs:
                control.should_log = True
            control.should_training_stop = control.should_training_stop or self.budget.is_over
        is_due = self._is_evaluation_due(state)
        if is_due:
            control.should_evaluate = control.should_save = control.should_log = True
        if args.world_size > 1:
            # If one process stopped, the others would wait for its gradients forever. So all processes stop at the same
            # step, with the highest signal number among them.
            flags = torch.tensor([self.stop.signal, int(self.stop.save)], device=args.device)
            torch.distributed.all_reduce(flags, torch.distributed.ReduceOp.MAX)
            self.stop.signal, self.stop.save = int(flags[0]), bool(flags[1])
        self.is_signaled = not is_due
        if self.stop.signal or self.stop.save:
            control.should_save = True
            control.should_training_stop = control.should_training_stop or bool(self.stop.signal)
            self.stop.save = False
        # Reading a flag from a GPU waits for all its work. So the flag is read only if a log line or a checkpoint waits
        # anyway.
        if control.should_save or control.should_log or self.trainer.args.device.type == "cpu":
            self._check_finite(state, check_weights=control.should_save)
        if control.should_save and args.should_save:
            checkpoints.clear(checkpoints.checkpoint_folder(self._folder, state.global_step))
        # Rates exclude evaluations. An asynchronous device has finished by now if an evaluation follows.
        self.computing_seconds += time.perf_counter() - self.step_start
        seconds = self.computing_seconds + self.loading_seconds
        rows, tokens = ((state.global_step - self.first_step) * mean for mean in self.batches.get_step_size())
        figures = {**self.shown_figures, "rows/s": rows / seconds, "tokens/s": tokens / seconds}
        self.progress.update(round(self.budget.used_seconds) if self.budget else state.global_step, figures)
        self.idle_start = time.perf_counter()

    def on_train_end(self, args: object, state: object, control: object, **_: object) -> None:
        """Store the seconds of training and of waiting for batches, and the fraction of time without a core."""
        seconds, waiting_share = time.perf_counter() - self.start_time, self.cpu_monitor.waiting_share()
        self.times = {"seconds": seconds, "loading_seconds": self.loading_seconds, "waiting_share": waiting_share}

    def on_log(
        self, args: object, state: TrainerState, control: object, logs: dict[str, float] | None = None, **_: object
    ) -> None:
        """Write metrics.jsonl, and store the figures that the progress line shows."""
        # On XLA, resetting the sums is a separate graph, which a checkpoint does not extend.
        self.trainer.device.end_graph()
        logs = logs or {}
        # The Trainer's summary covers only the steps of this process.
        if "train_runtime" in logs:
            state.log_history.pop()
            return
        self._write_log(state)
        if state.is_world_process_zero:
            self.progress.record(state.log_history[-1])
        figures = {"loss": logs.get("loss"), self.best_metric: logs.get(self.best_key)}
        self.shown_figures.update({name: value for name, value in figures.items() if value is not None})
        self.idle_start = time.perf_counter()

    def on_evaluate(
        self, args: object, state: TrainerState, control: object, metrics: dict[str, float], **_: object
    ) -> None:
        """Store this step if it is the best so far; if the metric is undefined at a step, the loss decides."""
        *earlier_ranks, rank = [
            rank_step(entry[self.best_key], entry.get("eval_loss"), greater_is_better=self.greater_is_better)
            for entry in state.log_history
            if self.best_key in entry
        ]
        if all(rank > earlier for earlier in earlier_ranks):
            state.best_global_step = state.global_step
            state.best_metric = null_for_nan(metrics[self.best_key])

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Complete the checkpoint, then delete all except the best and the last, unless all are kept."""
        self.trainer.accelerator.wait_for_everyone()
        best_step = state.best_global_step or 0
        later_evaluations = [
            entry for entry in state.log_history if self.best_key in entry and entry["step"] > best_step
        ]
        stops_early = self.training.patience is not None and len(later_evaluations) >= self.training.patience
        losses = self.trainer.running_loss.state()
        # All processes have written their files (such as random states) before the manifest lists them. Older
        # checkpoints are deleted only after this one is complete, so that a killed run can always be resumed.
        if args.should_save:
            manifest = {
                "step": state.global_step,
                "finished": self._is_last(state) or stops_early,
                checkpoints.BY_SIGNAL: self.is_signaled,
                "seconds": self.budget.used_seconds if self.budget else 0.0,
                "losses": losses,
                "state": self.batches.state(state.global_step),
            }
            if self.trainer.micro_batch_tokens:
                manifest["micro_batch_tokens"] = self.trainer.micro_batch_tokens
            folder = checkpoints.checkpoint_folder(self._folder, state.global_step)
            checkpoints.commit(folder, manifest)
            if self.training.keep_all_checkpoints:
                checkpoints.discard_signalled(self._folder, state.global_step)
            else:
                checkpoints.keep_only(self._folder, {state.global_step, best_step or state.global_step})
        self.trainer.accelerator.wait_for_everyone()
        if stops_early:
            control.should_training_stop = True
        self.idle_start = time.perf_counter()

    def _is_last(self, state: TrainerState) -> bool:
        return self.budget.is_over if self.budget else bool(state.global_step >= state.max_steps)

    def _is_evaluation_due(self, state: TrainerState) -> bool:
        """Return whether an evaluation is due; a run with a time budget has ten."""
        if self._is_last(state):
            return True
        if self.budget and self.training.evaluate_every == "epoch":
            earlier_tenth, self.last_tenth = self.last_tenth, int(10 * self.budget.fraction)
            return self.last_tenth > earlier_tenth
        return bool(state.global_step % self.training.steps_per_evaluation(self.batches.rows) == 0)

    @property
    def _folder(self) -> Path:
        return Path(self.trainer.args.output_dir)

    def _check_finite(self, state: TrainerState, *, check_weights: bool) -> None:
        is_finite = bool(self.trainer.is_finite)
        if is_finite and check_weights:
            # On XLA, reading copies on the CPU compiles no graph.
            model = self.trainer.model
            weights = (None if is_sharded(model) else collect_weights(model)) or dict(model.named_parameters())
            flags = [gather(values.isfinite().all()) for values in weights.values()]
            # With one stacked tensor, the CPU waits for a GPU once, not once per weight.
            is_finite = bool(torch.stack(flags).all())
        if is_finite:
            return
        checkpoint, _ = checkpoints.get_last_checkpoint(self._folder)
        checkpoint_note = f"the last good checkpoint is {checkpoint.name if checkpoint else 'none'}"
        message = f"the loss or a weight is not finite at step {state.global_step}; {checkpoint_note}"
        raise DivergedError(message, "try a smaller --learning-rate, or --set training.precision=fp32")

    def _write_log(self, state: TrainerState) -> None:
        if state.is_world_process_zero:
            # The file is rewritten with the complete history. So a resumed run has no lines of later steps that the
            # killed process logged.
            lines = [
                to_json({"step": entry["step"], **{key: entry[key] for key in sorted(entry)}})
                for entry in state.log_history
            ]
            write_text(self._folder / "metrics.jsonl", "".join(f"{line}\n" for line in lines))


def checkpoint_bytes(trainer: Trainer) -> int:
    """Estimate the size of a checkpoint before training: all weights, and AdamW's two moments of trained weights."""
    weights = list(trainer.model.parameters())
    moments = 2 if trainer.args.optim.startswith("adamw_torch") else 0
    return sum(values.nbytes * (1 + moments * values.requires_grad) for values in weights)
