"""Tests of a model's behavior, after CheckList (Ribeiro et al. 2020, section 2): answers, invariances and directions.

A test of answers compares them with given answers. The other tests change rows: the answer must stay, or the
probability of a label must rise or fall. A test fails if more rows fail than it allows.
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

_MIN_MOVE = 0.1  # fraction of the range of answers that a predicted number must move by to count as another answer
_SLOT = re.compile(r"\{(\w+)\}")
_EXAMPLES = {"synonyms": "words: {good: great}", "exchange": "words: [Oslo, Rome]", "add": "text: It rained."}
"""Change that needs arguments -> an example of its arguments."""


class BehaviorTest(ConfigSection):
    """A test: rows, and the answers that a model must give.

    Args:
        name: Name of the test.
        rows: Rows, or a file with rows; without rows or a template, the rows that the run was scored on.
        template: Text, or column -> text, with ``{slots}``.
        slots: Slot -> texts that fill it; every combination is a row.
        answer: Correct answer to all rows; by default, each row contains its answer.
        change: Change after which the answer must stay: a name in `EDITS`, ``synonyms``, ``exchange`` or ``add``.
        words: Word -> synonym, or words that replace each other.
        text: Text that ``add`` appends.
        column: Input column that is changed; by default, the first.
        rises: Label whose probability must rise after the change, even if the answer does not stay.
        falls: Label whose probability must fall.
        tolerance: Largest accepted error or move of a number, or move of a probability in the wrong direction.
        allowed: Fraction of rows that can fail, or None to report the test without judging it.
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
    def _check_arguments(self) -> BehaviorTest:
        has_value = {"synonyms": isinstance(self.words, dict), "exchange": len(self.words) > 1, "add": bool(self.text)}
        names = (*EDITS, *_EXAMPLES)
        if self.change is not None and self.change not in names:
            raise ValueError(f"no change is called {self.change!r}: {did_you_mean(self.change, names)}")
        if self.change in _EXAMPLES and not has_value[self.change]:
            raise ValueError(f"change: {self.change} needs a field such as `{_EXAMPLES[self.change]}`")
        if self.kind == "direction" and (self.change is None or (self.rises and self.falls)):
            raise ValueError("rises and falls exclude each other, and each needs a change")
        if self.rows is not None and self.template is not None:
            raise ValueError("rows and a template: give one of them")
        return self

    def find_change(self) -> Change:
        """Return the function that changes a text."""
        if self.change == "add":
            return add_text(self.text)
        if self.change in _EXAMPLES:
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
    """Text before the change; empty if the test changes nothing."""
    after: str
    """Text that was predicted."""
    answer: str
    """The correct answer, or the answer before the change."""
    new_answer: str
    """Answer to `after`."""
    is_failure: bool
    severity: float = 0.0
    """Size of a failure."""

    def describe(self) -> str:
        """Return the text with both answers, or with a wrong answer and the correct answer."""
        if self.before:
            return f"{self.after}: {self.answer} -> {self.new_answer}"
        return f"{self.after}: {self.new_answer}{f', not {self.answer}' if self.is_failure else ''}"


@dataclass(frozen=True)
class BehaviorResult:
    """Result of a test.

    `lost` counts the answers that the change made wrong, and `won` the answers that it made correct. With `may_flip`,
    the change can also change the correct answer.
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
    """Results of all rows, the worst failures first."""

    def judge(self) -> Case:
        """Return the outcome of the test: passed if at most the allowed fraction of rows fails."""
        low, high = self.interval
        text = f"{self.failed:,} of {self.rows:,} rows fail ({self.share:.1%}, 95% CI {low:.1%} to {high:.1%})"
        if self.allowed is None:
            return Case(self.kind, self.name, "skipped", f"{text}, and it is not judged")
        outcome: Outcome = "passed" if self.share <= self.allowed else "failed"
        return Case(self.kind, self.name, outcome, f"{text}; {self.allowed:.1%} allowed")

    def list_cases(self) -> list[Case]:
        """Return a case per row; allowed failures are skipped."""
        outcomes: list[Outcome] = ["passed", "failed" if self.judge().outcome == "failed" else "skipped"]
        return [Case(self.name, trial.id, outcomes[trial.is_failure], trial.describe()) for trial in self.trials]


@dataclass(frozen=True)
class Plan:
    """Rows of a test, and the changed rows if it changes them."""

    test: BehaviorTest
    rows: list[Row]
    column: str
    changed: list[Row] | None = None


def fill_template(test: BehaviorTest, column: str, limit: int) -> list[Row]:
    """Return at most `limit` rows of a template, evenly spaced among all combinations of texts in its slots.

    >>> test = BehaviorTest(template="{a} {b}", slots={"a": ["x", "y"], "b": ["1", "2"]})
    >>> [row["text"] for row in fill_template(test, "text", 9)]
    ['x 1', 'y 1', 'x 2', 'y 2']

    Raises:
        RecipeError: If nothing fills a slot.
    """
    template = {column: test.template} if isinstance(test.template, str) else dict(test.template or {})
    slot_names = list(dict.fromkeys(name for text in template.values() for name in _SLOT.findall(str(text))))
    for name in slot_names:
        if not test.slots.get(name):
            raise RecipeError(f"{test.name}: nothing fills the slot {{{name}}}", f"slots: {{{name}: [...]}}")
    rows = []
    # There can be billions of combinations, so only the sampled ones are built. A combination is an integer with one
    # digit per slot: in the example, 3 is 1 + 2 * 1, which means "y 2".
    for combination in sample_rows(range(math.prod(len(test.slots[name]) for name in slot_names)), limit):
        texts = {}
        for name in slot_names:
            combination, digit = divmod(combination, len(test.slots[name]))
            texts[f"{{{name}}}"] = test.slots[name][digit]
        rows.append({name: _fill_slots(value, texts) for name, value in template.items()})
    return rows


def _fill_slots(value: object, texts: Mapping[str, str]) -> object:
    return _SLOT.sub(lambda slot: texts[slot[0]], value) if isinstance(value, str) else value


def plan_test(test: BehaviorTest, rows: Sequence[Row], columns: ColumnSpec, limit: int) -> Plan:
    """Select at most `limit` rows for a test; if the test changes rows, select only rows that can be changed.

    A changed row depends only on the change and the index of the row, not on the model or the limit.
    """
    names = [*columns.inputs, *columns.fallback_columns.values()]
    column = test.column or next((name for name in names if rows and _is_text(rows[0].get(name))), names[0])
    if not test.change:
        return Plan(test, sample_rows(rows, limit), column)
    change, changed_rows = test.find_change(), dict[int, Row]()
    # Try rows in random order until enough are changed: a row without a number, for example, cannot be changed.
    for index in Random(0).sample(range(len(rows)), len(rows)):
        row = rows[index]
        if not _is_text(row.get(column)):
            raise RecipeError(f"{test.name}: the rows have no text {column!r} to change", did_you_mean(column, row))
        value = apply_edit(test.change, change, row[column], Random(f"0 {test.change} {index}"))
        # If the row has character offsets, the text must keep its length.
        if value is not None and ("target" not in row or isinstance(value, list) or len(value) == len(row[column])):
            changed_rows[index] = {**row, column: value}
        if len(changed_rows) == limit:
            break
    indices = sorted(changed_rows)
    return Plan(test, [rows[index] for index in indices], column, [changed_rows[index] for index in indices])


def run_plans(info: CheckpointInfo, plans: Sequence[Plan]) -> list[BehaviorResult]:
    """Predict the rows of all tests in one pass, and judge each test that has rows."""
    with stage(f"loading {info.recipe.model_name}"):
        checkpoint = info.load(inference=True)
    gold = info.task.COLUMNS.gold

    # 1. Predict each different row once, without its gold value: tests share rows, and changes can give equal texts.
    unique_rows: dict[str, Row] = {}
    plan_keys = []
    for plan in plans:
        inputs = [{name: row[name] for name in row if name != gold} for row in (*plan.rows, *(plan.changed or []))]
        plan_keys.append([json.dumps(row, sort_keys=True, default=str) for row in inputs])
        unique_rows |= dict(zip(plan_keys[-1], inputs, strict=True))
    rows = list(unique_rows.values())
    features = checkpoint.task.encode(rows, checkpoint.context)
    outputs, _ = run_model(checkpoint, features, "predicting the rows of the tests")
    predictions = checkpoint.task.decode(outputs, features, rows, checkpoint.context)
    by_key = dict(zip(unique_rows, predictions, strict=True))

    # 2. Predicted numbers always move a little, so only a move of a tenth of their range counts as another answer.
    values = [prediction["prediction"] for prediction in predictions]
    are_numbers = bool(values) and all(isinstance(value, float) for value in values)
    min_move = _MIN_MOVE * (max(values) - min(values)) if are_numbers else None

    # 3. Judge each plan. The keys of its rows come first, then the keys of its changed rows.
    results = []
    for plan, keys in zip(plans, plan_keys, strict=True):
        if not plan.rows:
            continue
        count = len(plan.rows)
        answers, new_answers = ([by_key[key] for key in part] for part in (keys[:count], keys[count:]))
        if plan.changed is None:
            trials = _judge_answers(info, plan, answers)
        else:
            changes = zip(plan.rows, plan.changed, zip(answers, new_answers, strict=True), strict=True)
            trials = [_judge_change(plan, *change, min_move) for change in changes]
        answer_pairs = zip([row.get(gold) for row in plan.rows], answers, new_answers, strict=False)
        results.append(_summarize(plan.test, trials, list(answer_pairs)))
    return results


def _is_text(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(word, str) for word in value))


def _judge_answers(info: CheckpointInfo, plan: Plan, answers: Predictions) -> list[BehaviorTrial]:
    """Compare answers with gold values, as the task family does."""
    records = [{**row, **answer} for row, answer in zip(plan.rows, answers, strict=True)]
    run = StoredRun(plan.test.name, Path(plan.test.name), {}, records)
    outcomes = find_outcomes(StoredPredictionScorer(info.recipe, info.task, info.labels), run, plan.rows)
    return [
        BehaviorTrial(row.id, "", row.text, row.gold, row.predicted, row.error > plan.test.tolerance, row.error)
        for row in outcomes.answers
    ]


def _judge_change(
    plan: Plan, row: Row, changed: Row, predictions: tuple[Prediction, Prediction], min_move: float | None
) -> BehaviorTrial:
    """Check whether the answer to a changed row stays, or a probability moves in the required direction."""
    test = plan.test
    answer, new_answer = (prediction["prediction"] for prediction in predictions)
    label = test.rises or test.falls
    if label is not None:
        first, second = (_get_probability(test, label, prediction) for prediction in predictions)
        # Positive if the probability moved in the required direction.
        gain = (second - first) * (1 if test.rises else -1)
        answers = [f"{label} {value:.4f}" for value in (first, second)]
        is_failure, severity = gain <= -test.tolerance, -gain
    elif min_move is not None:
        answers, severity = [as_text(answer), as_text(new_answer)], abs(answer - new_answer)
        is_failure = severity > (test.tolerance or min_move)
    else:
        answers = [shorten(as_text(value)) for value in (answer, new_answer)]
        # If words were appended, only the tags of the old words must stay.
        is_failure = answer != (new_answer[: len(answer)] if isinstance(answer, list) else new_answer)
        probs, new_probs = (prediction.get("probabilities") or {} for prediction in predictions)
        # The severity is the probability that the old label has lost.
        severity = probs.get(answer, 0.0) - new_probs.get(answer, 0.0) if isinstance(answer, str) else 0.0
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


def _summarize(
    test: BehaviorTest, trials: list[BehaviorTrial], answer_pairs: Sequence[tuple[Any, Prediction, Prediction]]
) -> BehaviorResult:
    """Return the result of a test, given its trials, and (gold value, old answer, new answer) of each changed row."""
    rows, failed = len(trials), sum(trial.is_failure for trial in trials)
    rates = failed / rows, wilson_interval(failed, rows), test.allowed
    correct = [(first["prediction"] == gold, second["prediction"] == gold) for gold, first, second in answer_pairs]
    flips = correct.count((True, False)), correct.count((False, True))
    sorted_trials = sorted(trials, key=lambda trial: (not trial.is_failure, -trial.severity))
    return BehaviorResult(test.name, test.kind, test.kind != "invariance", rows, failed, *rates, *flips, sorted_trials)
