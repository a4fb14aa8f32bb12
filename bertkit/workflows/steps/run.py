"""A run from its first claim on a folder to its last record: what it is, how it is opened, and how it finishes."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import BertkitError, DivergedError, ResourceError, StoppedError
from bertkit.hardware.precision import Machine, restore_hardware
from bertkit.modeling.architectures import detect_machine
from bertkit.recipe import PretrainRecipe, Recipe, write_yaml
from bertkit.storage import runs

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from bertkit.training.fit import FitResult

log = logging.getLogger("bertkit")


@dataclass(frozen=True)
class RunPlan:
    """What a run is, known before anything heavy is imported."""

    recipe: Recipe | PretrainRecipe
    folder: Path
    identity: Mapping[str, Any]
    """What makes it the run it is: resolved recipe, and data, model and labels by content."""
    facts: Mapping[str, Any]
    """What its record holds beside."""
    model_type: str
    """Of the model it starts from; not every type can be computed in every precision."""


@dataclass(frozen=True)
class Run:
    """An open run: its record, and the time it started at, earlier sessions included."""

    plan: RunPlan
    record: dict[str, Any]
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
            record = _open(plan, fresh, locks) if runs.is_main_process() else runs.read_record(plan.folder)
        if record is None:
            raise ResourceError("the main process did not open the run", "see its error message", file=plan.folder)
        if record["status"] == "finished":
            log.info(f"already finished on {record['finished']}; --fresh starts over")
        run = Run(plan, record, time.perf_counter() - record["seconds"])
        try:
            yield run
        except BertkitError as error:
            status = {StoppedError: "stopped", DivergedError: "diverged"}.get(type(error), "failed")
            ending = {"status": status, "error": str(error), "seconds": round(run.seconds, 3)}
            runs.write_record(plan.folder, {**record, **ending})
            raise


def export_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path, subfolder: str = "") -> None:
    """Write a plain checkpoint into a run's folder or a subfolder of it, file by file, so that none is half written."""
    staging = folder / ".export"
    shutil.rmtree(staging, ignore_errors=True)
    model.save_pretrained(staging)
    tokenizer.save_pretrained(staging)
    (folder / subfolder).mkdir(exist_ok=True)
    for file in sorted(staging.iterdir()):
        file.chmod((folder / runs.RECORD).stat().st_mode)  # safetensors creates files that only their owner can read
        file.replace(folder / subfolder / file.name)
    staging.rmdir()


def write_settings(run: Run, recipe: Recipe | PretrainRecipe, fit_result: FitResult) -> None:
    """Write the resolved recipe and the state of the Trainer into a run's folder."""
    write_yaml(recipe.model_dump(mode="json", exclude_defaults=True), run.plan.folder / "recipe.yaml")
    if fit_result.last is not None:
        shutil.copyfile(fit_result.last / "trainer_state.json", run.plan.folder / "trainer_state.json")


def finished_record(run: Run, fit_result: FitResult, seconds: float, **facts: Any) -> dict[str, Any]:
    """Return the record of a finished run; it is written last of all, when everything else is in the folder."""
    return {
        **run.record,
        "status": "finished",
        "finished": runs.now(),
        "seconds": seconds,
        "steps": fit_result.steps,
        "best_step": fit_result.best_step,
        "best_checkpoint": fit_result.best.name if fit_result.best else None,
        **facts,
    }


def wait_for_all() -> None:
    """Wait until all processes of a launch are here, so that they see the files that the main one has written."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import PartialState

        PartialState().wait_for_everyone()


def _open(plan: RunPlan, fresh: bool, locks: ExitStack) -> dict[str, Any]:
    """Claim and lock the folder, and write the record of a new run or of one that is resumed."""
    folder = plan.folder
    record = runs.claim(folder, plan.identity, fresh=fresh)
    if record is not None and record["status"] == "finished":
        return record
    locks.enter_context(runs.locked(folder))
    if record is None:
        machine = detect_machine(plan.recipe.training.precision, plan.model_type)
        log.info(machine.reason)
        record = runs.new_record(plan.identity, machine=asdict(machine), seconds=0.0, **plan.facts)
    else:
        machine = restore_hardware(record["machine"], "as before")
        log.info(f"resuming {folder}; {machine.reason}")
        _report_changes(record, asdict(machine))
        # the backend of before may not be exact on this machine
        hardware = {**record["machine"], "matmul_backend": machine.matmul_backend}
        resumed = [*record.get("resumed", []), runs.now()]
        record = {**record, "status": "running", "resumed": resumed, "machine": hardware}
    runs.write_record(folder, record)
    return record


def _report_changes(record: dict[str, Any], machine: dict[str, Any]) -> None:
    changes = runs.differences(record["versions"], runs.versions())
    changes += runs.differences(record["machine"], {**machine, "reason": record["machine"]["reason"]})
    if changes:
        log.info(f"not bit-identical to an unbroken run: {'; '.join(changes)}")


@contextmanager
def _main_process_first() -> Iterator[None]:
    """Let the main process of a launch prepare the folder before the others look at it."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    import torch
    from accelerate import PartialState

    with PartialState(cpu=not torch.cuda.is_available()).main_process_first():
        yield
