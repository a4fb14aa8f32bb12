"""A run from its first claim on a folder to its last record: how it opens, what training leaves, how it finishes."""

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
from bertkit.hardware.precision import Machine, restore_hardware
from bertkit.hardware.process import asked_threads, peak_memory, restart_peak_memory
from bertkit.modeling.architectures import detect_machine
from bertkit.modeling.info import Model
from bertkit.modeling.load import restore_weights, weights_to_save
from bertkit.progress import log, stage
from bertkit.recipe.records import PretrainRecipe, Recipe
from bertkit.recipe.yaml import write_yaml
from bertkit.storage import checkpoints, runs
from bertkit.storage.files import disk_errors, write_text
from bertkit.storage.fingerprints import list_files
from bertkit.storage.runs import Change, RunRecord
from bertkit.tokens.features import Tokenizer
from bertkit.training.trackers import FOLDER, tracked

AnyRecipe = Recipe | PretrainRecipe

_RECIPE = "recipe.yaml"
_STAGING = ".export"
_IGNORE = ".gitignore"
_IGNORED = (
    "# Stays here when the folder is uploaded to the hub or added to git: rows of the data, and what a resume needs."
)


@dataclass(frozen=True)
class RunPlan:
    """What a run is, known before anything heavy is imported."""

    recipe: AnyRecipe
    folder: Path
    identity: Mapping[str, Any]
    """What makes it the run it is: resolved recipe, and data, model and labels by content."""
    facts: Mapping[str, Any]
    """What its record holds beside."""
    model_type: str
    """Type of the model it starts from; not every type can be computed in every precision."""
    widths: tuple[int, int] | None = None
    """Hidden and intermediate size of that model; they tell too in which precision it is fast."""
    machine: Mapping[str, Any] | None = None
    """The machine of another run, to compute as it did; None to detect it."""


@dataclass(frozen=True)
class Run:
    """An open run: its record, and the time it started at, earlier sessions included."""

    plan: RunPlan
    record: RunRecord
    start: float

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to do."""
        return bool(self.record["status"] == "finished")

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier process began it."""
        return "resumed" in self.record

    @property
    def machine(self) -> Machine:
        """The device and the precision that it computes with."""
        return Machine(**self.record["machine"])

    @property
    def seconds(self) -> float:
        """The seconds that it has taken so far."""
        return time.perf_counter() - self.start

    @property
    def peak_memory(self) -> int | None:
        """The most bytes of memory that this process has used for it, on a GPU of the GPU's; None where unknown."""
        return peak_memory(self.machine.device)


@contextmanager
def open_run(plan: RunPlan, *, fresh: bool) -> Iterator[Run]:
    """Open a new run, or one to resume; its record tells how it ends.

    Args:
        plan: what the run is.
        fresh: move what is in the folder aside.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.storage.runs.claim`.
    """
    with ExitStack() as locks:
        with _main_process_first():
            record = _open_record(plan, fresh, locks) if runs.is_main_process() else runs.read_record(plan.folder)
        if record is None:
            raise ResourceError("the main process did not open the run", "see its error message", file=plan.folder)
        if record["status"] == "finished":
            log.info(f"already finished on {record['finished']}; --fresh starts over")
        run = Run(plan, record, time.perf_counter() - record["seconds"])
        try:
            with (
                disk_errors(plan.folder),
                _code_refused(plan.folder),
                tracked(plan.folder, plan.recipe, record) if plan.recipe.training.report_to else nullcontext(),
            ):
                yield run
            if not run.is_finished:
                memory = run.peak_memory
                most = "" if memory is None else f" and at most {memory / 1e6:,.0f} MB of memory"
                log.info(f"took {timedelta(seconds=round(run.seconds))}{most}")
        except BertkitError as error:
            status = {StoppedError: "stopped", DivergedError: "diverged"}.get(type(error), "failed")
            seconds = round(run.seconds, 3)
            # what it says is lost where the disk is full; the error is not
            with suppress(OSError):
                runs.write_record(plan.folder, {**record, "status": status, "error": str(error), "seconds": seconds})
            raise


@contextmanager
def _code_refused(folder: Path) -> Iterator[None]:
    """Raise ModelError where torch, which reads numbers only and runs nothing, has met code in a checkpoint."""
    try:
        yield
    except pickle.UnpicklingError:
        what = "a file of the newest checkpoint holds more than numbers: loading it could run code"
        raise ModelError(what, "delete that checkpoint, then repeat the command", file=folder) from None


def export_model(model: Model, tokenizer: Tokenizer, folder: Path, subfolder: str = "") -> list[str]:
    """Write a plain checkpoint into a run's folder or a subfolder of it, file by file, so that none is half written.

    Returns:
        the names of its files, from the run's folder.
    """
    staging = folder / _STAGING
    shutil.rmtree(staging, ignore_errors=True)
    model.save_pretrained(staging, state_dict=weights_to_save(model), save_original_format=False)
    tokenizer.save_pretrained(staging)
    names = []
    for file in sorted(file for file in staging.rglob("*") if file.is_file()):
        name = Path(subfolder, file.relative_to(staging))
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        # safetensors creates files that only their owner can read
        file.chmod((folder / runs.RECORD).stat().st_mode)
        file.replace(folder / name)
        names.append(str(name))
    shutil.rmtree(staging)
    return names


def write_settings(run: Run, recipe: AnyRecipe, fit_result: FitResult, private: Iterable[str]) -> None:
    """Write the resolved recipe, the state of the Trainer, and a .gitignore, which `hf upload` respects as git does.

    It names the `private` files, which hold rows of the data, and all that only a resume needs.
    """
    folder = run.plan.folder
    values, chosen = recipe.model_dump(mode="json", exclude_defaults=True), run.record.get("automatic", "")
    write_yaml(values, folder / _RECIPE, comment=chosen)
    if fit_result.last is not None:
        shutil.copyfile(fit_result.last / "trainer_state.json", folder / "trainer_state.json")
    if not (folder / _IGNORE).exists():  # one of the user's own stays
        lines = [_IGNORED, ".*", "checkpoint-*/", f"{FOLDER}/", *private]
        write_text(folder / _IGNORE, "".join(f"{line}\n" for line in lines))


def finish(run: Run, record: RunRecord, fit_result: FitResult, published: Iterable[str]) -> None:
    """Write the record of a finished run, last of all: with it, everything else in the folder counts.

    Args:
        run: the run.
        record: made by `finished_record`.
        fit_result: whose checkpoints are kept, unless all are. Others are those that a killed process did not come to
            delete. Their optimizer states go, unless the recipe keeps them: there is nothing left to resume.
        published: the files of its models, whose checksums go into the record.
    """
    folder = run.plan.folder
    if run.plan.recipe.training.keep_all_checkpoints:
        checkpoints.discard_signalled(folder, fit_result.steps)
    else:
        checkpoints.keep_only(folder, {fit_result.best_step, fit_result.steps})
    if not run.plan.recipe.training.keep_optimizer:
        checkpoints.trim(folder)
    runs.write_record(folder, {**record, "files": list_files(folder, [*published, _RECIPE])})


def finished_record(run: Run, fit_result: FitResult, seconds: float, **facts: object) -> RunRecord:
    """Return the record of a finished run, for the report and the card, and for `finish`."""
    record: RunRecord = {
        **run.record,
        "status": "finished",
        "finished": runs.now(),
        "seconds": seconds,
        "peak_memory_bytes": run.peak_memory,
        "steps": fit_result.steps,
        "best_step": fit_result.best_step,
        "best_checkpoint": fit_result.best.name if fit_result.best else None,
        "step_times": dict(fit_result.times),
    }
    return cast(RunRecord, {**record, **facts})


@dataclass(frozen=True)
class FitResult:
    """What training leaves: its history, and its best and last checkpoints, None without training."""

    history: list[dict[str, Any]]
    best: Path | None
    last: Path | None
    best_step: int
    steps: int
    planned: int
    """Steps, of which a run that stops early does fewer."""
    epochs: float
    times: Mapping[str, float] = field(default_factory=dict)
    """How the last process trained; see `RunRecord.step_times`."""

    @property
    def evaluations(self) -> int:
        """The number of evaluations, those before a resume included."""
        return sum("eval_loss" in entry for entry in self.history)

    @property
    def train_loss(self) -> float:
        """The mean loss over all steps, those before a resume included."""
        logged = [(entry["step"], entry["loss"]) for entry in self.history if "loss" in entry]
        # a logged loss is the mean over the steps since the log line before it, and weighs as many as these
        before = [0, *(step for step, _ in logged)]
        weighted = sum(loss * (step - start) for (step, loss), start in zip(logged, before, strict=False))
        return weighted / logged[-1][0] if logged else float("nan")


def untrained() -> FitResult:
    """Return the result where there was nothing to train."""
    return FitResult([], best=None, last=None, best_step=0, steps=0, planned=0, epochs=0.0)


def load_best(model: Model, folder: Path) -> FitResult:
    """Load the weights of a run's best checkpoint, and return what its training has left.

    Raises:
        ModelError: there is no whole checkpoint, or the best one is damaged or does not fit the model.
    """
    last, _ = checkpoints.newest_whole(folder)
    if last is None:
        raise ModelError("no checkpoint was left by training", "check the disk, then run again", file=folder)
    state = json.loads((last / "trainer_state.json").read_text(encoding="utf-8"))
    best_step = state["best_global_step"] or state["global_step"]
    best = checkpoints.checkpoint_folder(folder, best_step)
    fault = checkpoints.find_fault(best)
    if fault:
        raise ModelError(f"the best checkpoint is damaged: {fault}", "--fresh starts over", file=best)
    restore_weights(model, best / "model.safetensors")
    return FitResult(
        history=state["log_history"],
        best=best,
        last=last,
        best_step=best_step,
        steps=state["global_step"],
        planned=state.get("max_steps", state["global_step"]),
        epochs=state["epoch"],
    )


def common_facts(recipe: AnyRecipe, record: RunRecord, fit_result: FitResult) -> dict[str, Any]:
    """Return what the report of any training shows: fields of `bertkit.reports.html.Facts`."""
    return {
        "name": recipe.name,
        "about": recipe.about,
        "command": record["command"],
        "seconds": record["seconds"],
        "peak_memory": record["peak_memory_bytes"],
        "device": Machine(**record["machine"]).summary,
        "history": fit_result.history,
        "best_step": fit_result.best_step,
    }


def wait_for_all() -> None:
    """Wait until all processes of a launch are here, so that they see the files that the main one has written."""
    if is_launched():
        from accelerate import PartialState

        PartialState().wait_for_everyone()


def _open_record(plan: RunPlan, fresh: bool, locks: ExitStack) -> RunRecord:
    """Claim and lock the folder, and write the record of a new run or of one that is resumed."""
    folder = plan.folder
    record = runs.claim(folder, plan.identity, fresh=fresh)
    if record is not None and record["status"] == "finished":
        return record
    locks.enter_context(runs.locked(folder))
    # what a killed process of the run did not come to delete or to rename
    for leftover in (folder / _STAGING, *folder.glob(".discarded-checkpoint-*")):
        shutil.rmtree(leftover, ignore_errors=True)
    for half_written in folder.glob(".*.json*.tmp"):
        half_written.unlink(missing_ok=True)
    with stage("loading torch and transformers"):
        import bertkit.training.fit  # noqa: F401
    if record is None:
        machine = find_machine(plan)
        machine.announce()
        record = runs.new_record(plan.identity, machine=asdict(machine), seconds=0.0, **plan.facts)
    else:
        before = record["machine"]
        threads = None if asked_threads() else before["threads"]
        machine = restore_hardware(before, "as before", threads)
        machine.announce(f"resuming {folder}; ")
        changes = runs.compare_identities(record["versions"], runs.versions())
        changes += runs.compare_identities(before, {**asdict(machine), "reason": before["reason"]})
        if changes:
            log.info(f"not bit-identical to an unbroken run: {'; '.join(map(str, changes))}")
        # the backend of before may not be exact on this machine; of another device, nothing holds but the precision
        backend = {**record["machine"], "matmul_backend": machine.matmul_backend}
        hardware = backend if machine.device == before["device"] else asdict(machine)
        resumed = [*record.get("resumed", []), runs.now()]
        record = {**record, "status": "running", "resumed": resumed, "machine": hardware}
        record.pop("error", None)  # of the process before, which this one may get over
    runs.write_record(folder, record)
    restart_peak_memory(record["machine"]["device"], collect=False)
    return record


def check_pinned(identity: Mapping[str, Any], pinned: Path) -> None:
    """Check that a run to come has the model, the tokenizer, the rows and the versions of another run.

    Args:
        identity: of the run to come.
        pinned: folder of the other run.

    Raises:
        DataError: the rows differ.
        ModelError: something else does, or there is no run in the folder.
    """
    record = runs.read_record(pinned)
    if record is None:
        raise ModelError("not a run folder, so it pins nothing", "name a folder with run.json", file=pinned)
    before = {**record["identity"], "recipe": {}, "versions": record["versions"]}
    changes = runs.compare_identities(before, {**identity, "recipe": {}, "versions": runs.versions()})
    if changes:
        what = f"differs from {pinned}: {'; '.join(map(str, changes))}"
        raise changed_inputs(changes, what, "restore what differs, or pin to another run")


def changed_inputs(changes: Sequence[Change], what: str, remedy: str) -> DataError | ModelError:
    """Return the error for inputs that have changed since a run: a DataError if only its rows have."""
    are_rows = all(change.key.startswith("data.") for change in changes)
    return (DataError if are_rows else ModelError)(what, remedy)


def find_machine(plan: RunPlan) -> Machine:
    """Return the machine that a new run computes on, and how."""
    if plan.machine is not None:
        return restore_hardware(dict(plan.machine), "as in another run", plan.machine["threads"])
    return detect_machine(plan.recipe.training.precision, plan.model_type, plan.widths)


@contextmanager
def _main_process_first() -> Iterator[None]:
    """Let the main process of a launch prepare the folder before the others look at it."""
    if not is_launched():
        yield
        return
    from accelerate import PartialState

    with PartialState(cpu=find_device().is_cpu).main_process_first():
        yield
