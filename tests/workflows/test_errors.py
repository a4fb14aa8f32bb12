"""What a run gets wrong, from stored predictions."""

from __future__ import annotations

import json
import random

import pytest

from bertkit.cli.output import to_plain
from bertkit.errors import DataError, UsageError
from bertkit.recipe import load_recipe
from bertkit.reports.errors import write_mistakes
from bertkit.storage import disk
from bertkit.workflows.errors import find_errors
from bertkit.workflows.explain import _find_mistaken_rows
from tests.conftest import toy_rows, write_csv
from tests.evaluation.stored_runs import make_rows, make_run, predict
from tests.kills import slow_unless

ROWS = make_rows(200)
for _number in range(0, 200, 4):
    ROWS[_number]["text"] += " not"


def make(folder, wrong, **facts):
    return make_run(folder, predict(ROWS, set(wrong)), **facts)


def draw(share, extra, seed):
    rng = random.Random(seed)
    return [n for n in range(200) if rng.random() < (share + extra if n % 4 == 0 else share)]


def test_a_run_has_its_mistakes_and_its_bad_slice(tmp_path):
    wrong = draw(0.1, 0.5, 0)
    found = find_errors(make(tmp_path / "a", wrong))
    assert (found.rows, found.units, found.wrong) == (200, 200, len(wrong))
    assert found.rate == pytest.approx(1 - found.scores["accuracy"])
    assert {answer.id for answer in found.mistakes} == {str(n) for n in wrong}
    assert [one.value for one in found.slices if one.is_beyond_chance and one.by == "negation"] == ["yes"]
    assert found.test == "Fisher's exact test"
    assert "the training rows are unknown" in found.notes[0]
    write_mistakes(tmp_path / "a.html", found)
    assert (tmp_path / "a.html").stat().st_size < 200_000


def test_new_words_are_new_to_the_training_rows(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "train.csv").write_text("text,label\nword not,good\n")
    lines = [f"{row['text']},{row['label']},{'ab'[n % 2]}" for n, row in enumerate(ROWS)]
    (tmp_path / "d" / "validation.csv").write_text("\n".join(["text,label,source", *lines, ""]))
    run = make(tmp_path / "a", range(20), data={"source": str(tmp_path / "d")})
    found = find_errors(run, by=["source"])
    assert found.notes == []
    assert {one.value for one in found.slices if one.by == "source"} == {"a", "b"}
    with pytest.raises(DataError, match="'none'"):
        find_errors(run, by=["none"])


def test_words_of_an_evaluated_file_are_compared_with_the_rows_of_the_run(tmp_path, run, trained):
    rows = toy_rows(30, seed=5)
    write_csv(tmp_path / "new.csv", [*rows, *({**row, "text": f"zyx wvu {row['text']}"} for row in rows)])
    run("eval", trained, "--data", tmp_path / "new.csv", "--output", tmp_path / "scored")
    found = find_errors(tmp_path / "scored")
    assert {part.value: part.units for part in found.slices if part.by == "new words"} == {"0": 30, "2 or more": 30}


@pytest.mark.parametrize("sort", slow_unless(["confidence", "error"], ["confidence", "length", "label", "error"]))
def test_rows_that_wait_on_disk_have_the_same_mistakes(sort, tmp_path, monkeypatch):
    run = make(tmp_path / "a", draw(0.2, 0.3, 0))

    def look():
        return to_plain(find_errors(run, sort=sort)), [row["id"] for row in _find_mistaken_rows(run, 9)]

    in_memory = look()
    monkeypatch.setattr(disk, "IN_MEMORY", 10)
    assert look() == in_memory
    assert json.dumps(in_memory)


def test_what_cannot_be_looked_at_is_refused(tmp_path):
    run = make(tmp_path / "a", ())
    make(tmp_path / "s" / "seed-1", ())
    for call, message in (
        (lambda: find_errors(tmp_path / "s"), "a folder of seeds"),
        (lambda: find_errors(run / "predictions.jsonl"), "have no recipe, so their metrics are unknown"),
    ):
        with pytest.raises(UsageError, match=message):
            call()
    assert find_errors(run / "predictions.jsonl", recipe=load_recipe("classify")).wrong == 0
