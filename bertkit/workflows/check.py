"""Check the rows of a dataset before a model is trained on them, and write a cleaned copy."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from bertkit.checks import Finding
from bertkit.checks.cleaning import find_removable, find_sources, write_copies
from bertkit.checks.label_errors import LabelError, find_label_errors
from bertkit.checks.lengths import find_lost_tokens
from bertkit.checks.reading import ReadResult, count_gold, describe_row_errors, find_label_problems, read_all
from bertkit.checks.repeats import find_repeats
from bertkit.checks.shortcuts import find_shift, find_shortcuts
from bertkit.data.checks import describe_skew
from bertkit.data.rows import get_unread_columns
from bertkit.errors import UnavailableError
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.progress import stage
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import expand_path
from bertkit.storage import hub
from bertkit.storage.outputs import lock_output_folder
from bertkit.tasks import Task, load_task
from bertkit.tokens.features import TaskContext
from bertkit.vectors.embedder import Embedder


@dataclass(frozen=True)
class CheckResult:
    """Findings about the rows, and checks that were left out."""

    recipe: str
    source: str
    rows: dict[str, int]
    """Split -> number of rows that can be read."""
    findings: list[Finding]
    left_out: list[str]
    """Checks that were left out, with the reason."""
    unavailable: list[str] = field(default_factory=list)
    """Checks that need a package or a model that is not available."""
    label_errors: list[LabelError] = field(default_factory=list)
    """Rows whose label may be wrong, the most likely errors first."""
    label_error_count: dict[str, int] = field(default_factory=dict)
    """Estimated number of wrong labels, ``expected``, with its interval, ``low`` and ``high``; may be empty."""
    unread: list[str] = field(default_factory=list)
    """Columns of the data that are not read."""
    removed: dict[str, int] = field(default_factory=dict)
    """Reason for which rows are not in the cleaned copy -> their number."""


def check(
    recipe: Recipe, *, label_errors: bool = False, fix: Path | None = None, needs_model: bool = False
) -> CheckResult:
    """Check all splits of a recipe's data, and continue after each fault.

    Args:
        recipe: Recipe with the data, the task and the model.
        label_errors: Whether to search for wrong labels, by vectors of the model.
        fix: New folder for a copy of the files without the rows that can be removed.
        needs_model: Whether a missing model is an error; otherwise the checks that need it are omitted.

    Raises:
        BertkitError: If the data cannot be read or the copy cannot be written; see `bertkit.errors`.
    """
    # 1. Lock the folder of the copy before the work starts.
    task = load_task(recipe)
    folder = None if fix is None else expand_path(fix)
    sources = {} if folder is None else find_sources(recipe.data, folder)
    with nullcontext() if folder is None else lock_output_folder(folder):
        # 2. Read all splits. A row that cannot be read becomes a finding, and the next row is read.
        with stage("reading the data", total=1):
            data = read_all(recipe, task)
        checked = CheckResult(
            recipe=recipe.name,
            source=recipe.data.source or "the recipe's files",
            rows={name: len(split.rows) for name, split in data.splits.items()},
            findings=[*describe_row_errors(data.row_errors), *data.findings],
            left_out=data.skipped_splits,
            unread=list(get_unread_columns(data.splits)),
        )
        # The following checks need splits with rows, and the train split.
        data.splits = {name: split for name, split in data.splits.items() if split.rows}
        if "train" not in data.splits:
            checked.left_out.append("everything else: no training row can be read")
            return checked

        # 3. Check the rows: gold values, labels, repeated rows, words that give the label away. The cheap checks come
        #    first; tokens need a tokenizer, and label errors the vectors of a model.
        with stage("comparing rows", total=1):
            repeats = find_repeats(data.splits, task.COLUMNS)
        splits, gold = data.splits, task.COLUMNS.gold
        for split in splits.values():
            texts = [f"{split.name}: {warning}" for warning in split.warnings]
            checked.findings.extend(Finding("warn", "labels", "odd_gold", text) for text in texts)
        if gold:
            checked.findings.extend(count_gold(splits, gold))
        if task.HAS_LABEL_NAMES:
            guessed_labels = () if recipe.labels else data.labels
            checked.findings.extend(find_label_problems(splits, gold, recipe.labels, guessed_labels))
            skew = describe_skew(splits["train"], gold, recipe.labels or data.labels, recipe)
            checked.findings.extend(Finding("warn", "labels", "skewed_labels", text) for text in skew)
        checked.findings.extend(repeats.findings)
        with stage("looking for shortcuts", total=1):
            checked.findings.extend(find_shortcuts(splits, task, recipe, data.labels))
            checked.findings.extend(find_shift(splits, task.COLUMNS))

        # 4. Check tokens and labels with the model.
        _check_tokens(checked, data, recipe, task, needs_model=needs_model)
        _check_labels(checked, data, recipe, task, is_requested=label_errors)

        # 5. Write the copy, without the rows that the checks found.
        if folder is not None:
            removable = find_removable(splits, repeats, data.row_errors)
            checked.removed.update(write_copies(sources, recipe.data, removable, folder))
        return checked


def _check_tokens(result: CheckResult, data: ReadResult, recipe: Recipe, task: Task, *, needs_model: bool) -> None:
    """Add the findings that need the tokenizer; only with `needs_model`, a missing model is an error."""
    try:
        with hub.without_weights():
            folder = hub.find_model(recipe.model)
        context = TaskContext(recipe, load_tokenizer(folder), data.labels)
    except UnavailableError as error:
        if needs_model:
            raise
        result.unavailable.append(f"tokens: {error.message}; name an available model with --model")
    else:
        with stage("counting tokens", total=1):
            result.findings.extend(find_lost_tokens(data.splits, task, context))


def _check_labels(result: CheckResult, data: ReadResult, recipe: Recipe, task: Task, *, is_requested: bool) -> None:
    """Add the label errors on request: the search computes vectors of all texts, which takes long."""
    if not is_requested:
        result.left_out.append("label errors: --label-errors searches for them, which computes vectors of all texts")
        return
    try:
        errors = find_label_errors(data.splits, task.COLUMNS, Embedder(recipe.model))
    except UnavailableError as error:
        result.unavailable.append(f"label errors: {error.message}; {error.remedy}")
        return
    if errors is None:
        result.left_out.append("label errors: the search needs a single label per row or word")
        return
    result.findings.append(errors.finding)
    result.label_errors.extend(errors.ranked)
    if errors.count is not None:
        result.label_error_count.update(errors.count._asdict())
