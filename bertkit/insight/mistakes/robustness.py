"""Answers to rows that are changed a little, and how many of them flip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bertkit.data.rows import Columns
from bertkit.errors import DataError, shorten
from bertkit.evaluation.checkpoint import find_checkpoint
from bertkit.evaluation.differences import as_text
from bertkit.evaluation.scoring import run_model
from bertkit.insight.mistakes.edits import EDITS, Edit, apply_edit
from bertkit.metrics.intervals import wilson_interval
from bertkit.metrics.linear import sample
from bertkit.progress import SILENT, Progress, stage
from bertkit.recipe import Recipe, Row
from bertkit.tasks import Prediction

_MOVED = 0.1  # of the range of the answers: a number that moves by more counts as flipped
_SHOWN = 5


@dataclass(frozen=True)
class Flip:
    """A row whose answer a change has flipped."""

    id: str
    before: str
    after: str
    answer: str
    new_answer: str


@dataclass(frozen=True)
class EditResult:
    """What one kind of change did to the answers."""

    edit: str
    may_flip: bool
    """Whether the right answer may change, too."""
    rows: int
    """Rows that it changes."""
    flipped: int
    share: float
    interval: tuple[float, float]
    lost: int
    """Answers that were right and are not any more, where the right answer stays and can be told."""
    won: int
    flips: list[Flip] = field(default_factory=list)
    """The first few."""


@dataclass(frozen=True)
class Robustness:
    """What small changes did to the answers."""

    rows: int
    column: str
    """The input that was changed."""
    edits: list[EditResult]
    left_out: list[str]
    """Changes that fit no row."""


def measure_robustness(
    recipe: Recipe, rows: Sequence[Row], *, limit: int = 500, seed: int = 0, progress: Progress = SILENT
) -> Robustness:
    """Change the first input of rows in each way, predict them again, and count the answers that flip.

    An answer flips if it is another label, span or tag sequence, or a number that moves by more than a tenth of the
    range of all answers. The draws of a row depend on the seed and its number alone.

    Args:
        recipe: whose model is the run.
        rows: with canonical columns.
        limit: how many rows are changed, evenly chosen.
        seed: of the changes.
        progress: shows how far the work is.

    Raises:
        DataError: the rows have no text to change.
        BertkitError: the model cannot be loaded; see `bertkit.errors`.
    """
    saved = find_checkpoint(recipe)
    columns, gold = saved.task.COLUMNS, saved.task.COLUMNS.gold
    chosen = sample(range(len(rows)), limit)
    column = _find_column(columns, rows[0])
    plans = {edit: _plan_edit(edit, rows, chosen, column, seed) for edit in EDITS}
    with stage(progress, f"loading {recipe.model_name}"):
        checkpoint = saved.load(inference=True)
    # rows are predicted without their gold values; all changed rows in one pass, so that they are sorted by length
    bare = [_without(rows[number], gold) for number in chosen]
    changed = [{**_without(rows[number], gold), column: value} for plan in plans.values() for number, value in plan]
    features = checkpoint.task.encode([*bare, *changed], checkpoint.setup)
    outputs, _ = run_model(checkpoint, features, progress, "predicting changed rows")
    answers = checkpoint.task.decode(outputs, features, [*bare, *changed], checkpoint.setup)
    before = dict(zip(chosen, answers, strict=False))
    rest = iter(answers[len(bare) :])
    threshold = _threshold(answers)
    results = []
    for edit, plan in plans.items():
        if not plan:
            continue
        found = [(number, value, next(rest)) for number, value in plan]
        results.append(_sum_up(edit, found, rows, before, column, gold, threshold))
    return Robustness(len(chosen), column, results, [edit.name for edit, plan in plans.items() if not plan])


def _find_column(columns: Columns, row: Row) -> str:
    names = [*columns.given, *columns.text_instead.values()]
    for name in names:
        value = row.get(name)
        if isinstance(value, str) or (isinstance(value, list) and all(isinstance(word, str) for word in value)):
            return name
    raise DataError("the rows have no text to change", "leave --robustness out")


def _plan_edit(
    edit: Edit, rows: Sequence[Row], chosen: Sequence[int], column: str, seed: int
) -> list[tuple[int, str | list[str]]]:
    """Return the numbers of the rows that an edit changes, with the changed value."""
    plan = []
    for number in chosen:
        row = rows[number]
        value = apply_edit(edit, row[column], Random(f"{seed} {edit.name} {number}"))
        # what points into a text by characters must still point there
        if value is not None and ("target" not in row or isinstance(value, list) or len(value) == len(row[column])):
            plan.append((number, value))
    return plan


def _without(row: Row, gold: str) -> Row:
    return {name: value for name, value in row.items() if name != gold}


def _threshold(answers: Sequence[Prediction]) -> float | None:
    """Return how far a number must move to count as flipped; None where answers are no numbers."""
    values = [answer["prediction"] for answer in answers]
    if not all(isinstance(value, float) for value in values):
        return None
    return float(_MOVED * (max(values) - min(values)))


def _sum_up(
    edit: Edit,
    found: Sequence[tuple[int, Any, Prediction]],
    rows: Sequence[Row],
    before: dict[int, Prediction],
    column: str,
    gold: str,
    threshold: float | None,
) -> EditResult:
    flips, lost, won = [], 0, 0
    for number, value, answer in found:
        old, new, right = before[number]["prediction"], answer["prediction"], rows[number].get(gold)
        is_flipped = old != new if threshold is None else abs(old - new) > threshold
        if not is_flipped:
            continue
        lost, won = lost + (old == right), won + (new == right)
        flips.append(
            Flip(
                id=str(rows[number].get("id", number)),
                before=shorten(as_text(rows[number][column]), 200),
                after=shorten(as_text(value), 200),
                answer=shorten(as_text(old)),
                new_answer=shorten(as_text(new)),
            )
        )
    count = len(found)
    return EditResult(
        edit=edit.name,
        may_flip=edit.may_flip,
        rows=count,
        flipped=len(flips),
        share=len(flips) / count,
        interval=wilson_interval(len(flips), count),
        lost=lost,
        won=won,
        flips=flips[:_SHOWN],
    )
