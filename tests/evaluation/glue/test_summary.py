"""The summary of GLUE: scores in the leaderboard's order, beside published ones only where these can be compared."""

from __future__ import annotations

import pytest

from bertkit.evaluation.glue.summary import GlueRun, published_averages, summarize
from bertkit.evaluation.scoring import Result
from bertkit.recipe import load_recipe


def result(name, split, scores, warnings=()):
    return Result(name, "m", split, scores, 100, 1.0, intervals={"accuracy": (0.5, 0.75)}, warnings=list(warnings))


def summary_of(source="nyu-mll/glue", **changes):
    recipes = {name: load_recipe(name, {"data.source": source, **changes}) for name in ("mnli", "cola", "stsb")}
    finished = {
        "mnli": [
            result("mnli", "validation", {"accuracy": 0.625}, ["few rows"]),
            result("mnli", "validation_mismatched", {"accuracy": 0.5}, ["few rows"]),
        ],
        "cola": [result("cola", "validation", {"matthews_correlation": None, "accuracy": 0.7}, ["few rows", "odd"])],
    }
    return summarize("m", "runs/glue", recipes, finished, {"stsb": GlueRun("stsb", "failed", "no label")})


def test_scores_stand_beside_the_papers_and_every_task_is_named():
    summary = summary_of()
    assert [(score.task, score.split, score.metric, score.score) for score in summary.scores] == [
        ("cola", "validation", "matthews_correlation", None),
        ("mnli", "validation", "accuracy", 0.625),
        ("mnli", "validation_mismatched", "accuracy", 0.5),
    ]
    assert [score.published for score in summary.scores] == [
        {"bert-base": 0.521, "bert-large": 0.605},
        {"bert-base": 0.846, "bert-large": 0.867},
        {"bert-base": 0.834, "bert-large": 0.859},
    ]
    assert {run.status for run in summary.runs} == {"finished", "failed", "left out"} and len(summary.runs) == 9
    assert summary.warnings == ["cola, mnli: few rows", "cola: odd"]
    assert (summary.leaderboard_average, summary.paper_average) == (None, None)


def test_averages_of_the_paper_follow_from_the_recipes():
    assert {name: round(value, 3) for name, value in published_averages().items()} == {
        "bert-base": 0.796,
        "bert-large": 0.821,
    }


@pytest.mark.parametrize(("source", "changes"), [("demo", {}), ("nyu-mll/glue", {"data.limit": 9})])
def test_made_up_and_few_rows_are_not_compared_with_the_paper(source, changes):
    summary = summary_of(source, **changes)
    assert summary.published_averages == {} and not any(score.published for score in summary.scores)
