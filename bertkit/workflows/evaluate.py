"""Score a checkpoint: the path from a model to numbers that training, `eval` and `predict` share."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit import hub, models, runs
from bertkit.data.labels import match_names, name_split
from bertkit.data.output_files import write_records
from bertkit.data.rows import Split
from bertkit.data.sources import ALL, is_validation, read_splits
from bertkit.errors import DataError, ModelError, RecipeError, ResourceError
from bertkit.features import Feature, Setup
from bertkit.fingerprints import file_fingerprint
from bertkit.progress import SILENT, Progress
from bertkit.recipe import Recipe, closest
from bertkit.tasks import Compared, Details, Prediction, Task, load_task, shown, with_options

if TYPE_CHECKING:
    from bertkit.precision import Machine

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
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Scored:
    """The predictions of a split, with its features and scores; `setup` has the options that were tuned on it."""

    predictions: list[Prediction]
    features: Sequence[Feature]
    compared: Compared
    scores: dict[str, float]
    loss: float | None
    setup: Setup


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint ready to predict."""

    model: Any
    setup: Setup
    precision: str


def evaluate(
    recipe: Recipe,
    *,
    split: str | None = None,
    output: Path | None = None,
    progress: Progress = SILENT,
) -> list[Result]:
    """Score the checkpoint `recipe.model` on its recipe's validation splits, or on `split`.

    With `output`, a folder, predictions are written there under the names they have in a run folder.

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
    if output is not None:
        _make_folder(output)
    checkpoint = load_checkpoint(recipe, task, folder, labels)
    results = []
    for name, each in splits.items():
        start = time.perf_counter()
        scored = score_split(checkpoint.model, task, checkpoint.setup, each, checkpoint.precision, progress)
        details = task.details(scored.predictions, each.rows, checkpoint.setup)
        intervals = find_intervals(task, scored)
        seconds = time.perf_counter() - start
        if output is not None and runs.is_main_process():
            write_predictions(output, each, scored.predictions, details)
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
                warnings=details.warnings,
                tables=details.tables,
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
    features: Sequence[Feature] | None = None,
    tune: bool = False,
) -> Scored:
    """Encode, run, decode and score the rows of a split; with `tune`, after tuning the task's options on it."""
    from bertkit.encoded import encode_split

    features = features if features is not None else encode_split(split, setup, task.encode)
    outputs, loss = run_model(model, task, setup, features, precision, progress, f"scoring {split.name}")
    predictions = task.decode(outputs, features, split.rows, setup)
    tuned = task.tune(predictions, split.rows, setup) if tune else {}
    if tuned:
        setup = with_options(setup, tuned)
        predictions = task.decode(outputs, features, split.rows, setup)
    compared = task.compare(predictions, split.rows, setup)
    return Scored(predictions, features, compared, task.score(compared, setup), loss, setup)


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


def find_intervals(task: Task, scored: Scored) -> dict[str, tuple[float, float]]:
    """Give a 95 % bootstrap interval over rows for each metric."""
    from bertkit.statistics import bootstrap_intervals

    def score(rows: Any) -> dict[str, float]:
        return task.score({name: values[rows] for name, values in scored.compared.items()}, scored.setup)

    return bootstrap_intervals(score, len(scored.predictions))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"not a folder to write to: {error.strerror}", "choose another --output", file=folder
        ) from None


def suffix_of(split: str) -> str:
    """Give what tells a split's files and scores from those of ``validation``.

    >>> suffix_of("validation"), suffix_of("validation_mismatched"), suffix_of("test")
    ('', '_mismatched', '_test')
    """
    rest = split.removeprefix("validation")
    return rest if rest.startswith("_") or not rest else f"_{rest}"


def write_predictions(folder: Path, split: Split, predictions: Sequence[Prediction], details: Details) -> None:
    """Write predictions.jsonl, and what other files the task family makes of the predictions of a split."""
    suffix = suffix_of(split.name)
    records = (
        {"id": row.get("id", number), **row, **shown(prediction)}
        for number, (row, prediction) in enumerate(zip(split.rows, predictions, strict=True))
    )
    write_records(records, folder / f"predictions{suffix}.jsonl")
    for name, content in details.files.items():
        file = folder / name
        runs.write_json(file.with_stem(f"{file.stem}{suffix}"), content)


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


def load_checkpoint(
    recipe: Recipe, task: Task, folder: Path, labels: tuple[str, ...], machine: Machine | None = None
) -> Checkpoint:
    """Load a trained checkpoint with its tokenizer, for a machine, or in the precision its run was scored in.

    Raises:
        ModelError: it cannot be vouched for, or its head is not trained for this task.
    """
    record = runs.read_record(folder) or {}
    trained = record.get("identity", {}).get("recipe", {}).get("training", {})
    if trained.get("max_length", recipe.training.max_length) != recipe.training.max_length:
        log.info(f"trained with max_length {trained['max_length']}, used with {recipe.training.max_length}")
    from bertkit.precision import look_again, look_at_machine, multiply_as

    if machine is None:
        if recipe.training.precision == "auto" and "machine" in record:
            machine = look_again(record["machine"], "as in its run")
        else:
            machine = look_at_machine(recipe.training.precision, models.read_config(folder)["model_type"])
        log.info(machine.reason)
    multiply_as(machine)
    setup = Setup(recipe, models.load_tokenizer(folder), labels)
    tuned = {name: value for name, value in record.get("tuned", {}).items() if name not in recipe.options}
    if tuned:
        log.info(f"as tuned in its run: {', '.join(f'{name} {value:.4g}' for name, value in tuned.items())}")
    setup = with_options(setup, tuned)
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
