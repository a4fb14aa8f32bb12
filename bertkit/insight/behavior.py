"""Tests of a model's behavior, after CheckList (Ribeiro et al. 2020, section 2): answers, invariances and directions.

A test has rows that must have an answer, or rows that are changed: then the answer must stay, or the probability of a
label must rise or fall. A row counts once, and a test has failed where more rows fail than it allows.
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

from bertkit.data.columns import Columns
from bertkit.errors import RecipeError, closest, shorten
from bertkit.evaluation.checkpoint import SavedCheckpoint
from bertkit.evaluation.differences import as_text
from bertkit.evaluation.scoring import run_model
from bertkit.evaluation.stored import Scorer, StoredRun
from bertkit.insight.edits import EDITS, Edit, add_text, apply_edit, exchange_words, replace_words
from bertkit.insight.outcomes import find_outcomes
from bertkit.metrics.intervals import wilson_interval
from bertkit.metrics.linear import sample
from bertkit.progress import stage
from bertkit.recipe.sections import Finite, Row, Section
from bertkit.reports.cases import Case, Outcome
from bertkit.tasks import Prediction

MOVED = 0.1  # of the range of the answers: a number that moves by more is another answer
_CHANGES = {edit.name: edit for edit in EDITS}
_SLOT = re.compile(r"\{(\w+)\}")


class BehaviorTest(Section):
    """What is asked of a model on some rows.

    Args:
        name: of the test.
        rows: rows, or a file with rows; without them and a template, those that the run was scored on.
        template: a text, or column -> text, with ``{slots}``.
        slots: slot -> what may fill it; every combination is a row.
        answer: the right answer to all rows; without it, each row has its own.
        change: one of `EDITS`, ``synonyms``, ``exchange`` or ``add``; the answer must stay.
        words: word -> synonym, or words that stand for one another.
        text: what ``add`` appends.
        column: the input that is changed; the first one by default.
        rises: the label whose probability must rise by the change; the answer may then be another.
        falls: the label whose probability must fall.
        tolerance: by how much a number may be wrong or move, and a probability move the other way.
        allowed: the share of rows that may fail; None for a test that is told and not judged.
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
        """What is asked for."""
        return "direction" if self.rises or self.falls else "invariance" if self.change else "answer"

    @model_validator(mode="after")
    def _parts_fit(self) -> BehaviorTest:
        needs = {"synonyms": "words: {good: great}", "exchange": "words: [Oslo, Rome]", "add": "text: It rained."}
        given = {"synonyms": isinstance(self.words, dict), "exchange": len(self.words) > 1, "add": bool(self.text)}
        if self.change is not None and self.change not in (*_CHANGES, *needs):
            raise ValueError(f"no change is called {self.change!r}: {closest(self.change, (*_CHANGES, *needs))}")
        if self.change in needs and not given[self.change]:
            raise ValueError(f"change: {self.change} needs e.g. `{needs[self.change]}`")
        if self.kind == "direction" and (self.change is None or (self.rises and self.falls)):
            raise ValueError("rises or falls, one of them, needs a change")
        if self.rows is not None and self.template is not None:
            raise ValueError("rows and a template: give one of them")
        return self

    def find_edit(self) -> Edit:
        """Return the change that it makes."""
        if self.change == "synonyms" and isinstance(self.words, dict):
            return Edit("synonyms", replace_words(self.words))
        if self.change == "exchange" and isinstance(self.words, list):
            return Edit("exchange", exchange_words(self.words))
        return (
            Edit("add", add_text(self.text), keeps_words=False) if self.change == "add" else _CHANGES[self.change or ""]
        )


class CaseFile(Section):
    """The tests of a file."""

    EXAMPLE: ClassVar[str] = "copy the example in docs/test.md"
    tests: list[BehaviorTest] = Field([], min_length=1)


@dataclass(frozen=True)
class BehaviorTrial:
    """A row of a test, and what came of it.

    Args:
        id: of the row.
        before: the text before a change; empty where nothing was changed.
        after: the text that was predicted.
        answer: the right answer, or the one before the change.
        new_answer: that to `after`.
        is_failure: whether it is not what the test asks for.
        severity: how bad a failure is; those with the highest come first.
    """

    id: str
    before: str
    after: str
    answer: str
    new_answer: str
    is_failure: bool
    severity: float = 0.0

    def describe(self) -> str:
        """Return the text with what was answered, and what should have been."""
        change = f"{self.answer} -> {self.new_answer}" if self.before else f"{self.new_answer}, not {self.answer}"
        return f"{self.after}: {change if self.before or self.is_failure else self.new_answer}"


@dataclass(frozen=True)
class BehaviorResult:
    """What came of a test, with its trials, the worst failures first.

    Where the right answer stays and can be told, `lost` counts those that were right and are not any more, and `won`
    the others that changed; with `may_flip`, the right answer may change too.
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

    def judge(self) -> Case:
        """Return whether no more rows fail than are allowed."""
        low, high = self.interval
        text = f"{self.failed:,} of {self.rows:,} rows fail ({self.share:.1%}, 95% CI {low:.1%} to {high:.1%})"
        if self.allowed is None:
            return Case(self.kind, self.name, "skipped", f"{text}, and it is not judged")
        outcome: Literal["passed", "failed"] = "passed" if self.share <= self.allowed else "failed"
        return Case(self.kind, self.name, outcome, f"{text}; {self.allowed:.1%} allowed")

    def list_cases(self) -> list[Case]:
        """Return a case per row; a failure that is allowed is skipped."""
        bad: Outcome = "failed" if self.judge().outcome == "failed" else "skipped"
        return [
            Case(self.name, trial.id, bad if trial.is_failure else "passed", trial.describe()) for trial in self.trials
        ]


@dataclass(frozen=True)
class Plan:
    """The rows of a test, with the changed ones beside them."""

    test: BehaviorTest
    rows: list[Row]
    column: str
    changed: list[Row] | None = None


def fill_template(test: BehaviorTest, column: str, limit: int) -> list[Row]:
    """Return the rows of a template, evenly chosen of all combinations of what fills its slots.

    >>> [row["text"] for row in fill_template(BehaviorTest(template="{a} b", slots={"a": ["x", "y"]}), "text", 9)]
    ['x b', 'y b']

    Raises:
        RecipeError: nothing fills a slot.
    """
    template = {column: test.template} if isinstance(test.template, str) else dict(test.template or {})
    used = list(dict.fromkeys(name for text in template.values() for name in _SLOT.findall(str(text))))
    for name in used:
        if not test.slots.get(name):
            raise RecipeError(f"{test.name}: nothing fills the slot {{{name}}}", f"slots: {{{name}: [...]}}")
    rows = []
    for number in sample(range(math.prod(len(test.slots[name]) for name in used)), limit):
        chosen = {}
        for name in used:
            number, index = divmod(number, len(test.slots[name]))
            chosen[name] = test.slots[name][index]

        def fill(value: object, chosen: Mapping[str, str] = chosen) -> object:
            return _SLOT.sub(lambda slot: chosen[slot[1]], value) if isinstance(value, str) else value

        rows.append({name: fill(value) for name, value in template.items()})
    return rows


def plan_test(test: BehaviorTest, rows: Sequence[Row], columns: Columns, limit: int) -> Plan:
    """Choose so many rows, and change them where the test does: of all rows that it can change, drawn at random.

    What becomes of a row depends on the change and its number alone.
    """
    names = [*columns.given, *columns.text_instead.values()]
    column = test.column or next((name for name in names if rows and _is_text(rows[0].get(name))), names[0])
    if not test.change:
        return Plan(test, sample(rows, limit), column)
    edit, changed = test.find_edit(), dict[int, Row]()
    # All rows in random order, until enough can be changed: not every row has, say, a number.
    for number in Random(0).sample(range(len(rows)), len(rows)):
        row = rows[number]
        if not _is_text(row.get(column)):
            raise RecipeError(f"{test.name}: the rows have no text {column!r} to change", closest(column, row))
        value = apply_edit(edit, row[column], Random(f"0 {edit.name} {number}"))
        # what points into a text by characters must still point there
        if value is not None and ("target" not in row or isinstance(value, list) or len(value) == len(row[column])):
            changed[number] = {**row, column: value}
        if len(changed) == limit:
            break
    numbers = sorted(changed)
    return Plan(test, [rows[number] for number in numbers], column, [changed[number] for number in numbers])


def run_plans(saved: SavedCheckpoint, plans: Sequence[Plan]) -> list[BehaviorResult]:
    """Predict the rows of all tests in one pass, so that they are sorted by length, and judge each that has rows."""
    with stage(f"loading {saved.recipe.model_name}"):
        checkpoint = saved.load(inference=True)
    gold = saved.task.COLUMNS.gold
    numbers: dict[str, int] = {}
    distinct: list[Row] = []  # without their gold values

    def number_of(row: Row) -> int:
        bare = {name: value for name, value in row.items() if name != gold}
        number = numbers.setdefault(json.dumps(bare, sort_keys=True, default=str), len(distinct))
        distinct.extend([bare] if number == len(distinct) else [])
        return number

    # Tests share rows, and changes may come to the same text: each is predicted once.
    placed = [([number_of(row) for row in plan.rows], list(map(number_of, plan.changed or []))) for plan in plans]
    features = checkpoint.task.encode(distinct, checkpoint.setup)
    outputs, _ = run_model(checkpoint, features, "predicting the rows of the tests")
    answers = checkpoint.task.decode(outputs, features, distinct, checkpoint.setup)
    values = [answer["prediction"] for answer in answers]
    # Numbers always move a little: one counts as another answer from a tenth of the range on.
    moved = MOVED * (max(values) - min(values)) if values and all(isinstance(one, float) for one in values) else None
    results = []
    for plan, (before, after) in zip(plans, placed, strict=True):
        old, new = ([answers[number] for number in of] for of in (before, after))
        if not plan.rows:
            continue
        if plan.changed is None:
            # Compare answers with gold values as the task family does.
            records = [{**row, **answer} for row, answer in zip(plan.rows, old, strict=True)]
            scorer = Scorer(saved.recipe, saved.task, saved.labels)
            outcomes = find_outcomes(scorer, StoredRun(plan.test.name, Path(plan.test.name), {}, records), plan.rows)
            trials = [
                BehaviorTrial(one.id, "", one.text, one.gold, one.predicted, one.error > plan.test.tolerance, one.error)
                for one in outcomes.answers
            ]
        else:
            pairs = zip(plan.rows, plan.changed, old, new, strict=True)
            trials = [_judge_pair(plan, *pair, moved) for pair in pairs]
        right = [
            (one.get(gold), was["prediction"], now["prediction"])
            for one, was, now in zip(plan.rows, old, new, strict=False)
        ]
        results.append(_sum_up(plan, trials, right))
    return results


def _is_text(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(word, str) for word in value))


def _judge_pair(
    plan: Plan, row: Row, changed: Row, old: Prediction, new: Prediction, moved: float | None
) -> BehaviorTrial:
    """Tell whether an answer stays, or a probability moves as it must."""
    test, before, after = plan.test, old["prediction"], new["prediction"]
    label = test.rises or test.falls
    if label is not None:
        sides = [_probability(test, label, prediction) for prediction in (old, new)]
        rise = (sides[1] - sides[0]) * (1 if test.rises else -1)
        shown = [f"{label} {value:.4f}" for value in sides]
        is_failure, severity = rise <= -test.tolerance, -rise
    elif moved is not None:
        shown, severity = [as_text(before), as_text(after)], abs(before - after)
        is_failure = severity > (test.tolerance or moved)
    else:
        shown = [shorten(as_text(value)) for value in (before, after)]
        # words may be added at the end
        same = after[: len(before)] if isinstance(before, list) else after
        likely = [prediction.get("probabilities") or {} for prediction in (old, new)]
        severity = likely[0].get(before, 0.0) - likely[1].get(before, 0.0) if isinstance(before, str) else 0.0
        is_failure = before != same
    was, now = (shorten(as_text(one[plan.column]), 200) for one in (row, changed))
    return BehaviorTrial(str(row.get("id", shorten(was, 40))), was, now, shown[0], shown[1], is_failure, severity)


def _probability(test: BehaviorTest, label: str, prediction: Prediction) -> float:
    """Return the probability of a label, or the number that is predicted.

    Raises:
        RecipeError: the model has no such label, or its answers have no probabilities.
    """
    if isinstance(prediction["prediction"], float):
        return float(prediction["prediction"])
    known = prediction.get("probabilities")
    if not isinstance(known, Mapping) or label not in known:
        what = f"{test.name}: the answers have no probability of {label!r}"
        raise RecipeError(what, closest(label, known) if known else "rises and falls are for labels and numbers")
    return float(known[label])


def _sum_up(plan: Plan, trials: list[BehaviorTrial], right: Sequence[tuple[Any, Any, Any]]) -> BehaviorResult:
    failed, test = sum(trial.is_failure for trial in trials), plan.test
    return BehaviorResult(
        name=test.name,
        kind=test.kind,
        may_flip=test.kind != "invariance",
        rows=len(trials),
        failed=failed,
        share=failed / len(trials),
        interval=wilson_interval(failed, len(trials)),
        allowed=test.allowed,
        lost=sum(before == gold != after for gold, before, after in right),
        won=sum(before != gold == after for gold, before, after in right),
        trials=sorted(trials, key=lambda trial: (not trial.is_failure, -trial.severity)),
    )
