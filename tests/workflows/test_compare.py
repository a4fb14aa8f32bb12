"""Runs, seeds and files are compared on the same rows, and refused where they do not match."""

from __future__ import annotations

import pytest
from scipy import stats

from bertkit.errors import DataError, ResourceError, UsageError
from bertkit.recipe import load_recipe
from bertkit.reports.text import ONE_SEED
from bertkit.storage.outputs import check_page
from bertkit.workflows.compare import compare, write_page
from tests.evaluation.stored_runs import make_rows, make_run, predict

ROWS = make_rows(40)


def make(folder, wrong, **facts):
    return make_run(folder, predict(ROWS, set(wrong)), **facts)


def test_two_runs_have_the_difference_and_its_p(tmp_path):
    first, second = make(tmp_path / "a", range(15)), make(tmp_path / "b", range(10, 17), seed=2)
    found = compare([first, second])
    difference = found.differences["b"]["accuracy"]
    assert (difference.first, difference.second) == (25 / 40, 33 / 40)
    assert difference.mcnemar == pytest.approx(stats.binomtest(2, 12).pvalue)
    assert difference.difference == pytest.approx(8 / 40)
    assert difference.interval[0] < 8 / 40 < difference.interval[1]
    assert difference.p_holm is None
    assert (found.changes["b"].won, found.changes["b"].lost) == (10, 2)
    assert [row["setting"] for row in found.settings] == ["training.seed"]
    assert (found.systems[0].name, found.units, found.split) == ("a", 40, "validation")
    assert found.notes == [ONE_SEED]
    write_page(tmp_path / "page.html", found)
    assert "which may reverse the result" in (tmp_path / "page.html").read_text()


def test_several_are_compared_with_the_first_and_corrected(tmp_path):
    runs = [make(tmp_path / name, wrong) for name, wrong in (("a", range(9)), ("b", ()), ("c", range(5)))]
    found = compare(runs)
    p = {name: found.differences[name]["accuracy"].p for name in "bc"}
    assert found.differences["b"]["accuracy"].p_holm == 2 * p["b"]
    assert found.differences["c"]["accuracy"].p_holm == max(2 * p["b"], p["c"])


def test_folders_of_seeds_are_compared_over_seeds_and_rows(tmp_path):
    for name, wrong in (("a", (range(9), range(8), range(3, 12))), ("b", (range(2), range(3), range(1)))):
        for seed, of_seed in enumerate(wrong, start=1):
            make(tmp_path / name / f"seed-{seed}", of_seed, seed=seed)
    make(tmp_path / "b" / "seed-4", (), status="failed")
    found = compare([tmp_path / "a", tmp_path / "b"])
    assert found.differences["b"]["accuracy"].test == "t over seeds and rows"
    assert found.systems[1].seed_scores["accuracy"] == [38 / 40, 37 / 40, 39 / 40]
    assert found.notes == [f"{tmp_path / 'b'}: left out seed-4 (failed)."]
    write_page(tmp_path / "page.html", found)
    with pytest.raises(UsageError, match=r"is one run, and .* has several seeds"):
        compare([tmp_path / "a" / "seed-1", tmp_path / "b"])


def test_a_file_of_eval_is_compared_with_a_run(tmp_path):
    make(tmp_path / "a", range(4))
    make(tmp_path / "b", ())
    (tmp_path / "b" / "run.json").unlink()
    assert compare([tmp_path / "a", tmp_path / "b"]).differences["b"]["accuracy"].difference == pytest.approx(0.1)
    found = compare([tmp_path / "b" / "predictions.jsonl", tmp_path / "a"], recipe=load_recipe("classify"))
    assert found.best_metric == load_recipe("classify").best_metric


def test_a_metric_that_predictions_do_not_determine_is_left_out(tmp_path):
    recorded = {"accuracy": 1.0, "matthews_correlation": 0.5}
    runs = [make(tmp_path / "a", (), scores=recorded), make(tmp_path / "b", ())]
    found = compare(runs)
    assert list(found.differences["b"]) == ["accuracy"]
    assert found.notes == ["matthews_correlation: left out, because stored predictions do not determine it.", ONE_SEED]
    make(tmp_path / "c", (), scores={"accuracy": 0.25})
    with pytest.raises(DataError, match="do not give the accuracy that the run recorded"):
        compare([tmp_path / "c", tmp_path / "b"])


def test_what_cannot_be_compared_is_refused(tmp_path):
    make(tmp_path / "a", ())
    make(tmp_path / "s" / "seed-1", ())
    for paths, message in (
        ([tmp_path / "a"], "one run cannot be compared"),
        ([tmp_path / "a", f"{tmp_path}/a/"], "named twice"),
        ([tmp_path / "s", tmp_path / "a" / ".."], "neither a run folder"),
    ):
        with pytest.raises(UsageError, match=message):
            compare(paths)
    make(tmp_path / "t" / "seed-1", ())
    with pytest.raises(UsageError, match="the spread of seeds needs at least two"):
        compare([tmp_path / "s", tmp_path / "t"])


def test_a_page_is_html_in_a_folder_that_is_there(tmp_path):
    assert check_page(tmp_path / "a.html") == tmp_path / "a.html"
    with pytest.raises(UsageError, match=r"name it a\.html"):
        check_page("a.txt")
    with pytest.raises(ResourceError, match="no such folder"):
        check_page(tmp_path / "none" / "a.html")
