"""Ways to read texts that are too long, by what a trained model scores."""

from __future__ import annotations

import random
import re

import pytest

from bertkit.checks.long_text_ways import check_ways, compare_ways
from bertkit.data.rows import Split
from bertkit.errors import UsageError
from bertkit.evaluation.checkpoint import find_checkpoint
from bertkit.recipe import load_recipe
from bertkit.workflows.evaluate import evaluate
from tests.conftest import WORDS, write_jsonl


def open_run(trained, **changes):
    return find_checkpoint(load_recipe("classify", {"model": str(trained), "training.max_length": 12, **changes}))


def rows_of(count: int, *, last: bool) -> Split:
    """Rows whose label is told by the first word or by the last of twenty."""
    draw, rows = random.Random(1), []
    for number in range(count):
        label = ("good", "bad")[number % 2]
        words = draw.choices(WORDS["filler"], k=20)
        words[19 if last else 0] = draw.choice(WORDS[label])
        rows.append({"text": " ".join(words), "label": label})
    return Split("validation", "v.jsonl", rows, list(range(1, count + 1)))


@pytest.mark.slow
def test_the_way_that_scores_best_is_advised(trained, tmp_path):
    split = rows_of(60, last=True)
    found = compare_ways(open_run(trained), split)
    scores = {way: text for one in found[:-1] for way, text in [re.findall("read by (.*?): (.*)", one.text)[0]]}
    assert list(scores) == ["head", "tail", "head_tail", "windows_mean", "windows_max", "windows_vote"]
    advice = found[-1]
    assert (advice.level, advice.name) == ("warn", "long_text_advice")
    assert advice.text.startswith(
        "tail reads long texts better than head: f1_macro 1.0000 instead of 0.3333 on the 60 val"
    )
    file = write_jsonl(tmp_path / "v.jsonl", split.rows)
    changes = {"model": str(trained), "training.max_length": 12, "data.source": str(file), "options.long_text": "tail"}
    (result,) = evaluate(load_recipe("classify", changes))
    assert scores["tail"].startswith(f"f1_macro {result.scores['f1_macro']:.4f}, loss 0.")


def test_without_a_gain_the_way_stays(trained):
    found = compare_ways(open_run(trained), rows_of(40, last=False))
    assert (found[-1].level, found[-1].text) == (
        "good",
        "stay with head: no way is shown to be better on the 40 validation rows that are too long",
    )
    few = compare_ways(open_run(trained), rows_of(4, last=True))
    assert [one.text for one in few] == [
        "validation: 4 rows are too long, which are too few to compare ways to read them"
    ]


def test_what_cannot_be_compared_is_refused(trained):
    with pytest.raises(UsageError, match="a hierarchical model reads long texts in no other way"):
        check_ways(open_run(trained, **{"options.long_text": "hierarchical"}))
    tags = find_checkpoint(load_recipe("tag", {"model": str(trained)}))
    with pytest.raises(UsageError, match=r"token_classification has no options\.long_text"):
        check_ways(tags)
