"""Events between two steps: evaluations, the best step, complete checkpoints, stops, and losses that are not finite.

A checkpoint holds what transformers writes (weights, optimizer, schedule, random states, state of the Trainer) and a
manifest, which is written last: only a checkpoint with a manifest counts. The manifest has checksums of all files and
what the Trainer does not know: the sums of the running loss, the seconds that a budget has used, how batches are made,
and the size of micro-batches. So a run that is killed at any time continues with the same weights and log lines.
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

MANIFEST_LOSSES = "losses"
MANIFEST_STATE = "state"
MANIFEST_SECONDS = "seconds"
MANIFEST_TOKENS = "micro_batch_tokens"
_GARBAGE = 200_000  # objects between two searches for garbage while a model is trained


class TrainingCallback(TrainerCallback):  # type: ignore[misc]
    """Callback that decides what happens between two steps of a run; `fit` creates it and sets its `trainer`."""

    trainer: Any

    def __init__(self, training: BaseTrainingConfig, job: TrainingJob, stop: StopFlag) -> None:
        self.training, self.stop, self.progress = training, stop, get_progress()
        self.best_metric, self.best_key = job.metric_for_best_model, f"eval_{job.metric_for_best_model}"
        self.greater_is_better = job.greater_is_better
        self.batches, self.budget, self.tenth = job.train_batches, job.train_batches.budget, 0
        self.figures: dict[str, Any] = {}
        self.start_time, self.first_step, self.is_by_signal = 0.0, 0, False
        self.step_start = 0.0
        self.cores, self.idle_start, self.loading, self.computing = CpuContentionMonitor(), 0.0, 0.0, 0.0
        self.times: dict[str, float] = {}

    def on_train_begin(self, args: object, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Restore what a checkpoint stores next to the Trainer's state, and check that the disk has room for more."""
        # During its imports, the command line collects garbage even less often.
        if gc.get_threshold()[0] > _GARBAGE:
            gc.set_threshold(_GARBAGE, 50, 100)
        self.first_step, used, tokens = state.global_step, 0.0, None
        if state.global_step:
            folder = checkpoints.checkpoint_folder(self._run(), state.global_step)
            manifest = checkpoints.read_manifest(folder)
            # Without these sums, the first mean after a resume would lack the steps before the checkpoint.
            self.trainer.running_loss.load_state(manifest[MANIFEST_LOSSES])
            used, tokens = manifest.get(MANIFEST_SECONDS, 0.0), manifest.get(MANIFEST_TOKENS)
        self.trainer.limit_micro_batches(tokens)
        state.logging_steps = self.training.steps_per_log(state.max_steps)
        self.start_time = self.idle_start = time.perf_counter()
        self.cores.waiting_share()  # starts the measurement
        # The disk must have room for the checkpoints that this run will write.
        saves = self.training.count_evaluations(state.max_steps, self.batches.rows)
        weights = sum(weights.nbytes for weights in self.trainer.model.parameters())
        max_checkpoints = self.training.count_kept_checkpoints(saves)
        needed = checkpoints.max_disk_usage(weights, checkpoint_bytes(self.trainer), saves, max_checkpoints)
        check_space(self._run(), needed - checkpoints.written_bytes(self._run()))
        self._write_log(state)
        if self.budget:
            self.budget.start(used)
            self.tenth = int(10 * self.budget.share)
            self.progress.start("training (seconds)", round(self.budget.seconds), round(used))
        else:
            self.progress.start("training", state.max_steps, state.global_step)

    def on_step_begin(self, args: object, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Set the progress of training, which some losses read; it follows from the step, also after a resume."""
        self.loading += time.perf_counter() - self.idle_start
        share = self.budget.share if self.budget else state.global_step / state.max_steps
        if set_progress := getattr(self.trainer.model, "set_progress", None):
            set_progress(share)
        # On XLA, operations that an evaluation left are not part of the graph of the step.
        self.trainer.device.end_graph()
        self.step_start = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Decide what follows this step."""
        self.trainer.device.end_graph()
        # Batches of pretraining are numbered by step, so the Trainer treats all steps as one epoch.
        if isinstance(self.training, PretrainingConfig):
            state.epoch = cast("PretrainBatches", self.batches).epochs(state.global_step)
        if self.budget:
            before = int(MIN_LOGS * self.budget.share)
            self.budget.read()
            # With a budget of time, the number of steps is unknown, so log lines follow the clock.
            if self.training.log_every == "auto" and int(MIN_LOGS * self.budget.share) > before:
                control.should_log = True
            control.should_training_stop = control.should_training_stop or self.budget.is_over
        is_due = self._is_time_to_evaluate(state)
        if is_due:
            control.should_evaluate = control.should_save = control.should_log = True
        if args.world_size > 1:
            # A process that stopped alone would leave the others waiting for its gradients. So all stop at the same
            # step, with the highest signal that any of them has.
            flags = torch.tensor([self.stop.signal, int(self.stop.save)], device=args.device)
            torch.distributed.all_reduce(flags, torch.distributed.ReduceOp.MAX)
            self.stop.signal, self.stop.save = int(flags[0]), bool(flags[1])
        self.is_by_signal = not is_due
        if self.stop.signal or self.stop.save:
            control.should_save = True
            control.should_training_stop = control.should_training_stop or bool(self.stop.signal)
            self.stop.save = False
        # A flag on a GPU can be read only after all its work is done. So it is read only if a log line or a checkpoint
        # waits for that anyway.
        if control.should_save or control.should_log or self.trainer.args.device.type == "cpu":
            self._check_finite(state, weights=control.should_save)
        if control.should_save and args.should_save:
            checkpoints.clear(checkpoints.checkpoint_folder(self._run(), state.global_step))
        # Rates exclude evaluations. An asynchronous device has finished by now if an evaluation follows.
        self.computing += time.perf_counter() - self.step_start
        seconds = self.computing + self.loading
        rows, tokens = ((state.global_step - self.first_step) * mean for mean in self.batches.step_size())
        figures = {**self.figures, "rows/s": rows / seconds, "tokens/s": tokens / seconds}
        self.progress.update(round(self.budget.used) if self.budget else state.global_step, figures)
        self.idle_start = time.perf_counter()

    def on_train_end(self, args: object, state: object, control: object, **_: object) -> None:
        """Store how long training took, how long it waited for batches, and how often its threads had no core."""
        seconds, share = time.perf_counter() - self.start_time, self.cores.waiting_share()
        self.times = {"seconds": seconds, "loading_seconds": self.loading, "waiting_share": share}

    def on_log(
        self, args: object, state: TrainerState, control: object, logs: dict[str, float] | None = None, **_: object
    ) -> None:
        """Append to metrics.jsonl and remember what the progress line shows."""
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
        self.figures.update({name: value for name, value in figures.items() if value is not None})
        self.idle_start = time.perf_counter()

    def on_evaluate(
        self, args: object, state: TrainerState, control: object, metrics: dict[str, float], **_: object
    ) -> None:
        """Store this step if it is the best so far; while the best metric is undefined, the loss decides."""
        *before, last = [
            rank_step(entry[self.best_key], entry.get("eval_loss"), greater_is_better=self.greater_is_better)
            for entry in state.log_history
            if self.best_key in entry
        ]
        if all(last > rank for rank in before):
            state.best_global_step = state.global_step
            state.best_metric = null_for_nan(metrics[self.best_key])

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Commit the checkpoint, then delete those that are neither the best nor the last, unless all are kept."""
        self.trainer.accelerator.wait_for_everyone()
        best = state.best_global_step or 0
        evaluations_since_best = [
            entry for entry in state.log_history if self.best_key in entry and entry["step"] > best
        ]
        exhausted = self.training.patience is not None and len(evaluations_since_best) >= self.training.patience
        losses = self.trainer.running_loss.state()
        # All processes have written their files (such as random states) before the manifest lists them. Older
        # checkpoints are deleted after this one counts, so that a kill always leaves one to resume from.
        if args.should_save:
            facts = {
                "step": state.global_step,
                "finished": self._is_last(state) or exhausted,
                checkpoints.BY_SIGNAL: self.is_by_signal,
                MANIFEST_SECONDS: self.budget.used if self.budget else 0.0,
                MANIFEST_LOSSES: losses,
                MANIFEST_STATE: self.batches.state(state.global_step),
            }
            if self.trainer.micro_batch_tokens:
                facts[MANIFEST_TOKENS] = self.trainer.micro_batch_tokens
            folder = checkpoints.checkpoint_folder(self._run(), state.global_step)
            checkpoints.commit(folder, facts)
            if self.training.keep_all_checkpoints:
                checkpoints.discard_signalled(self._run(), state.global_step)
            else:
                checkpoints.keep_only(self._run(), {state.global_step, state.best_global_step or state.global_step})
        self.trainer.accelerator.wait_for_everyone()
        if exhausted:
            control.should_training_stop = True
        self.idle_start = time.perf_counter()

    def _is_last(self, state: TrainerState) -> bool:
        return self.budget.is_over if self.budget else bool(state.global_step >= state.max_steps)

    def _is_time_to_evaluate(self, state: TrainerState) -> bool:
        """Return whether an evaluation is due; a run with a budget of time has ten."""
        if self._is_last(state):
            return True
        if self.budget and self.training.evaluate_every == "epoch":
            before, self.tenth = self.tenth, int(10 * self.budget.share)
            return self.tenth > before
        return bool(state.global_step % self.training.steps_per_evaluation(self.batches.rows) == 0)

    def _run(self) -> Path:
        return Path(self.trainer.args.output_dir)

    def _check_finite(self, state: TrainerState, *, weights: bool) -> None:
        is_finite = bool(self.trainer.finite)
        if is_finite and weights:
            # On XLA, copies on the CPU are read without compiling a graph.
            model = self.trainer.model
            saved = (None if is_sharded(model) else collect_weights(model)) or dict(model.named_parameters())
            finite = [gather(values.isfinite().all()) for values in saved.values()]
            # One stacked tensor makes the CPU wait for a GPU once, not once per weight.
            is_finite = bool(torch.stack(finite).all())
        if is_finite:
            return
        checkpoint, _ = checkpoints.get_last_checkpoint(self._run())
        last = f"the last good checkpoint is {checkpoint.name if checkpoint else 'none'}"
        message = f"the loss or a weight is not finite at step {state.global_step}; {last}"
        raise DivergedError(message, "try a smaller --learning-rate, or --set training.precision=fp32")

    def _write_log(self, state: TrainerState) -> None:
        if state.is_world_process_zero:
            # The file is rewritten with the complete history. So a resumed run leaves no lines of steps after its
            # checkpoint, which it repeats.
            lines = [
                to_json({"step": entry["step"], **{key: entry[key] for key in sorted(entry)}})
                for entry in state.log_history
            ]
            write_text(self._run() / "metrics.jsonl", "".join(f"{line}\n" for line in lines))


def checkpoint_bytes(trainer: Trainer) -> int:
    """Return the size of a checkpoint, before training starts: all weights, and AdamW's two moments of trained ones."""
    weights = list(trainer.model.parameters())
    moments = 2 if trainer.args.optim.startswith("adamw_torch") else 0
    return sum(values.nbytes * (1 + moments * values.requires_grad) for values in weights)
