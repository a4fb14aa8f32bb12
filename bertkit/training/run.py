"""Life of a run: open its folder and record, load the result of training, and write the final files."""

from __future__ import annotations

import json
import pickle
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from bertkit.errors import BertkitError, DataError, DivergedError, ModelError, ResourceError, StoppedError
from bertkit.hardware.device import find_device, is_launched
from bertkit.hardware.precision import ComputeConfig, restore_hardware
from bertkit.hardware.process import peak_memory, requested_threads, restart_peak_memory
from bertkit.modeling.architectures import detect_machine
from bertkit.modeling.info import Model
from bertkit.modeling.load import collect_weights, restore_weights
from bertkit.progress import log, stage
from bertkit.recipe.records import PretrainRecipe, Recipe
from bertkit.recipe.yaml import write_yaml
from bertkit.storage import checkpoints, runs
from bertkit.storage.files import disk_errors, replace_file, write_text
from bertkit.storage.fingerprints import list_files
from bertkit.storage.runs import Change, RunRecord
from bertkit.tokens.features import Tokenizer
from bertkit.training.trackers import FOLDER, open_trackers

AnyRecipe = Recipe | PretrainRecipe

_RECIPE = "recipe.yaml"
_STAGING = ".export"
_IGNORE = ".gitignore"
_IGNORED = "# Not uploaded to the Hub or added to git: rows of the data, and files that only a resume needs."


@dataclass(frozen=True)
class RunPlan:
    """Description of a run, known before anything heavy is imported."""

    recipe: AnyRecipe
    folder: Path
    identity: Mapping[str, Any]
    """Resolved recipe and checksums of data, model and labels; a resumed run must match them."""
    record_entries: Mapping[str, Any]
    """Other entries of the run's record."""
    model_type: str
    """Type of the initial model; not every type can be computed in every precision."""
    widths: tuple[int, int] | None = None
    """Hidden and intermediate size of the initial model, which also decide in which precision it is fast."""
    machine: Mapping[str, Any] | None = None
    """Machine record of another run whose precision is used, or None to detect the machine."""


@dataclass(frozen=True)
class Run:
    """An open run: its record, and its start time, which is moved back by the seconds of earlier sessions."""

    plan: RunPlan
    record: RunRecord
    start: float

    @property
    def is_finished(self) -> bool:
        """Whether the run has finished."""
        return bool(self.record["status"] == "finished")

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier process started the run."""
        return "resumed" in self.record

    @property
    def machine(self) -> ComputeConfig:
        """Device and precision of the run."""
        return ComputeConfig(**self.record["machine"])

    @property
    def seconds(self) -> float:
        """Seconds of the run so far."""
        return time.perf_counter() - self.start

    @property
    def peak_memory(self) -> int | None:
        """Peak memory of this process in bytes (GPU memory on a GPU), or None if it is unknown."""
        return peak_memory(self.machine.device)


@contextmanager
def open_run(plan: RunPlan, *, restart: bool) -> Iterator[Run]:
    """Open a new run, or resume one; if the `with` block fails, the record stores the status and the error.

    Args:
        plan: Description of the run.
        restart: Whether to move the content of the folder aside.

    Raises:
        BertkitError: If the folder cannot be used; see `bertkit.storage.runs.prepare_run_folder`.
    """
    with ExitStack() as locks:
        with _main_process_first():
            record = _open_record(plan, restart, locks) if runs.is_main_process() else runs.read_record(plan.folder)
        if record is None:
            raise ResourceError("the main process did not open the run", "see its error message", file=plan.folder)
        if record["status"] == "finished":
            log.info(f"already finished on {record['finished']}; --restart starts over")
        run = Run(plan, record, time.perf_counter() - record["seconds"])
        try:
            with (
                disk_errors(plan.folder),
                _reject_code(plan.folder),
                open_trackers(plan.folder, plan.recipe, record) if plan.recipe.training.report_to else nullcontext(),
            ):
                yield run
            if not run.is_finished:
                memory = run.peak_memory
                peak = "" if memory is None else f", peak memory {memory / 1e6:,.0f} MB"
                log.info(f"finished in {timedelta(seconds=round(run.seconds))}{peak}")
        except BertkitError as error:
            status = {StoppedError: "stopped", DivergedError: "diverged"}.get(type(error), "failed")
            seconds = round(run.seconds, 3)
            # If the disk is full, the record cannot store the error, but the error is still raised.
            with suppress(OSError):
                runs.write_record(plan.folder, {**record, "status": status, "error": str(error), "seconds": seconds})
            raise


@contextmanager
def _reject_code(folder: Path) -> Iterator[None]:
    """Raise a ModelError if a checkpoint contains code; torch loads only tensors and runs no code."""
    try:
        yield
    except pickle.UnpicklingError:
        message = "a file of the newest checkpoint holds more than tensors: loading it could run code"
        raise ModelError(message, "delete that checkpoint, then repeat the command", file=folder) from None


def export_model(model: Model, tokenizer: Tokenizer, folder: Path, subfolder: str = "") -> list[str]:
    """Write a plain checkpoint into a run's folder or a subfolder, and replace each file atomically.

    Returns:
        Names of the files, relative to the run's folder.
    """
    staging_folder = folder / _STAGING
    shutil.rmtree(staging_folder, ignore_errors=True)
    model.save_pretrained(staging_folder, state_dict=collect_weights(model), save_original_format=False)
    tokenizer.save_pretrained(staging_folder)
    file_names = []
    for file in sorted(file for file in staging_folder.rglob("*") if file.is_file()):
        name = Path(subfolder, file.relative_to(staging_folder))
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        # safetensors creates files that only their owner can read.
        file.chmod((folder / runs.RECORD).stat().st_mode)
        replace_file(file, folder / name)
        file_names.append(name.as_posix())
    shutil.rmtree(staging_folder)
    return file_names


def write_settings(run: Run, recipe: AnyRecipe, fit_result: FitResult, private: Iterable[str]) -> None:
    """Write the resolved recipe, the state of the Trainer, and a .gitignore, which git and `hf upload` respect.

    The .gitignore lists the `private` files, which hold rows of the data, and files that only a resume needs.
    """
    folder = run.plan.folder
    values = recipe.model_dump(mode="json", exclude_defaults=True)
    write_yaml(values, folder / _RECIPE, comment=run.record.get("automatic", ""))
    if fit_result.last_checkpoint is not None:
        shutil.copyfile(fit_result.last_checkpoint / "trainer_state.json", folder / "trainer_state.json")
    if not (folder / _IGNORE).exists():  # The user may have written one.
        lines = [_IGNORED, ".*", "checkpoint-*/", f"{FOLDER}/", *private]
        write_text(folder / _IGNORE, "".join(f"{line}\n" for line in lines))


def finish(run: Run, record: RunRecord, fit_result: FitResult, published: Iterable[str]) -> None:
    """Write the record of a finished run, as the last file: it marks the folder as complete.

    Args:
        run: Run that has finished.
        record: Result of `finished_record`.
        fit_result: Result of training. Unless the recipe keeps them, all checkpoints except the best and the last are
            deleted (a killed process can have left some), and all optimizer states.
        published: Files of the models, whose checksums are added to the record.
    """
    folder = run.plan.folder
    if run.plan.recipe.training.keep_all_checkpoints:
        checkpoints.discard_signalled(folder, fit_result.steps)
    else:
        checkpoints.keep_only(folder, {fit_result.best_step, fit_result.steps})
    if not run.plan.recipe.training.keep_optimizer:
        checkpoints.delete_optimizer_states(folder)
    runs.write_record(folder, {**record, "files": list_files(folder, [*published, _RECIPE])})


def finished_record(run: Run, fit_result: FitResult, seconds: float, **entries: object) -> RunRecord:
    """Return the record of a finished run, with more `entries`, for the report, the model card and `finish`."""
    record: RunRecord = {
        **run.record,
        "status": "finished",
        "finished": runs.now(),
        "seconds": seconds,
        "peak_memory_bytes": run.peak_memory,
        "steps": fit_result.steps,
        "best_step": fit_result.best_step,
        "best_checkpoint": fit_result.best_checkpoint.name if fit_result.best_checkpoint else None,
        "step_times": dict(fit_result.times),
    }
    return cast(RunRecord, {**record, **entries})


@dataclass(frozen=True)
class FitResult:
    """Result of training: log entries, number of steps, and checkpoints (None if nothing was trained)."""

    history: list[dict[str, Any]]
    best_checkpoint: Path | None
    last_checkpoint: Path | None
    best_step: int
    steps: int
    planned_steps: int
    """Number of steps if the run does not stop early."""
    epochs: float
    times: Mapping[str, float] = field(default_factory=dict)
    """Times of the last process; see `RunRecord.step_times`."""

    @classmethod
    def without_training(cls) -> FitResult:
        """Return the result of a run without training."""
        return cls([], None, None, best_step=0, steps=0, planned_steps=0, epochs=0.0)

    @property
    def evaluations(self) -> int:
        """Number of evaluations, including those before a resume."""
        return sum("eval_loss" in entry for entry in self.history)

    @property
    def train_loss(self) -> float:
        """Mean loss over all steps, including those before a resume."""
        losses = [(entry["step"], entry["loss"]) for entry in self.history if "loss" in entry]
        # Each logged loss is the mean over the steps since the last log line, so it is weighted by their number.
        starts = [0, *(step for step, _ in losses)]
        total = sum(loss * (step - start) for (step, loss), start in zip(losses, starts, strict=False))
        return total / losses[-1][0] if losses else float("nan")


def load_best_weights(model: Model, folder: Path) -> FitResult:
    """Load the weights of a run's best checkpoint, and return the result of its training.

    Raises:
        ModelError: If there is no complete checkpoint, or the best one is damaged or does not fit the model.
    """
    last_checkpoint, _ = checkpoints.get_last_checkpoint(folder)
    if last_checkpoint is None:
        raise ModelError("no checkpoint was left by training", "check the disk, then run again", file=folder)
    state = json.loads((last_checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    best_step = state["best_global_step"] or state["global_step"]
    best_checkpoint = checkpoints.checkpoint_folder(folder, best_step)
    if defect := checkpoints.find_defect(best_checkpoint):
        raise ModelError(f"the best checkpoint is damaged: {defect}", "--restart starts over", file=best_checkpoint)
    restore_weights(model, best_checkpoint / "model.safetensors")
    return FitResult(
        history=state["log_history"],
        best_checkpoint=best_checkpoint,
        last_checkpoint=last_checkpoint,
        best_step=best_step,
        steps=state["global_step"],
        planned_steps=state.get("max_steps", state["global_step"]),
        epochs=state["epoch"],
    )


def make_report_fields(recipe: AnyRecipe, record: RunRecord, fit_result: FitResult) -> dict[str, Any]:
    """Return the fields of `bertkit.reports.html.ReportData` that fine-tuning and pretraining fill alike."""
    return {
        "name": recipe.name,
        "about": recipe.about,
        "command": record["command"],
        "seconds": record["seconds"],
        "peak_memory": record["peak_memory_bytes"],
        "device": ComputeConfig(**record["machine"]).summary,
        "history": fit_result.history,
        "best_step": fit_result.best_step,
    }


def wait_for_all() -> None:
    """Wait for all processes of a launch, so that they see the files that the main process has written."""
    if is_launched():
        from accelerate import PartialState

        PartialState().wait_for_everyone()


def _open_record(plan: RunPlan, restart: bool, locks: ExitStack) -> RunRecord:
    """Claim and lock the folder, and write the record of a new or resumed run."""
    folder = plan.folder
    record = runs.prepare_run_folder(folder, plan.identity, restart=restart)
    if record is not None and record["status"] == "finished":
        return record
    locks.enter_context(runs.lock_run(folder))
    # A killed process of the run may have left files that it had not yet deleted or renamed.
    for leftover in (folder / _STAGING, *folder.glob(".discarded-checkpoint-*")):
        shutil.rmtree(leftover, ignore_errors=True)
    for temporary_file in folder.glob(".*.json*.tmp"):
        temporary_file.unlink(missing_ok=True)
    with stage("loading torch and transformers"):
        import bertkit.training.fit  # noqa: F401
    if record is None:
        machine = find_machine(plan)
        machine.announce()
        record = runs.new_record(plan.identity, machine=asdict(machine), seconds=0.0, **plan.record_entries)
    else:
        old_machine = record["machine"]
        threads = None if requested_threads() else old_machine["threads"]
        machine = restore_hardware(old_machine, "as before", threads)
        machine.announce(f"resuming {folder}; ")
        changes = runs.compare_identities(record["versions"], runs.versions())
        changes += runs.compare_identities(old_machine, {**asdict(machine), "reason": old_machine["reason"]})
        if changes:
            log.info(f"not bit-identical to an unbroken run: {'; '.join(map(str, changes))}")
        # The earlier backend may not be exact on this machine. On another device, only the precision is kept.
        backend = {**record["machine"], "matmul_backend": machine.matmul_backend}
        hardware = backend if machine.device == old_machine["device"] else asdict(machine)
        resumed = [*record.get("resumed", []), runs.now()]
        record = {**record, "status": "running", "resumed": resumed, "machine": hardware}
        record.pop("error", None)  # The error of the earlier process may not occur again.
    runs.write_record(folder, record)
    restart_peak_memory(record["machine"]["device"], collect=False)
    return record


def check_expected_run(identity: Mapping[str, Any], expect_run: Path) -> None:
    """Check that a new run has the same model, tokenizer, rows and package versions as another run.

    Args:
        identity: Identity of the new run.
        expect_run: Folder of the other run.

    Raises:
        DataError: If only rows differ.
        ModelError: If something else differs, or there is no run in the folder.
    """
    record = runs.read_record(expect_run)
    if record is None:
        raise ModelError("not a run folder (no run.json)", "name the folder of a run", file=expect_run)
    expected = {**record["identity"], "recipe": {}, "versions": record["versions"]}
    changes = runs.compare_identities(expected, {**identity, "recipe": {}, "versions": runs.versions()})
    if changes:
        message = f"differs from {expect_run}: {'; '.join(map(str, changes))}"
        raise changed_inputs_error(changes, message, "restore what differs, or pin to another run")


def changed_inputs_error(changes: Sequence[Change], message: str, remedy: str) -> DataError | ModelError:
    """Build the error for inputs that have changed since a run: a DataError if only rows changed."""
    has_only_rows = all(change.key.startswith("data.") for change in changes)
    return (DataError if has_only_rows else ModelError)(message, remedy)


def find_machine(plan: RunPlan) -> ComputeConfig:
    """Return the device, precision and threads of a new run."""
    if plan.machine is not None:
        return restore_hardware(dict(plan.machine), "as in another run", plan.machine["threads"])
    return detect_machine(plan.recipe.training.precision, plan.model_type, plan.widths)


@contextmanager
def _main_process_first() -> Iterator[None]:
    """Run the `with` block in the main process of a launch first, because it prepares the folder for the others."""
    if not is_launched():
        yield
        return
    from accelerate import PartialState

    with PartialState(cpu=find_device().is_cpu).main_process_first():
        yield
