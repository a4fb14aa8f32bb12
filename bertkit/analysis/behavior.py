"""Tests of a model's behavior, after CheckList (Ribeiro et al. 2020, section 2): answers, invariances and directions.

A test has rows that must have an answer, or rows that are changed: then the answer must stay, or the probability of a
label must rise or fall. A row counts once, and a test fails if more rows fail than it allows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from bertkit.analysis.edits import EDITS, Change, add_text, apply_edit, exchange_words, replace_words
from bertkit.analysis.outcomes import find_outcomes
from bertkit.data.columns import ColumnSpec
from bertkit.errors import RecipeError, did_you_mean, shorten
from bertkit.evaluation.checkpoint import CheckpointInfo
from bertkit.evaluation.differences import as_text
from bertkit.evaluation.scoring import run_model
from bertkit.evaluation.stored_predictions import StoredPredictionScorer, StoredRun
from bertkit.metrics.intervals import wilson_interval
from bertkit.metrics.linear import sample_rows
from bertkit.progress import stage
from bertkit.recipe.sections import ConfigSection, Finite, Row
from bertkit.reports.cases import Case, Outcome
from bertkit.tasks import Prediction, Predictions

_MOVED = 0.1  # a number that moves by more than this fraction of the range of answers is another answer
_SLOT = re.compile(r"\{(\w+)\}")
_NEEDS = {"synonyms": "words: {good: great}", "exchange": "words: [Oslo, Rome]", "add": "text: It rained."}
"""Change that needs words of the user -> an example of them."""


class BehaviorTest(ConfigSection):
    """A test: rows, and what a model must answer to them.

    Args:
        name: Name of the test.
        rows: Rows, or a file with rows; without rows and a template, the rows that the run was scored on.
        template: Text, or column -> text, with ``{slots}``.
        slots: Slot -> texts that fill it; every combination is a row.
        answer: Right answer to all rows; without it, each row has its own.
        change: A name in `EDITS`, ``synonyms``, ``exchange`` or ``add``; the answer must stay.
        words: Word -> synonym, or words that replace one another.
        text: Text that ``add`` appends.
        column: Input that is changed; the first one by default.
        rises: Label whose probability must rise by the change; the answer can then be another.
        falls: Label whose probability must fall.
        tolerance: How far a number can be wrong or move, and a probability move the other way.
        allowed: Fraction of rows that can fail, or None if the test is reported and not judged.
    """

    name: str = ""
    rows: list[dict[str, Any]] | str | None = None
    template: str | dict[str, Any] | None = None
    slots: dict[str, list[str]] = Field({})
    answer: Any = None
    change: str | None = None
    words: list[str] | dict[str, str] = Field([])
    text: str = ""
    column: str | None = None
    rises: str | None = None
    falls: str | None = None
    tolerance: Finite = Field(0.0, ge=0)
    allowed: Finite | None = Field(0.0, ge=0, le=1)

    @property
    def kind(self) -> Literal["answer", "invariance", "direction"]:
        """Kind of the test."""
        return "direction" if self.rises or self.falls else "invariance" if self.change else "answer"

    @model_validator(mode="after")
    def _parts_fit(self) -> BehaviorTest:
        has_part = {"synonyms": isinstance(self.words, dict), "exchange": len(self.words) > 1, "add": bool(self.text)}
        names = (*EDITS, *_NEEDS)
        if self.change is not None and self.change not in names:
            raise ValueError(f"no change is called {self.change!r}: {did_you_mean(self.change, names)}")
        if self.change in _NEEDS and not has_part[self.change]:
            raise ValueError(f"change: {self.change} needs e.g. `{_NEEDS[self.change]}`")
        if self.kind == "direction" and (self.change is None or (self.rises and self.falls)):
            raise ValueError("rises or falls, one of them, needs a change")
        if self.rows is not None and self.template is not None:
            raise ValueError("rows and a template: give one of them")
        return self

    def find_change(self) -> Change:
        """Return the function that changes a text."""
        if self.change == "add":
            return add_text(self.text)
        if self.change in _NEEDS:
            return replace_words(self.words) if isinstance(self.words, dict) else exchange_words(self.words)
        return EDITS[self.change or ""]


class CaseFile(ConfigSection):
    """The tests of a file."""

    EXAMPLE: ClassVar[str] = "copy the example in docs/test.md"
    tests: list[BehaviorTest] = Field([], min_length=1)


@dataclass(frozen=True)
class BehaviorTrial:
    """Result of a test on one row."""

    id: str
    before: str
    """Text before a change; empty if nothing was changed."""
    after: str
    """Text that was predicted."""
    answer: str
    """The right answer, or the answer before the change."""
    new_answer: str
    """Answer to `after`."""
    is_failure: bool
    severity: float = 0.0
    """Size of a failure; the largest come first."""

    def describe(self) -> str:
        """Return the text with its answer, and the answer that it should have."""
        if self.before:
            return f"{self.after}: {self.answer} -> {self.new_answer}"
        return f"{self.after}: {self.new_answer}{f', not {self.answer}' if self.is_failure else ''}"


@dataclass(frozen=True)
class BehaviorResult:
    """Result of a test.

    `lost` counts the answers that were right and no longer are, and `won` the answers that became right; with
    `may_flip`, the right answer can change too.
    """

    name: str
    kind: str
    may_flip: bool
    rows: int
    failed: int
    share: float
    interval: tuple[float, float]
    allowed: float | None
    lost: int
    won: int
    trials: list[BehaviorTrial] = field(default_factory=list)
    """The worst failures first."""

    def judge(self) -> Case:
        """Return whether no more rows fail than are allowed."""
        low, high = self.interval
        text = f"{self.failed:,} of {self.rows:,} rows fail ({self.share:.1%}, 95% CI {low:.1%} to {high:.1%})"
        if self.allowed is None:
            return Case(self.kind, self.name, "skipped", f"{text}, and it is not judged")
        outcome: Outcome = "passed" if self.share <= self.allowed else "failed"
        return Case(self.kind, self.name, outcome, f"{text}; {self.allowed:.1%} allowed")

    def list_cases(self) -> list[Case]:
        """Return a case per row; a failure that is allowed is skipped."""
        bad: Outcome = "failed" if self.judge().outcome == "failed" else "skipped"
        return [
            Case(self.name, trial.id, bad if trial.is_failure else "passed", trial.describe()) for trial in self.trials
        ]


@dataclass(frozen=True)
class Plan:
    """The rows of a test, and the changed rows."""

    test: BehaviorTest
    rows: list[Row]
    column: str
    changed: list[Row] | None = None


def fill_template(test: BehaviorTest, column: str, limit: int) -> list[Row]:
    """Return the rows of a template, evenly chosen from all combinations of the texts that fill its slots.

    >>> test = BehaviorTest(template="{a} {b}", slots={"a": ["x", "y"], "b": ["1", "2"]})
    >>> [row["text"] for row in fill_template(test, "text", 9)]
    ['x 1', 'y 1', 'x 2', 'y 2']

    Raises:
        RecipeError: If nothing fills a slot.
    """
    template = {column: test.template} if isinstance(test.template, str) else dict(test.template or {})
    used = list(dict.fromkeys(name for text in template.values() for name in _SLOT.findall(str(text))))
    for name in used:
        if not test.slots.get(name):
            raise RecipeError(f"{test.name}: nothing fills the slot {{{name}}}", f"slots: {{{name}: [...]}}")
    rows = []
    # A combination is an integer with one digit per slot: in the example, 3 is 1 + 2 * 1, which stands for "y 2". So
    # only the sampled combinations are built, of possibly billions.
    for combination in sample_rows(range(math.prod(len(test.slots[name]) for name in used)), limit):
        texts = {}
        for name in used:
            combination, digit = divmod(combination, len(test.slots[name]))
            texts[f"{{{name}}}"] = test.slots[name][digit]
        rows.append({name: _fill_slots(value, texts) for name, value in template.items()})
    return rows


def _fill_slots(value: object, texts: Mapping[str, str]) -> object:
    return _SLOT.sub(lambda slot: texts[slot[0]], value) if isinstance(value, str) else value


def plan_test(test: BehaviorTest, rows: Sequence[Row], columns: ColumnSpec, limit: int) -> Plan:
    """Choose at most `limit` rows; if the test changes rows, they are drawn from the rows that can be changed.

    The changed row depends only on the change and the index of the row.
    """
    names = [*columns.inputs, *columns.fallback_columns.values()]
    column = test.column or next((name for name in names if rows and _is_text(rows[0].get(name))), names[0])
    if not test.change:
        return Plan(test, sample_rows(rows, limit), column)
    change, changed = test.find_change(), dict[int, Row]()
    # Visit rows in random order until enough are changed, because some rows, for example those without a number, cannot
    # be changed.
    for index in Random(0).sample(range(len(rows)), len(rows)):
        row = rows[index]
        if not _is_text(row.get(column)):
            raise RecipeError(f"{test.name}: the rows have no text {column!r} to change", did_you_mean(column, row))
        # The seed has the index of the row, so that a row is changed alike for every model and limit.
        value = apply_edit(test.change, change, row[column], Random(f"0 {test.change} {index}"))
        # Character offsets into a text must still point to the same words.
        if value is not None and ("target" not in row or isinstance(value, list) or len(value) == len(row[column])):
            changed[index] = {**row, column: value}
        if len(changed) == limit:
            break
    indices = sorted(changed)
    return Plan(test, [rows[index] for index in indices], column, [changed[index] for index in indices])


def run_plans(saved: CheckpointInfo, plans: Sequence[Plan]) -> list[BehaviorResult]:
    """Predict the rows of all tests in one pass, so that they are sorted by length, and judge each test with rows."""
    with stage(f"loading {saved.recipe.model_name}"):
        checkpoint = saved.load(inference=True)
    gold = saved.task.COLUMNS.gold

    # 1. Tests share rows, and changes can lead to the same text: each row is predicted once, without its gold value.
    distinct: dict[str, Row] = {}
    plan_keys = []
    for plan in plans:
        bare = [{name: row[name] for name in row if name != gold} for row in (*plan.rows, *(plan.changed or []))]
        plan_keys.append([json.dumps(row, sort_keys=True, default=str) for row in bare])
        distinct |= dict(zip(plan_keys[-1], bare, strict=True))
    rows = list(distinct.values())
    features = checkpoint.task.encode(rows, checkpoint.context)
    outputs, _ = run_model(checkpoint, features, "predicting the rows of the tests")
    predictions = checkpoint.task.decode(outputs, features, rows, checkpoint.context)
    answers = dict(zip(distinct, predictions, strict=True))

    # 2. Numbers always move a little: a number counts as another answer from a tenth of the range on.
    values = [answer["prediction"] for answer in predictions]
    are_numbers = bool(values) and all(isinstance(value, float) for value in values)
    moved = _MOVED * (max(values) - min(values)) if are_numbers else None

    # 3. Judge the answers to the rows, and to the changed rows after them.
    results = []
    for plan, keys in zip(plans, plan_keys, strict=True):
        if not plan.rows:
            continue
        old, new = ([answers[key] for key in part] for part in (keys[: len(plan.rows)], keys[len(plan.rows) :]))
        if plan.changed is None:
            trials = _judge_answers(saved, plan, old)
        else:
            changes = zip(plan.rows, plan.changed, old, new, strict=True)
            trials = [_judge_change(plan, *change, moved) for change in changes]
        pairs = zip(plan.rows, old, new, strict=False)
        compared = [(row.get(gold), before, after) for row, before, after in pairs]
        results.append(_sum_up(plan.test, trials, compared))
    return results


def _is_text(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(word, str) for word in value))


def _judge_answers(saved: CheckpointInfo, plan: Plan, answers: Predictions) -> list[BehaviorTrial]:
    """Compare answers with gold values as the task family does."""
    records = [{**row, **answer} for row, answer in zip(plan.rows, answers, strict=True)]
    run = StoredRun(plan.test.name, Path(plan.test.name), {}, records)
    outcomes = find_outcomes(StoredPredictionScorer(saved.recipe, saved.task, saved.labels), run, plan.rows)
    return [
        BehaviorTrial(row.id, "", row.text, row.gold, row.predicted, row.error > plan.test.tolerance, row.error)
        for row in outcomes.answers
    ]


def _judge_change(
    plan: Plan, row: Row, changed: Row, old: Prediction, new: Prediction, moved: float | None
) -> BehaviorTrial:
    """Return whether an answer stays, or a probability moves as it must."""
    test, before, after = plan.test, old["prediction"], new["prediction"]
    label = test.rises or test.falls
    if label is not None:
        first, second = (_get_probability(test, label, prediction) for prediction in (old, new))
        # Positive if the probability moved as it must.
        rise = (second - first) * (1 if test.rises else -1)
        answers = [f"{label} {value:.4f}" for value in (first, second)]
        is_failure, severity = rise <= -test.tolerance, -rise
    elif moved is not None:
        answers, severity = [as_text(before), as_text(after)], abs(before - after)
        is_failure = severity > (test.tolerance or moved)
    else:
        answers = [shorten(as_text(value)) for value in (before, after)]
        # A list of tags grows if words are appended, and the tags of the old words must stay.
        is_failure = before != (after[: len(before)] if isinstance(before, list) else after)
        likely = [prediction.get("probabilities") or {} for prediction in (old, new)]
        # The severity of a changed label is the probability that the old label lost.
        severity = likely[0].get(before, 0.0) - likely[1].get(before, 0.0) if isinstance(before, str) else 0.0
    text, changed_text = (shorten(as_text(value[plan.column]), 200) for value in (row, changed))
    row_id = str(row.get("id", shorten(text, 40)))
    return BehaviorTrial(row_id, text, changed_text, answers[0], answers[1], is_failure, severity)


def _get_probability(test: BehaviorTest, label: str, prediction: Prediction) -> float:
    """Return the probability of a label, or the number that is predicted.

    Raises:
        RecipeError: If the model has no such label, or its answers have no probabilities.
    """
    if isinstance(prediction["prediction"], float):
        return float(prediction["prediction"])
    scores = prediction.get("probabilities")
    if not isinstance(scores, Mapping) or label not in scores:
        message = f"{test.name}: the answers have no probability of {label!r}"
        raise RecipeError(
            message, did_you_mean(label, scores) if scores else "rises and falls are for labels and numbers"
        )
    return float(scores[label])


def _sum_up(
    test: BehaviorTest, trials: list[BehaviorTrial], answer_pairs: Sequence[tuple[Any, Prediction, Prediction]]
) -> BehaviorResult:
    """Return the result of a test, given its trials, and the gold value and both answers of each changed row."""
    rows, failed = len(trials), sum(trial.is_failure for trial in trials)
    rates = failed / rows, wilson_interval(failed, rows), test.allowed
    right = [(before["prediction"] == gold, after["prediction"] == gold) for gold, before, after in answer_pairs]
    moves = right.count((True, False)), right.count((False, True))
    ordered = sorted(trials, key=lambda trial: (not trial.is_failure, -trial.severity))
    return BehaviorResult(test.name, test.kind, test.kind != "invariance", rows, failed, *rates, *moves, ordered)
