"""The rows of a recipe for its task family, and those that a model is trained on: noted, rejected or left out."""

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
"""How to handle rows to score that the model was trained on."""

_RECURRING = 0.1
"""Fraction of a named split whose texts can recur in training; 4% of CoNLL-2003's test rows do."""


def find_training_rows(
    splits: Mapping[str, Split], gold: str, models: Mapping[Path, str]
) -> tuple[dict[str, Split], Digests, list[str]]:
    """Find the rows that a run is trained on, or that its models were trained on before.

    Args:
        splits: ``train`` and the validation splits.
        gold: Column of gold answers.
        models: Folder -> name of the models that the run starts or learns from.

    Returns:
        the splits, with these rows marked; their digests; and a warning for each model that was trained on validation
        rows, unless these are training rows of this run too.
    """
    # Rows are identified by digests of their inputs; a second digest ignores case and whitespace.
    today = trained = digest_trained(splits["train"].rows, gold)
    warnings = []
    for folder, model in models.items():
        earlier = read_digests(folder)
        if earlier is None:
            continue
        trained = unique_digests(np.concatenate([trained, earlier]))
        # Rows that this run trains on too are marked below; here it is those that came with the model.
        for name in filter(is_validation, splits):
            split = mark_training_rows(splits[name], gold, earlier[~np.isin(earlier[:, 1], today[:, 1])])
            if split.training_rows:
                share = format_fraction(len(split.training_rows), len(split.rows))
                example = split.locate(min(split.training_rows))
                described = f"{share} {name} rows are rows that {model} was trained on, such as {example}."
                warnings.append(f"{described} Scores may be too high.")
    marked = {
        name: mark_training_rows(split, gold, trained) if is_validation(name) else split
        for name, split in splits.items()
    }
    return marked, trained, warnings


def count_trained(folders: Mapping[str, Path]) -> list[dict[str, str]]:
    """Count the texts that runs were trained on, and how many each shares with the first run, as a row of settings.

    The list is empty if all runs were trained on the same texts, or the texts of a run are unknown.
    """
    digests = {name: trained for name, folder in folders.items() if (trained := read_digests(folder)) is not None}
    first, *later = folders
    if len(digests) < len(folders) or all(np.array_equal(digests[name], digests[first]) for name in later):
        return []
    row = {"setting": "texts trained on", first: f"{len(digests[first]):,}"}
    for name in later:
        shared = np.intersect1d(digests[name][:, 0], digests[first][:, 0])
        row[name] = f"{len(digests[name]):,}, {len(shared):,} of them {first}'s"
    return [row]


def resolve_overlap(saved: CheckpointInfo, splits: Mapping[str, Split], on_overlap: OnOverlap) -> dict[str, Split]:
    """Return the splits to score with the rows marked that the checkpoint was trained on, or without them.

    What a run was validated on, it has been warned of, so eval scores it as training did.

    Raises:
        UsageError: If the on_overlap is unknown.
        DataError: If there are such rows and they may be neither scored nor dropped, or no other rows are left.
    """
    if on_overlap not in get_args(OnOverlap):
        raise UsageError(f"on_overlap is {on_overlap!r}", did_you_mean(on_overlap, get_args(OnOverlap)))
    trained = read_digests(saved.folder)
    if trained is None:
        # Silence would look like "no row was trained on", which is not known.
        if saved.record or (saved.folder / checkpoints.MANIFEST).is_file():
            log.info(f"{saved.folder} was pushed without its training rows: they are not noticed among those to score")
        return dict(splits)
    gold, data = saved.task.COLUMNS.gold, saved.record.get("identity", {}).get("data", {})
    validated = {fingerprint for name, fingerprint in data.items() if is_validation(name)}
    marked = {name: mark_training_rows(split, gold, trained) for name, split in splits.items()}
    return {name: _resolve_overlap(split, on_overlap, validated) for name, split in marked.items()}


def _resolve_overlap(split: Split, on_overlap: OnOverlap, validated: Collection[str]) -> Split:
    training_rows, count = split.training_rows, len(split.rows)
    # A benchmark's test split can share texts with its training split, and scores must stay comparable; rows of a file
    # that the user chose, or that bertkit held out, have no such excuse.
    is_named = not split.is_held_out and split.name not in (ALL, "train")
    message = f"{format_fraction(len(training_rows), count)} rows to score are training rows of the model"
    if fold_label := split.normalized_overlap_count:
        subject = f"{fold_label:,} of them " if fold_label < len(training_rows) else ""
        message += f" ({subject}if case and whitespace are ignored)"
    drop = "" if len(training_rows) == count else "leave these out (--on-overlap drop), "
    remedy = f"score others (--data FILE), {drop}or have their scores marked (--on-overlap mark)"
    is_refused = on_overlap == "error" and len(training_rows) > (_RECURRING * count if is_named else 0)
    if (is_refused and split.fingerprint() not in validated) or (on_overlap == "drop" and not drop):
        raise DataError(message, remedy, **split.locate(min(training_rows))._asdict())
    if on_overlap != "drop" or not training_rows:
        if fold_label:
            log.info(message)
        return split
    log.info(f"{message}: they are left out")
    return split.select(index for index in range(count) if index not in training_rows)


def splits_to_score(saved: CheckpointInfo, split: str | None, *, strict: bool = True) -> dict[str, Split]:
    """Read the splits to score, with gold values as the checkpoint's label names.

    Args:
        saved: Model.
        split: Name of the split; by default, the validation splits.
        strict: Reject labels that the checkpoint lacks. If the recipe declares the labels, they are always rejected.
    """
    recipe, task = saved.recipe, saved.task
    check_metrics(recipe, task.METRICS)  # Opening a model does not need them.
    file = find_unsplit_file(recipe.data)
    is_run_file = file is not None and split != ALL and file_fingerprint(file) == saved.record.get("split_file")
    if split is None and file and not is_run_file:
        split = ALL  # The run held out rows of another file, so all rows of this one are new.
    splits = read_task_splits(recipe, task, is_validation if split is None else lambda name: name == split)
    if not splits:
        remedy = "score a file with --data FILE, or leave out --split" if split else "name one with --split"
        raise DataError(f"no split {split or 'validation'!r} in {recipe.data.source}", remedy)
    if not task.HAS_LABEL_NAMES:
        return splits
    gold, named_splits = task.COLUMNS.gold, {}
    for name, rows in splits.items():
        labels: Sequence[str] = saved.labels
        if not recipe.labels:  # Declared labels define how they are counted.
            log_label_indices(rows.column(gold), labels)
            labels = labels if strict else add_unseen_names(labels, rows.column(gold))
        named_splits[name] = replace_raw_labels(rows, gold, labels, recipe.data, _label_remedy(saved, rows, gold))
    return named_splits


def _label_remedy(saved: CheckpointInfo, split: Split, gold: str) -> str:
    """Return the remedy for a label that the checkpoint lacks; the names of its outputs may be placeholders."""
    label_names = sorted({name for value in split.column(gold) for name in labels_to_strs(value)})
    outputs = len(saved.labels)
    if saved.recipe.labels or (len(label_names) != outputs and list(saved.labels) != make_placeholder_names(outputs)):
        return CORRECT_ROW
    names = list_names(label_names) if len(label_names) == outputs else "..."
    return f"if you know the meaning of its {outputs} outputs, name them in its order: --set 'model_labels=[{names}]'"


# --- Digests of training rows ---


def digest_trained(rows: Iterable[Row], gold: str) -> Digests:
    """Return two digests of each row that a run is trained on, (rows, 2); see `Digests`."""
    # The two versions of each row alternate, so the digests (2 * rows,) become (rows, 2).
    both_digests = digest_rows((version for row in rows for version in (row, _fold_texts(row))), gold)
    return both_digests.reshape(-1, 2)


def _fold_texts(value: object) -> Any:
    """Return a row whose texts are folded: without case, whitespace and forms of Unicode."""
    if isinstance(value, dict):
        return {name: _fold_texts(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_fold_texts(part) for part in value]
    return normalize(value) if isinstance(value, str) else value


def mark_training_rows(split: Split, gold: str, trained: Digests) -> Split:
    """Return a split that knows which of its rows have one of the digests, and how many only the second of two."""
    digests = digest_trained(split.rows, gold)
    # Column 0 is the digest of the exact row, and column 1 the digest without case and whitespace.
    is_same, is_alike = (np.isin(digests[:, column], trained[:, column]) for column in (0, 1))
    seen = np.flatnonzero(is_same | is_alike).tolist()
    return replace(split, training_rows=frozenset(seen), normalized_overlap_count=int((~is_same & is_alike).sum()))


def write_training_rows(folder: Path, trained: Digests) -> None:
    """Write the digests of the rows that a run is trained on into its folder, before anything is trained on them.

    They are sorted, eight bytes each. The main process alone writes them.
    """
    if runs.is_main_process():
        np.save(content := io.BytesIO(), unique_digests(trained), allow_pickle=False)
        write_bytes(folder / runs.TRAINING_ROWS, content.getvalue())


def unique_digests(trained: Digests) -> Digests:
    """Return digests sorted and without repetition: `numpy.unique` of rows takes several times as long and as much."""
    # [[2, 1], [1, 5], [2, 1]] is sorted to [[1, 5], [2, 1], [2, 1]]; a row is new if it differs from the row before it.
    ordered = trained[np.lexsort((trained[:, 1], trained[:, 0]))]
    is_new = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))[: len(ordered)]
    return np.asarray(ordered[is_new])


def read_digests(folder: Path) -> Digests | None:
    """Read the digests of a run, or of the run that a checkpoint belongs to, or return None without any.

    Raises:
        ModelError: If the file is damaged.
    """
    # A symbolic link to the last checkpoint has another name than the checkpoint.
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
