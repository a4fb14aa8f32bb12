"""Tests of behavior, with a model that reads the last letter of a text and how long it is."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from bertkit.analysis import behavior
from bertkit.analysis.behavior import BehaviorTest, fill_template, plan_test, run_plans
from bertkit.data.columns import ColumnSpec
from bertkit.errors import RecipeError
from bertkit.metrics.intervals import wilson_interval
from bertkit.recipe import load_recipe
from bertkit.tasks import load_task

COLUMNS = ColumnSpec(inputs=("text",), gold="label")
RECIPE = load_recipe("classify", {"model": "demo", "labels": ["n", "y"]})


class Reader:
    """A checkpoint that answers y to a text that ends in a period, the surer the longer it is."""

    recipe, labels, context = RECIPE, ("n", "y"), None

    def __init__(self):
        self.task = load_task(RECIPE)
        self.seen = []

    def load(self, *, inference):
        return Loaded(self)


class Loaded:
    def __init__(self, reader):
        self.task, self.context, self.reader = self, None, reader

    def encode(self, rows, context):
        assert all("label" not in row for row in rows)
        self.reader.seen = [row["text"] for row in rows]
        return list(rows)

    def decode(self, outputs, features, rows, context):
        answers = []
        for row in rows:
            sure = min(0.99, 0.5 + len(row["text"]) / 100)
            yes = sure if row["text"].endswith(".") else 1 - sure
            answers.append({"prediction": "y" if yes > 0.5 else "n", "probabilities": {"n": 1 - yes, "y": yes}})
        return answers


@pytest.fixture
def reader(monkeypatch):
    monkeypatch.setattr(behavior, "run_model", lambda *_: ([], None))
    return Reader()


def run(reader, test, rows=()):
    rows = rows or test.rows
    (result,) = run_plans(reader, [plan_test(test, rows, COLUMNS, 100)])
    return result


def test_rows_must_have_an_answer(reader):
    rows = [{"text": "good.", "label": "y"}, {"text": "bad", "label": "y"}, {"text": "ok", "label": "n"}]
    result = run(reader, BehaviorTest(name="a", rows=rows, allowed=0.3))
    assert (result.kind, result.rows, result.failed, result.share) == ("answer", 3, 1, 1 / 3)
    assert result.interval == wilson_interval(1, 3)
    assert [(trial.after, trial.answer, trial.new_answer) for trial in result.trials[:1]] == [("bad", "y", "n")]
    assert result.judge().outcome == "failed"
    assert [case.outcome for case in result.list_cases()] == ["failed", "passed", "passed"]
    allowed = run(reader, BehaviorTest(name="a", rows=rows, allowed=0.34))
    assert allowed.judge().outcome == "passed"
    assert [case.outcome for case in allowed.list_cases()] == ["skipped", "passed", "passed"]
    assert run(reader, BehaviorTest(name="a", rows=rows, allowed=None)).judge().outcome == "skipped"


@pytest.mark.parametrize(
    ("test", "failed"),
    [
        ({"change": "punctuation"}, 2),
        ({"change": "lower case"}, 0),
        ({"change": "add", "text": "It rained"}, 1),
        ({"change": "add", "text": "It rained."}, 1),
        ({"change": "synonyms", "words": {"good": "fine."}}, 1),
        ({"change": "add", "text": "and so on", "falls": "y"}, 0),
        ({"change": "add", "text": "It rained.", "rises": "y"}, 0),
        ({"change": "add", "text": "and", "rises": "y"}, 2),
        ({"change": "add", "text": "and", "rises": "n", "tolerance": 0.5}, 0),
    ],
)
def test_a_change_leaves_the_answer_or_moves_it_as_it_must(reader, test, failed):
    rows = [{"text": "A Good film."}, {"text": "A Good book is good"}]
    assert run(reader, BehaviorTest(name="a", **test), rows).failed == failed


def test_what_must_not_matter_at_all_has_the_worst_first(reader):
    rows = [{"text": "a film."}, {"text": "a very long film that ends."}]
    result = run(reader, BehaviorTest(name="a", change="punctuation"), rows)
    assert [trial.before for trial in result.trials] == ["a very long film that ends.", "a film."]


def test_each_text_is_predicted_once(reader):
    rows = [{"text": "A film.", "label": "y"}] * 3
    plans = [plan_test(BehaviorTest(name=name, change="lower case"), rows, COLUMNS, 9) for name in "ab"]
    assert [result.rows for result in run_plans(reader, plans)] == [3, 3]
    assert reader.seen == ["A film.", "a film."]


def test_words_may_be_added_to_a_list_whose_tags_stay():
    row = {"tokens": ["Anna", "left"], "tags": ["B", "O"]}
    columns = ColumnSpec(inputs=("tokens",), gold="tags", lists=("tokens",))
    plan = plan_test(BehaviorTest(name="a", change="add", text="It rained ."), [row], columns, 9)
    assert plan.changed[0]["tokens"] == ["Anna", "left", "It", "rained", "."]
    old = {"prediction": ["B", "O"]}
    for tags, is_failure in ((["B", "O", "O", "O", "O"], False), (["O", "O", "B", "O", "O"], True)):
        trial = behavior._judge_change(plan, row, plan.changed[0], (old, {"prediction": tags}), None)
        assert trial.is_failure == is_failure


def test_a_template_has_every_combination_or_evenly_chosen_ones():
    test = BehaviorTest(template={"text": "{a} {b}.", "label": "y"}, slots={"a": ["x", "y"], "b": ["1", "2", "3"]})
    rows = fill_template(test, "text", 100)
    assert len({row["text"] for row in rows}) == 6 and {row["label"] for row in rows} == {"y"}
    assert len(fill_template(test, "text", 4)) == 4
    with pytest.raises(RecipeError, match=r"nothing fills the slot \{c\}"):
        fill_template(BehaviorTest(name="t", template="{c}"), "text", 9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"change": "typos"}, "did you mean typo"),
        ({"change": "add"}, "needs a field such as `text"),
        ({"change": "exchange", "words": ["Oslo"]}, "needs a field such as `words"),
        ({"change": "synonyms", "words": ["a", "b"]}, "needs a field such as `words"),
        ({"rises": "y"}, "needs a change"),
        ({"rows": [], "template": "a"}, "give one of them"),
        ({"allowed": 1.5}, "less than or equal to 1"),
    ],
)
def test_a_test_that_makes_no_sense_is_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        BehaviorTest(**fields)


def test_a_label_that_the_model_lacks_and_a_column_without_text_are_refused(reader):
    rows = [{"text": "A film.", "id": 3}]
    with pytest.raises(RecipeError, match="no probability of 'Y' - "):
        run(reader, BehaviorTest(name="a", change="add", text="x", rises="Y"), rows)
    with pytest.raises(RecipeError, match="no text 'id' to change"):
        plan_test(BehaviorTest(name="a", change="typo", column="id"), rows, COLUMNS, 9)


def test_answers_that_were_right_or_become_right_are_counted(reader):
    rows = [{"text": "a good film.", "label": "y"}, {"text": "a bad film", "label": "y"}, {"text": "ok.", "label": "n"}]
    result = run(reader, BehaviorTest(name="end", change="punctuation"), rows)
    assert (result.rows, result.failed, result.share, result.lost, result.won) == (3, 3, 1.0, 1, 2)
    trial = next(trial for trial in result.trials if trial.before == "a good film.")
    assert (trial.after, trial.answer, trial.new_answer) == ("a good film", "y", "n")


def test_a_number_is_another_answer_if_it_moves_by_a_tenth_of_the_range(reader, monkeypatch):
    def measure(self, outputs, features, rows, context):
        return [{"prediction": float(len(row["text"]))} for row in rows]

    monkeypatch.setattr(Loaded, "decode", measure)
    rows = [{"text": "a" * 50, "label": 1.0}, {"text": "short", "label": 2.0}]
    for text, failed in (("b", 0), ("far too long", 2)):
        assert run(reader, BehaviorTest(name="a", change="add", text=text), rows).failed == failed
