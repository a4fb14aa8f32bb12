"""GLUE: the averages are those of the leaderboard and of the BERT paper, and files are what the leaderboard reads."""

from __future__ import annotations

import zipfile
from dataclasses import replace

import pytest

from bertkit.errors import DataError
from bertkit.evaluation.glue import (
    TASKS,
    leaderboard_average,
    missing_scores,
    paper_average,
    published_averages,
    submission_lines,
    summarize,
    write_zip,
)
from bertkit.evaluation.run_sets import SetRun
from bertkit.evaluation.scoring import EvalResult
from bertkit.recipe import load_recipe

# BERT-large as https://gluebenchmark.com/leaderboard lists it, with the score 80.5
BERT_LARGE = {
    "cola": {"validation": {"matthews_correlation": 60.5}},
    "sst2": {"validation": {"accuracy": 94.9}},
    "mrpc": {"validation": {"f1": 89.3, "accuracy": 85.4}},
    "stsb": {"validation": {"pearsonr": 87.6, "spearmanr": 86.5}},
    "qqp": {"validation": {"f1": 72.1, "accuracy": 89.3}},
    "mnli": {"validation": {"accuracy": 86.7}, "validation_mismatched": {"accuracy": 85.9}},
    "qnli": {"validation": {"accuracy": 92.7}},
    "rte": {"validation": {"accuracy": 70.1}},
    "wnli": {"validation": {"accuracy": 65.1}},
}


def test_averages_are_those_of_the_leaderboard_and_of_the_paper():
    assert round(leaderboard_average(BERT_LARGE), 1) == 80.5
    assert round(paper_average(BERT_LARGE), 1) == 82.1
    without = {name: scores for name, scores in BERT_LARGE.items() if name != "wnli"}
    assert leaderboard_average(without) is None and paper_average(without) == paper_average(BERT_LARGE)
    assert missing_scores(without) == ["wnli"] and missing_scores(BERT_LARGE) == []
    undefined = {**BERT_LARGE, "cola": {"validation": {"matthews_correlation": None}}}
    assert leaderboard_average(undefined) is None and paper_average(undefined) is None
    matched = {**undefined, "mnli": {"validation": {"accuracy": 86.7}}}
    assert missing_scores(matched) == ["cola matthews_correlation", "mnli validation_mismatched"]


def test_every_task_has_the_recipe_metrics_and_labels_that_the_leaderboard_wants():
    assert len({file.name for task in TASKS.values() for file in task.files}) == 11
    for name, task in TASKS.items():
        recipe = load_recipe(name)
        assert set(task.metrics) <= set(recipe.metrics)
        assert (recipe.labels is None) == (name == "stsb")
    names = {name: load_recipe(name).labels for name, task in TASKS.items() if task.writes_names}
    assert names == {
        "mnli": ["entailment", "neutral", "contradiction"],
        "qnli": ["entailment", "not_entailment"],
        "rte": ["entailment", "not_entailment"],
    }
    assert load_recipe("wnli").labels[1] == "entailment"  # which the leaderboard calls 1


def small(name, rows):
    task = TASKS[name]
    return task, replace(task.files[0], rows=rows)


def test_lines_have_numbers_names_or_clipped_scores_in_the_order_of_idx():
    records = [{"idx": 1, "prediction": "entailment"}, {"idx": 0, "prediction": "not_entailment"}]
    assert submission_lines(*small("wnli", 2), load_recipe("wnli").labels, records) == ["0\t0", "1\t1"]
    assert submission_lines(*small("rte", 2), load_recipe("rte").labels, records) == [
        "0\tnot_entailment",
        "1\tentailment",
    ]
    scores = [{"prediction": value} for value in (-0.25, 2.34567, 5.5)]
    assert submission_lines(*small("stsb", 3), (), scores) == ["0\t0.0000", "1\t2.3457", "2\t5.0000"]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"prediction": "entailment"}], "RTE.tsv requires 2 rows, got 1"),
        ([{"idx": 1, "prediction": "entailment"}] * 2, "idx is not 0 to 1"),
        ([{"prediction": "entailment"}, {"prediction": "neutral"}], "'neutral' is not one of"),
    ],
)
def test_what_the_leaderboard_would_refuse_is_refused(records, message):
    with pytest.raises(DataError, match=message):
        submission_lines(*small("rte", 2), load_recipe("rte").labels, records)


def test_a_score_that_is_no_number_is_refused():
    with pytest.raises(DataError, match="not a finite number"):
        submission_lines(*small("stsb", 1), (), [{"prediction": float("nan")}])


def test_equal_files_make_equal_archives_without_folders(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "RTE.tsv").write_text("index\tprediction\n0\tentailment\n")
    for name in ("a.zip", "b.zip"):
        write_zip(tmp_path / name, [tmp_path / "in" / "RTE.tsv"])
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == ["RTE.tsv"]
        assert archive.read("RTE.tsv") == b"index\tprediction\n0\tentailment\n"


def result(name, split, scores, warnings=()):
    return EvalResult(name, "m", split, scores, 100, 1.0, intervals={"accuracy": (0.5, 0.75)}, warnings=list(warnings))


def summary_of(source="nyu-mll/glue", **changes):
    recipes = {name: load_recipe(name, {"data.source": source, **changes}) for name in ("mnli", "cola", "stsb")}
    results = {
        "mnli": [
            result("mnli", "validation", {"accuracy": 0.625}, ["few rows"]),
            result("mnli", "validation_mismatched", {"accuracy": 0.5}, ["few rows"]),
        ],
        "cola": [result("cola", "validation", {"matthews_correlation": None, "accuracy": 0.7}, ["few rows", "odd"])],
    }
    runs = {name: SetRun(name, "finished", results=of_task) for name, of_task in results.items()}
    runs["stsb"] = SetRun("stsb", "failed", failure="no label")
    return {"folder": "runs/glue", **summarize("m", recipes, runs), "submission": None}


def test_scores_stand_beside_the_papers_and_every_task_is_named():
    summary = summary_of()
    assert [tuple(score.values())[:4] for score in summary["scores"]] == [
        ("cola", "validation", "matthews_correlation", None),
        ("mnli", "validation", "accuracy", 0.625),
        ("mnli", "validation_mismatched", "accuracy", 0.5),
    ]
    assert [score["published"] for score in summary["scores"]] == [
        {"bert-base": 0.521, "bert-large": 0.605},
        {"bert-base": 0.846, "bert-large": 0.867},
        {"bert-base": 0.834, "bert-large": 0.859},
    ]
    assert {run["status"] for run in summary["runs"]} == {"finished", "failed", "left out"} and len(
        summary["runs"]
    ) == 9
    assert summary["warnings"] == ["cola, mnli: few rows", "cola: odd"]
    assert (summary["leaderboard_average"], summary["paper_average"]) == (None, None)


def test_averages_of_the_paper_follow_from_the_recipes():
    assert {name: round(value, 3) for name, value in published_averages().items()} == {
        "bert-base": 0.796,
        "bert-large": 0.821,
    }


@pytest.mark.parametrize(("source", "changes"), [("demo", {}), ("nyu-mll/glue", {"data.limit": 9})])
def test_made_up_and_few_rows_are_not_compared_with_the_paper(source, changes):
    summary = summary_of(source, **changes)
    assert summary["published_averages"] == {} and not any(score["published"] for score in summary["scores"])
