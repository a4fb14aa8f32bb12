"""What `bertkit errors` prints and writes."""

from __future__ import annotations

import json
import re

import pytest

from tests.evaluation.stored_runs import make_rows, make_run, predict
from tests.kills import HEAVY

ROWS = make_rows(80)
for _number in range(0, 80, 2):
    ROWS[_number]["text"] = "<b>not</b> " + ROWS[_number]["text"]


@pytest.fixture
def work(tmp_path):
    make_run(tmp_path / "work" / "a", predict(ROWS, set(range(0, 60, 2))))
    return tmp_path / "work"


def test_a_run_is_tables_a_page_and_json(run, work):
    ended = run("errors", "a", "--show", 1, "--sort", "length", "-o", "page.html")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("mine, validation: 80 rows; matthews_correlation ")
    assert "  wrong: 30 of 80 (37.5%)\n" in ended.out
    assert re.search(r"    \* negation: yes +40 +0\.7500 +0\.0000 +\+0\.7500 +0\.5\d+ to 0\.8\d+ +<0\.001", ended.out)
    assert "  wrong rows: the first 1 of 30\n" in ended.out
    page = (work / "page.html").read_text()
    assert "&lt;b&gt;not" in page and "<b>not" not in page
    found = json.loads(run("errors", "a", "--json").out)
    assert (found["wrong"], len(found["mistakes"]), found["slices"][0]["is_beyond_chance"]) == (30, 30, True)


def test_a_rare_label_that_is_never_found_is_named_and_small_slices_are_listed(run, work):
    rows = [{**row, "label": "good" if n % 10 else "bad"} for n, row in enumerate(ROWS)]
    for row in rows[:3]:
        row["text"] += " 1984"
    make_run(
        work / "rare",
        predict([{**row, "text": row["text"].split(" ")[0] + " w"} for row in rows], {0, 10, 20, 30, 40, 50, 60}),
    )
    ended = run("errors", "rare", "-o", "page.html")
    assert ended.code == 0, ended.err
    assert re.search(r"\* label: bad +8 +0\.8750 +0\.0000 ", ended.out)
    assert re.search(r"  label: good +72 +0\.0000 +0\.8750 ", ended.out)
    make_run(work / "few", predict(rows, {0}))
    ended = run("errors", "few", "-o", "page.html")
    assert "  significantly worse than the rest: 0 of 0 tested slices " in ended.out
    assert re.search(r"  not tested \(p n/a\), because of too few rows or errors: \d+ slices", ended.out)
    assert re.search(r"  label: bad +8 +0\.1250 +0\.0000 .* n/a *\n", ended.out)


def test_mistakes_are_answered_in_one_line(run, work):
    for arguments, code, message in (
        (("none",), 2, "neither a run folder nor stored predictions (none)"),
        (("a", "-o", "page.pdf"), 2, "the page is HTML (page.pdf)"),
        (("a", "--group-by", "kind"), 3, "the recipe names no data"),
    ):
        ended = run("errors", *arguments)
        assert (ended.code, ended.last[: len(message) + 7]) == (code, f"error: {message}")


@pytest.mark.slow
def test_torch_is_not_imported(work, light_zygote):
    assert "torch" not in HEAVY & light_zygote.imports(work, ["errors", "a"])
