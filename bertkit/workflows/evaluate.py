"""Score a checkpoint: the path from a model to numbers that training, `eval` and `predict` share."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit import hub, models, runs
from bertkit.data.labels import match_names, name_split
from bertkit.data.rows import Split
from bertkit.data.sources import ALL, is_validation, read_splits
from bertkit.errors import DataError, ModelError, RecipeError
from bertkit.features import Feature, Setup
from bertkit.fingerprints import file_fingerprint
from bertkit.progress import SILENT, Progress
from bertkit.recipe import Recipe, closest
from bertkit.tasks import Prediction, Task, load_task

log = logging.getLogger("bertkit")


@dataclass(frozen=True)
class Result:
    """What a checkpoint scored on one split."""

    recipe: str
    model: str
    split: str
    scores: dict[str, float]
    rows: int
    seconds: float
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    baseline: dict[str, float] = field(default_factory=dict)
    folder: str | None = None
    source: str = ""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Scored:
    """The predictions of a split, with its features and scores."""

    predictions: list[Prediction]
    features: list[Feature]
    scores: dict[str, float]
    loss: float | None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint ready to predict."""

    model: Any
    setup: Setup
    precision: str


def evaluate(recipe: Recipe, *, split: str | None = None, progress: Progress = SILENT) -> list[Result]:
    """Score the checkpoint `recipe.model` on its recipe's validation splits, or on `split`.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    task = load_task(recipe)
    folder = hub.find_model(recipe.model)
    labels = checkpoint_labels(recipe, task, folder)
    record = runs.read_record(folder)
    splits = _splits_to_score(recipe, task, split, record)
    if task.NAMED:
        splits = {name: name_split(each, task.COLUMNS.gold, labels) for name, each in splits.items()}
    checkpoint = load_checkpoint(recipe, task, folder, labels)
    results = []
    for name, each in splits.items():
        start = time.perf_counter()
        scored = score_split(checkpoint.model, task, checkpoint.setup, each, checkpoint.precision, progress)
        intervals = find_intervals(task, checkpoint.setup, each, scored.predictions)
        seconds = time.perf_counter() - start
        results.append(
            Result(
                recipe.name,
                recipe.model,
                name,
                scored.scores,
                len(each.rows),
                seconds,
                intervals,
                source=each.source,
            )
        )
    return results


def score_split(
    model: Any,
    task: Task,
    setup: Setup,
    split: Split,
    precision: str,
    progress: Progress,
    features: list[Feature] | None = None,
) -> Scored:
    """Encode, run, decode and score the rows of a split."""
    features = features if features is not None else task.encode(split.rows, setup)
    outputs, loss = run_model(model, task, setup, features, precision, progress, f"scoring {split.name}")
    predictions = task.decode(outputs, features, split.rows, setup)
    return Scored(predictions, features, task.score(predictions, split.rows, setup), loss)


def run_model(
    model: Any,
    task: Task,
    setup: Setup,
    features: Sequence[Feature],
    precision: str,
    progress: Progress,
    what: str,
) -> tuple[list[Any], float | None]:
    """Run the model over features with a progress line; see `bertkit.training.forward.forward`."""
    from bertkit.training.forward import forward

    done = 0

    def tick(rows: int) -> None:
        nonlocal done
        done += rows
        progress.update(done, {})

    progress.start(what, len(features))
    try:
        return forward(model, features, task.collator(setup), precision=precision, tick=tick)
    finally:
        progress.finish()


def find_intervals(
    task: Task, setup: Setup, split: Split, predictions: Sequence[Prediction]
) -> dict[str, tuple[float, float]]:
    """Give a 95 % bootstrap interval over rows for each metric."""
    from bertkit.statistics import bootstrap_intervals

    return bootstrap_intervals(
        lambda rows: task.score([predictions[n] for n in rows], [split.rows[n] for n in rows], setup),
        len(split.rows),
    )


def checkpoint_labels(recipe: Recipe, task: Task, folder: Path) -> tuple[str, ...]:
    """Give label names in the order of the checkpoint's outputs, spelled as in the recipe where it names them.

    Raises:
        ModelError: an unfinished run, or names that do not match the recipe's.
    """
    record = runs.read_record(folder)
    if record is not None and record["status"] != "finished":
        raise ModelError(
            f"the run is not finished ({record['status']})",
            "repeat the command that started it, or name one of its checkpoint folders",
            file=folder,
        )
    config = models.read_config(folder)
    models.check_head(config, folder)
    if not task.NAMED:
        return ()
    names = (
        recipe.model_labels
        or models.label_names(config)
        or models.placeholder_names(len(config.get("id2label") or "ab"))
    )
    return tuple(match_names(names, recipe.labels) if recipe.labels else names)


def load_checkpoint(recipe: Recipe, task: Task, folder: Path, labels: tuple[str, ...]) -> Checkpoint:
    """Load a trained checkpoint with its tokenizer, in the precision its run was scored in.

    Raises:
        ModelError: it cannot be vouched for, or its head is not trained for this task.
    """
    record = runs.read_record(folder) or {}
    trained = record.get("identity", {}).get("recipe", {}).get("training", {})
    if trained.get("max_length", recipe.training.max_length) != recipe.training.max_length:
        log.info(f"trained with max_length {trained['max_length']}, used with {recipe.training.max_length}")
    from bertkit.precision import look_at_machine

    wanted = recipe.training.precision
    scored_in = record.get("machine", {}).get("precision")
    if wanted == "auto" and scored_in:
        machine = look_at_machine(scored_in, "as in its run")
    else:
        machine = look_at_machine(wanted, model_type=models.read_config(folder)["model_type"])
    log.info(machine.reason)
    setup = Setup(recipe, models.load_tokenizer(folder), labels)
    model = task.load_model(folder, setup, new_head=False)
    return Checkpoint(model.to(machine.device), setup, machine.precision)


def _splits_to_score(recipe: Recipe, task: Task, split: str | None, record: dict[str, Any] | None) -> dict[str, Split]:
    def read(row: Any) -> Any:
        return task.read(row, recipe)

    file = Path(recipe.data.source).expanduser()
    one_file = file.is_file() and recipe.data.split_column is None and not recipe.data.files
    if split is None and one_file and file_fingerprint(file) != (record or {}).get("parted_file"):
        split = ALL  # not the file the run held rows of out, so all of it is new
    found = read_splits(recipe, task.COLUMNS, read, is_validation if split is None else lambda name: name == split)
    if not found:
        raise DataError(f"no split {split or 'validation'!r} in {recipe.data.source}", "name one with --split")
    return found


def check_best_metric(recipe: Recipe, scores: dict[str, float]) -> None:
    """Check that a scoring gave the metric that is to choose the best checkpoint.

    Raises:
        RecipeError: it did not; the metrics there are, are given.
    """
    if recipe.best_metric not in scores:
        raise RecipeError(f"best_metric {recipe.best_metric!r} is not scored", closest(recipe.best_metric, scores))
