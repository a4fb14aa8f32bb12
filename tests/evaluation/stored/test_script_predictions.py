"""The files that the example scripts of transformers write are read as answers to the rows of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.errors import DataError
from bertkit.evaluation.stored.script_predictions import add_rows, parse_script_predictions
from bertkit.workflows.compare import compare
from tests.evaluation.stored_runs import make_rows, make_run, predict

ROWS = make_rows(30)
SPANS = "B-PER I-PER O", "O B-LOC O"


@pytest.mark.parametrize(
    ("name", "text", "answers"),
    [
        ("predict_results.txt", "index\tprediction\n0\tgood\n1\tnot\tgood\n", ["good", "not\tgood"]),
        ("predict_results.txt", "index\tprediction\n0\t['a', 'b']\n1\t[sic]\n", [["a", "b"], "[sic]"]),
        ("predictions.txt", "O B-PER\n\nO\n", [["O", "B-PER"], [], ["O"]]),
        ("eval_predictions.json", '{"q1": "Rome", "q2": ""}', ["Rome", ""]),
    ],
)
def test_each_form_is_read(name, text, answers):
    assert [one["prediction"] for one in parse_script_predictions(text, Path(name))] == answers


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "predict_results.txt",
            "index\tprediction\n0\tgood\n2\tbad\n",
            r"the index 1 and a tab \(predict_results.txt:3",
        ),
        ("a.json", "[1]", "not a JSON object from the ids of questions"),
        ("a.json", '{"q1": 1}', "not a JSON object from the ids of questions"),
    ],
)
def test_another_form_is_refused(name, text, message):
    with pytest.raises(DataError, match=message):
        parse_script_predictions(text, Path(name))


def test_answers_go_to_the_row_of_their_id_or_their_place():
    rows = [{"id": "b", "score": 2.0}, {"id": "a", "score": 3.0}]
    file = Path("a.txt")
    assert [
        one["prediction"] for one in add_rows([{"prediction": "1.5"}, {"prediction": "4"}], rows, "score", file)
    ] == [
        1.5,
        4.0,
    ]
    named = [{"id": "a", "prediction": "1"}, {"id": "b", "prediction": "2"}, {"id": "c", "prediction": "3"}]
    assert [(one["id"], one["prediction"]) for one in add_rows(named, rows, "score", file)] == [("b", 2.0), ("a", 1.0)]
    for answers, message in (
        (named[:1], "no answer to the question 'b'"),
        ([{"prediction": "1"}], "1 predictions for 2 rows"),
        ([{"prediction": "1"}, {"prediction": "x"}], r"'x' is not a number \(a.txt:2"),
    ):
        with pytest.raises(DataError, match=message):
            add_rows(answers, rows, "score", file)


def test_a_file_of_answers_is_compared_with_a_run(tmp_path):
    run = make_run(tmp_path / "a", predict(ROWS, {1, 2, 3}))
    lines = [f"{number}\t{row['label']}\n" for number, row in enumerate(ROWS)]
    (tmp_path / "predict_results.txt").write_text("index\tprediction\n" + "".join(lines))
    for paths in ([run, tmp_path / "predict_results.txt"], [tmp_path / "predict_results.txt", run]):
        found = compare(paths)
        assert {system.scores["accuracy"] for system in found.systems} == {1.0, 0.9}
        assert "it has no rows, and is read as answers to those of" in found.notes[0]
        assert [row["setting"].split(" ", 1)[1] for row in found.settings] == ["that only some record"]


def tagged(tags):
    texts = (["Ada", "Byron", "wrote"], ["in", "Rome", "."])
    gold = [line.split() for line in SPANS]
    return [
        {"id": n, "tokens": words, "tags": right, "prediction": own.split(), "word_probabilities": [0.5] * 3}
        for n, (words, right, own) in enumerate(zip(texts, gold, tags, strict=True))
    ]


def test_entities_are_shown_as_entities_and_their_types_are_slices(tmp_path):
    recipe = {"task": "token_classification", "metrics": ["f1"], "best_metric": "f1"}
    labels = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    run = make_run(tmp_path / "a", tagged(("B-PER O O", "O B-LOC O")), labels=labels, **recipe)
    (tmp_path / "predictions.txt").write_text("B-PER I-PER O\nO B-PER O\n")
    found = compare([run, tmp_path / "predictions.txt"]).changes["predictions.txt"]
    (won,), (lost,) = found.won_rows, found.lost_rows
    assert (won.gold, won.first, won.second) == ("Ada Byron (PER)", "Ada (PER)", "Ada Byron (PER)")
    assert (lost.gold, lost.first, lost.second) == ("Rome (LOC)", "Rome (LOC)", "Rome (PER)")
    of_types = {one.value: one for one in found.slices if one.by == "entities"}
    # PER: 0 of 1 right with 1 found, then 1 of 1 right with 2 found
    assert (of_types["PER"].first, of_types["PER"].second) == (0.0, pytest.approx(2 / 3))
    assert (of_types["PER"].rows, of_types["PER"].won, of_types["PER"].lost) == (2, 1, 1)
    assert (of_types["LOC"].first, of_types["LOC"].second, of_types["LOC"].lost) == (1.0, 0.0, 1)
