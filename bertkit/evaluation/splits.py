"""Splits of a recipe, and their overlap with the training rows of a model: marked, rejected or left out."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from bertkit.data.checks import format_fraction
from bertkit.data.columns import ColumnSpec
from bertkit.data.labels import (
    CORRECT_ROW,
    add_unseen_names,
    labels_to_strs,
    list_names,
    log_label_indices,
    make_placeholder_names,
    replace_raw_labels,
)
from bertkit.data.rows import Digests, Split, digest_rows
from bertkit.data.sources import ALL, ChooseSplit, find_unsplit_file, is_validation, read_splits
from bertkit.data.text import normalize
from bertkit.errors import DataError, ModelError, UsageError, did_you_mean, error_location
from bertkit.evaluation.checkpoint import CheckpointInfo
from bertkit.metrics.registry import check_metrics
from bertkit.progress import log
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import Row
from bertkit.storage import checkpoints, runs
from bertkit.storage.cache import log_once
from bertkit.storage.files import write_bytes
from bertkit.storage.fingerprints import file_fingerprint
from bertkit.tasks import Task


def read_task_splits(
    recipe: Recipe,
    task: Task,
    choose: ChooseSplit,
    *,
    columns: ColumnSpec | None = None,
    check_rest: bool = False,
    row_errors: list[DataError] | None = None,
) -> dict[str, Split]:
    """Read splits with the columns, the checks and the warnings of a task family; see `read_splits`."""
    splits = read_splits(
        recipe,
        columns or task.COLUMNS,
        lambda row: task.read(row, recipe),
        choose,
        has_label_names=task.HAS_LABEL_NAMES,
        check_rest=check_rest,
        row_errors=row_errors,
    )
    if task.check_training and "train" in splits:
        task.check_training(splits["train"], recipe)
    if task.find_row_warnings is None:
        return splits
    for name, split in splits.items():
        with error_location(file=split.source):
            warnings = task.find_row_warnings(split.rows, recipe)
        for warning in warnings:
            log_once(f"warning: {split.source}: {warning}")
        splits[name] = replace(split, warnings=(*split.warnings, *warnings))
    return splits


OnOverlap = Literal["error", "drop", "mark"]
"""Handling of rows that are scored and that the model was trained on."""

_MAX_RECURRING = 0.1
"""Largest accepted overlap of a predefined split with training rows; 4% of CoNLL-2003's test rows overlap."""


def find_training_rows(
    splits: Mapping[str, Split], gold: str, models: Mapping[Path, str]
) -> tuple[dict[str, Split], Digests, list[str]]:
    """Find the validation rows that a run is trained on, or that its initial models or teachers were trained on.

    Args:
        splits: ``train`` and the validation splits.
        gold: Column of gold answers.
        models: Folder -> name of the models that the run starts or learns from.

    Returns:
        The splits with these rows marked, the digests of all training rows, and a warning for each model that was
        trained on validation rows, unless this run is trained on the same rows.
    """
    run_digests = all_digests = digest_training_rows(splits["train"].rows, gold)
    warnings = []
    for folder, model in models.items():
        model_digests = read_digests(folder)
        if model_digests is None:
            continue
        all_digests = unique_digests(np.concatenate([all_digests, model_digests]))
        # Warn only of rows that this run is not trained on; all of them are marked below.
        for name in filter(is_validation, splits):
            is_new = ~np.isin(model_digests[:, 1], run_digests[:, 1])
            split = mark_training_rows(splits[name], gold, model_digests[is_new])
            if split.training_rows:
                fraction = format_fraction(len(split.training_rows), len(split.rows))
                example = split.locate(min(split.training_rows))
                overlap = f"{fraction} {name} rows are rows that {model} was trained on, such as {example}."
                warnings.append(f"{overlap} Scores may be too high.")
    marked_splits = {
        name: mark_training_rows(split, gold, all_digests) if is_validation(name) else split
        for name, split in splits.items()
    }
    return marked_splits, all_digests, warnings


def count_training_texts(folders: Mapping[str, Path]) -> list[dict[str, str]]:
    """Count the texts that runs were trained on, and how many each run shares with the first, as a row of a table.

    The list is empty if all runs were trained on the same texts, or the texts of a run are unknown.
    """
    digests = {name: texts for name, folder in folders.items() if (texts := read_digests(folder)) is not None}
    first, *other_names = folders
    if len(digests) < len(folders) or all(np.array_equal(digests[name], digests[first]) for name in other_names):
        return []
    row = {"setting": "texts trained on", first: f"{len(digests[first]):,}"}
    for name in other_names:
        shared_texts = np.intersect1d(digests[name][:, 0], digests[first][:, 0])
        row[name] = f"{len(digests[name]):,}, {len(shared_texts):,} of them {first}'s"
    return [row]


def resolve_overlap(info: CheckpointInfo, splits: Mapping[str, Split], on_overlap: OnOverlap) -> dict[str, Split]:
    """Mark, drop or reject rows that the checkpoint was trained on, and return the splits to score.

    Splits that the run was validated on are never rejected, because training has scored them and warned of overlap.

    Raises:
        UsageError: If `on_overlap` is unknown.
        DataError: If overlap is an error, or `drop` would leave no rows.
    """
    if on_overlap not in get_args(OnOverlap):
        raise UsageError(f"on_overlap is {on_overlap!r}", did_you_mean(on_overlap, get_args(OnOverlap)))
    known_digests = read_digests(info.folder)
    if known_digests is None:
        if info.record or (info.folder / checkpoints.MANIFEST).is_file():
            log.info(f"{info.folder} was pushed without its training rows, so overlap with the scored rows is unknown")
        return dict(splits)
    gold, data = info.task.COLUMNS.gold, info.record.get("identity", {}).get("data", {})
    fingerprints = {fingerprint for name, fingerprint in data.items() if is_validation(name)}
    marked_splits = {name: mark_training_rows(split, gold, known_digests) for name, split in splits.items()}
    return {name: _resolve_overlap(split, on_overlap, fingerprints) for name, split in marked_splits.items()}


def _resolve_overlap(split: Split, on_overlap: OnOverlap, fingerprints: Collection[str]) -> Split:
    training_rows, count = split.training_rows, len(split.rows)
    # Some benchmarks share texts between training and test split, but their scores must stay comparable. Any overlap is
    # an error for rows that the user selected or bertkit held out.
    is_predefined = not split.is_held_out and split.name not in (ALL, "train")
    message = f"{format_fraction(len(training_rows), count)} rows to score are training rows of the model"
    if similar_count := split.normalized_overlap_count:
        subject = f"{similar_count:,} of them " if similar_count < len(training_rows) else ""
        message += f" ({subject}if case and whitespace are ignored)"
    drop_hint = "" if len(training_rows) == count else "leave these out (--on-overlap drop), "
    remedy = f"score other rows (--data FILE), {drop_hint}or mark them (--on-overlap mark)"
    is_error = on_overlap == "error" and len(training_rows) > (_MAX_RECURRING * count if is_predefined else 0)
    if (is_error and split.fingerprint() not in fingerprints) or (on_overlap == "drop" and not drop_hint):
        raise DataError(message, remedy, **split.locate(min(training_rows))._asdict())
    if on_overlap != "drop" or not training_rows:
        if similar_count:
            log.info(message)
        return split
    log.info(f"{message}: they are left out")
    return split.select(index for index in range(count) if index not in training_rows)


def splits_to_score(info: CheckpointInfo, split: str | None, *, strict: bool = True) -> dict[str, Split]:
    """Read the splits to score, with gold values as label names of the checkpoint.

    Args:
        info: Checkpoint to score.
        split: Name of the split; by default, the validation splits.
        strict: Whether to reject labels that the checkpoint lacks; always true if the recipe declares the labels.
    """
    recipe, task = info.recipe, info.task
    check_metrics(recipe, task.METRICS)
    file = find_unsplit_file(recipe.data)
    is_run_file = file is not None and split != ALL and file_fingerprint(file) == info.record.get("split_file")
    if split is None and file and not is_run_file:
        split = ALL  # the run held out rows of another file, so all rows of this file are new
    splits = read_task_splits(recipe, task, is_validation if split is None else lambda name: name == split)
    if not splits:
        remedy = "score a file with --data FILE, or leave out --split" if split else "name one with --split"
        raise DataError(f"no split {split or 'validation'!r} in {recipe.data.source}", remedy)
    if not task.HAS_LABEL_NAMES:
        return splits
    gold, named_splits = task.COLUMNS.gold, {}
    for name, rows in splits.items():
        labels: Sequence[str] = info.labels
        if not recipe.labels:
            log_label_indices(rows.column(gold), labels)
            labels = labels if strict else add_unseen_names(labels, rows.column(gold))
        named_splits[name] = replace_raw_labels(rows, gold, labels, recipe.data, _label_remedy(info, rows, gold))
    return named_splits


def _label_remedy(info: CheckpointInfo, split: Split, gold: str) -> str:
    """Return the remedy for a label that the checkpoint lacks; its label names can be placeholders."""
    label_names = sorted({name for value in split.column(gold) for name in labels_to_strs(value)})
    outputs = len(info.labels)
    if info.recipe.labels or (len(label_names) != outputs and list(info.labels) != make_placeholder_names(outputs)):
        return CORRECT_ROW
    names = list_names(label_names) if len(label_names) == outputs else "..."
    return f"if you know what its {outputs} outputs mean, list them in this order: --set 'model_labels=[{names}]'"


# --- Digests of training rows ---


def digest_training_rows(rows: Iterable[Row], gold: str) -> Digests:
    """Return digests of each row and of its folded texts, shape (rows, 2); see `Digests`."""
    # The versions of a row follow each other, so the shape is (2 * rows,) and becomes (rows, 2).
    both_digests = digest_rows((version for row in rows for version in (row, _fold_texts(row))), gold)
    return both_digests.reshape(-1, 2)


def _fold_texts(value: object) -> Any:
    """Return a row whose texts are folded: differences of case, whitespace and Unicode forms are removed."""
    if isinstance(value, dict):
        return {name: _fold_texts(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_fold_texts(part) for part in value]
    return normalize(value) if isinstance(value, str) else value


def mark_training_rows(split: Split, gold: str, known_digests: Digests) -> Split:
    """Mark the rows of a split that are training rows, also if they differ in case or whitespace."""
    digests = digest_training_rows(split.rows, gold)
    # Column 0 has the digests of exact rows, column 1 the digests of folded texts.
    is_same, is_alike = (np.isin(digests[:, column], known_digests[:, column]) for column in (0, 1))
    matches = np.flatnonzero(is_same | is_alike).tolist()
    return replace(split, training_rows=frozenset(matches), normalized_overlap_count=int((~is_same & is_alike).sum()))


def write_training_rows(folder: Path, digests: Digests) -> None:
    """Write the sorted digests of training rows into the folder of a run; only the main process writes.

    They must be written before the training starts, so that an interrupted run has them.
    """
    if runs.is_main_process():
        np.save(content := io.BytesIO(), unique_digests(digests), allow_pickle=False)
        write_bytes(folder / runs.TRAINING_ROWS, content.getvalue())


def unique_digests(digests: Digests) -> Digests:
    """Return sorted digests without repetition, several times faster than `numpy.unique` of rows."""
    # [[2, 1], [1, 5], [2, 1]] is sorted to [[1, 5], [2, 1], [2, 1]]; a row is new if it differs from the previous row.
    rows = digests[np.lexsort((digests[:, 1], digests[:, 0]))]
    is_new = np.append(True, (rows[1:] != rows[:-1]).any(axis=1))[: len(rows)]
    return np.asarray(rows[is_new])


def read_digests(folder: Path) -> Digests | None:
    """Read the digests of a run's training rows, given the folder of the run or of its checkpoint, or return None.

    Raises:
        ModelError: If the file is damaged.
    """
    # Resolve symbolic links, because a link to a checkpoint can have any name.
    folder = folder.resolve()
    file = (folder.parent if folder.name.startswith("checkpoint-") else folder) / runs.TRAINING_ROWS
    if not file.is_file():
        return None
    try:
        with file.open("rb") as stream:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
    except ValueError:
        remedy = "restore the file or delete it"
        raise ModelError("the digests of the training rows are damaged", remedy, file=file) from None
