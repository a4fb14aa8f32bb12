"""Fine-tune an encoder as a recipe says: rows -> features -> fit -> predictions -> scores -> run folder."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertkit import hub, models, runs
from bertkit.data.files import file_fingerprint
from bertkit.data.rows import Split
from bertkit.data.sources import is_validation, read_splits
from bertkit.errors import BertkitError, DataError, DivergedError, ResourceError, StoppedError
from bertkit.features import Feature
from bertkit.metrics import LOWER_IS_BETTER
from bertkit.progress import Progress
from bertkit.recipe import Recipe, Row, write_yaml
from bertkit.tasks import Task, load_task
from bertkit.workflows.evaluate import Result, check_best_metric, find_labels, score_split

log = logging.getLogger("bertkit")

_NOT_IDENTITY = {
    "about",
    "published",
    "model",
}  # the model and the rows count by content, not by where they lie
_WHERE = {"source", "files", "config", "revision"}


@dataclass(frozen=True)
class Inputs:
    """All that is known before anything heavy is imported."""

    recipe: Recipe
    task: Task
    splits: dict[str, Split]
    labels: tuple[str, ...]
    model_folder: Path
    folder: Path
    identity: dict[str, Any]

    @property
    def validation(self) -> Split:
        """The split that chooses the best checkpoint."""
        return self.splits["validation"]


@dataclass(frozen=True)
class Plan:
    """What a run would do."""

    recipe: str
    model: str
    folder: str
    rows: dict[str, int]
    labels: list[str]
    steps: int
    disk_bytes: int
    resolved: str


def finetune(
    recipe: Recipe, *, output: str | Path | None = None, fresh: bool = False, progress: Progress
) -> list[Result]:
    """Fine-tune, or go on with the same run, or give the scores it already has: validation splits, the first leads.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    inputs = read_inputs(recipe, output)
    with ExitStack() as held:
        with _main_process_first():
            record = _open_run(inputs, fresh, held) if runs.is_main_process() else runs.read_record(inputs.folder)
        if record is None:
            raise ResourceError("the main process did not open the run", "see what it says", file=inputs.folder)
        if record["status"] == "finished":
            log.info(f"already finished on {record['finished']}; --fresh starts anew")
            return [Result(**result) for result in record["results"]]
        start = time.perf_counter() - record["seconds"]
        try:
            return _train_and_publish(inputs, record, start, progress)
        except BertkitError as error:
            status = {StoppedError: "stopped", DivergedError: "diverged"}.get(type(error), "failed")
            ended = {"status": status, "error": str(error), "seconds": round(time.perf_counter() - start, 3)}
            runs.write_record(inputs.folder, {**record, **ended})
            raise


def plan(recipe: Recipe, *, output: str | Path | None = None) -> Plan:
    """Check everything that can be checked without training, and tell what a run would do."""
    inputs = read_inputs(recipe, output)
    rows = {name: len(split.rows) for name, split in inputs.splits.items()}
    weights = sum(
        file.stat().st_size for file in inputs.model_folder.iterdir() if file.suffix in (".safetensors", ".bin")
    )
    steps = math.ceil(-(-rows["train"] // recipe.training.batch_size) * recipe.training.epochs)
    resolved = write_yaml(inputs.recipe.model_dump(mode="json", exclude_defaults=True))
    return Plan(
        recipe.name,
        recipe.model,
        str(inputs.folder),
        rows,
        list(inputs.labels),
        steps,
        7 * weights,  # the result, and weights with two moments in the best and the last checkpoint
        resolved,
    )


def read_inputs(recipe: Recipe, output: str | Path | None) -> Inputs:
    """Find the model, read and check the rows, and say what makes this run the one it is."""
    task = load_task(recipe)
    model_folder = hub.find_model(recipe.model)
    models.read_config(model_folder)

    def read(row: Row) -> Row:
        return task.read(row, recipe)

    splits = read_splits(recipe, task.COLUMNS, read, lambda name: name == "train" or is_validation(name))
    for wanted in ("train", "validation"):
        if wanted not in splits:
            there = ", ".join(splits) or "none"
            raise DataError(f"no {wanted} split (found: {there})", "name it in data.splits or data.files")
    labels, splits = find_labels(recipe, task, splits)
    settings = recipe.model_dump(mode="json", exclude=_NOT_IDENTITY)
    settings["data"] = {key: value for key, value in settings["data"].items() if key not in _WHERE}
    identity = {
        "recipe": settings,
        "data": {name: split.fingerprint() for name, split in splits.items()},
        "model": models.fingerprint(model_folder),
        "labels": list(labels),
    }
    folder = Path(output) if output else runs.default_folder(recipe.name)
    return Inputs(recipe, task, splits, labels, model_folder, folder, identity)


def _open_run(inputs: Inputs, fresh: bool, held: ExitStack) -> dict[str, Any]:
    """Claim and lock the folder, and write the record of a new run or of one that goes on."""
    record = runs.claim(inputs.folder, inputs.identity, fresh=fresh)
    if record is not None and record["status"] == "finished":
        return record
    held.enter_context(runs.locked(inputs.folder))
    from bertkit.precision import look_at_machine

    if record is None:
        machine = look_at_machine(inputs.recipe.training.precision)
        log.info(machine.reason)
        source = Path(inputs.recipe.data.source).expanduser()
        record = runs.new_record(
            inputs.identity,
            machine=asdict(machine),
            seconds=0.0,
            model=inputs.recipe.model,
            rows={name: len(split.rows) for name, split in inputs.splits.items()},
            parted_file=file_fingerprint(source) if source.is_file() else None,
        )
    else:
        machine = look_at_machine(record["machine"]["precision"], "as before")
        log.info(f"going on with {inputs.folder}; {machine.reason}")
        _say_what_changed(record, asdict(machine))
        record = {**record, "status": "running", "resumed": [*record.get("resumed", []), runs.now()]}
    runs.write_record(inputs.folder, record)
    return record


def _train_and_publish(inputs: Inputs, record: dict[str, Any], start: float, progress: Progress) -> list[Result]:
    from bertkit.features import Setup, window
    from bertkit.precision import Machine
    from bertkit.training.fit import fit
    from bertkit.training.losses import make_loss
    from bertkit.training.signals import caught_signals
    from bertkit.workflows.publish import publish

    recipe, task, training = inputs.recipe, inputs.task, inputs.splits["train"]
    machine = Machine(**record["machine"])
    setup = Setup(recipe, models.load_tokenizer(inputs.model_folder), inputs.labels)
    baseline = {
        name: task.score(task.baseline(training.rows, split.rows, setup), split.rows, setup)
        for name, split in inputs.splits.items()
        if is_validation(name)
    }
    check_best_metric(recipe, baseline[inputs.validation.name])
    _seed(recipe.training.seed)
    model = task.load_model(inputs.model_folder, setup, new_head=True)
    if model.bertkit_new_head:
        log.info("the head is new: it starts from random weights")
    features = {name: task.encode(split.rows, setup) for name, split in inputs.splits.items()}
    _say_what_is_cut(features["train"], window(setup))

    def score(trained: Any) -> dict[str, float]:
        name = inputs.validation.name
        scored = score_split(trained, task, setup, inputs.splits[name], machine.precision, progress, features[name])
        return {"loss": scored.loss if scored.loss is not None else math.nan, **scored.scores}

    with caught_signals() as stop:
        fitted = fit(
            model,
            setup.tokenizer,
            features["train"],
            task.collator(setup),
            recipe.training,
            machine,
            inputs.folder,
            best_metric=recipe.best_metric,
            greater_is_better=recipe.best_metric not in LOWER_IS_BETTER,
            evaluate=score,
            loss=make_loss(recipe.training, inputs.labels, [row[task.COLUMNS.gold] for row in training.rows]),
            stop=stop,
            progress=progress,
        )
    scored = {
        name: score_split(model, task, setup, inputs.splits[name], machine.precision, progress, features[name])
        for name in baseline
    }
    return publish(inputs, record, fitted, model, setup, scored, baseline, time.perf_counter() - start)


def _say_what_is_cut(features: list[Feature], longest: int) -> None:
    full = sum(len(feature["input_ids"]) >= longest for feature in features)
    if full:
        share = 100 * full / len(features)
        log.info(f"{full:,} training rows ({share:.1f} %) fill all {longest} pieces: what is longer is cut")


def _seed(seed: int) -> None:
    from transformers import set_seed

    set_seed(seed)  # a new head is drawn from it


def _say_what_changed(record: dict[str, Any], machine: dict[str, Any]) -> None:
    changed = runs.differences(record["versions"], runs.versions())
    changed += runs.differences(record["machine"], {**machine, "reason": record["machine"]["reason"]})
    if changed:
        log.info(f"not bit-identical to an unbroken run: {'; '.join(changed)}")


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
