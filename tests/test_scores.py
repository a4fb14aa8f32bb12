"""Each printed number is recounted: the list has every metric, names tests that exist, and is the one of the docs."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from benchmarks.coverage import (
    CALIBRATION,
    CALIBRATION_SIZES,
    CALIBRATION_TRIALS,
    CASES,
    RESULTS,
    SEARCH_METRICS,
    SIZES,
    SURE,
)
from benchmarks.null_tables import DRAWS, SKEWS
from benchmarks.null_tables import RESULTS as NULL
from bertkit.pretraining.objectives import load_objective, objective_names
from bertkit.recipe import load_recipe, recipe_names
from bertkit.recipe.records import PretrainRecipe
from bertkit.tasks import EVALUATE_PREFIX, load_task, reranking

ROOT = Path(__file__).parent.parent
ENTRIES = yaml.safe_load((ROOT / "tests" / "scores.yaml").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "scores.md").read_text(encoding="utf-8")
REDO = "name its recount in tests/scores.yaml, and run `make scores`"


def recounted(where: str) -> set[str]:
    return {name for entry in ENTRIES if entry["where"] == where for name in entry["metrics"]}


def test_every_metric_of_every_recipe_is_recounted():
    for name in recipe_names():
        recipe = load_recipe(name)
        metrics = {*recipe.metrics, *load_task(recipe).METRICS} - {EVALUATE_PREFIX}
        assert metrics <= recounted(recipe.task), f"{name}: {REDO}"


@pytest.mark.parametrize("name", objective_names())
def test_every_score_of_every_objective_is_recounted(name):
    objective = load_objective(PretrainRecipe(name="any", objective=name))
    totals = defaultdict(lambda: 1.0, {f"teacher_{part}": 1.0 for part in ("mlm", "masked", "found")})
    assert set(objective.score(totals)) <= recounted(name), REDO


@pytest.mark.parametrize("task", list(dict.fromkeys(case.task for case in CASES)), ids=lambda task: task.__name__)
def test_the_coverage_of_every_interval_is_measured(task):
    measured = {name for case in CASES if case.task == task for name in case.metrics}
    has_none = {name for name in task.METRICS if name.endswith("_thresh")}
    counted_alike = {name for name in task.METRICS if name.endswith("_strict")}
    of_search = {*SEARCH_METRICS} if task is reranking else set()
    expected = ({*task.METRICS} - {EVALUATE_PREFIX} - has_none - counted_alike) | of_search
    assert expected == measured, "name the metric in a case of benchmarks/coverage.py, and run `make scores`"


def test_the_page_has_the_coverage_that_was_measured():
    part = PAGE.partition("## Intervals")[2].partition("The intervals of the measures")[0]
    lines = re.findall(r"^\| ([\w ]+) \| `([\w@]+)` \| [\w ]+ \|(.*)\|$", part, re.MULTILINE)
    assert [(rows, name) for rows, name, _ in lines] == [(case.rows, name) for case in CASES for name in case.metrics]
    content = json.loads(RESULTS.read_text(encoding="utf-8"))
    shown = {
        (rows, name, size): re.findall(r"\d+\.\d", cell)
        for rows, name, cells in lines
        for size, cell in zip(SIZES, cells.split("|"), strict=True)
    }
    assert shown == {
        (cell["rows"], cell["metric"], cell["n"]): [f"{100 * cell['held'] / cell['intervals']:.1f}"]
        for cell in content["cells"]
    }


def test_the_page_has_the_coverage_of_calibrations():
    cells = json.loads(RESULTS.read_text(encoding="utf-8"))[CALIBRATION]
    assert {(cell["rows"], cell["n"], cell["trials"]) for cell in cells} == {
        (sure, size, CALIBRATION_TRIALS) for sure in SURE for size in CALIBRATION_SIZES
    }
    for cell in cells:
        line = next(line for line in PAGE.splitlines() if line.startswith(f"| {cell['rows']} | `{cell['metric']}` |"))
        column = CALIBRATION_SIZES.index(cell["n"]) + 4
        shown = re.match(r" (?:\*\*)?(\d+\.\d)", line.split("|")[column])[1]
        assert shown == f"{100 * cell['held'] / cell['intervals']:.1f}"


def test_the_page_has_the_false_alarms_that_were_counted_and_they_are_rare():
    cells = json.loads(NULL.read_text(encoding="utf-8"))["cells"]
    table = PAGE.partition("## False alarms")[2]
    for what in dict.fromkeys(cell["what"] for cell in cells):
        counted = [cell for cell in cells if cell["what"] == what]
        assert [(cell["share"], cell["draws"]) for cell in counted] == [(share, DRAWS) for share in SKEWS]
        line = next(line for line in table.splitlines() if line.startswith(f"| {what} |"))
        assert re.findall(r"(\d+)%", line) == [f"{100 * cell['alarms'] / DRAWS:.0f}" for cell in counted]
        if what.startswith("check"):
            assert max(cell["alarms"] for cell in counted) < 0.05 * DRAWS, what


def test_an_entry_has_tests_that_exist():
    for entry in ENTRIES:
        assert set(entry) == {"where", "metrics", "same_as", "tests"}, entry
        for test in entry["tests"]:
            file, _, name = test.partition("::")
            assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), test


def test_the_page_has_every_entry_as_it_is_written_here():
    rows = re.findall(r"^\| `([^`]*)` \| (.*) \| (.*) \| (.*) \|$", PAGE.partition("## Intervals")[0], re.MULTILINE)
    assert len(rows) == len(ENTRIES)
    for entry, (where, metrics, same_as, result) in zip(ENTRIES, rows, strict=True):
        assert (where, same_as) == (entry["where"], entry["same_as"]), REDO
        assert re.findall(r"`([^`]*)`", metrics) == entry["metrics"], REDO
        assert re.fullmatch(r"\d+ passed", result), REDO
