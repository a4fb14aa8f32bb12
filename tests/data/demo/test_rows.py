"""The demo's rows are the same everywhere, and its splits share nothing."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import pytest

from bertkit.data.demo.prose import demo_text
from bertkit.data.demo.sets import DEMO_SETS, SIZES, demo_rows
from bertkit.errors import DataError
from tests.data.demo.common import OTHERS, PAIRS_OR_TEXTS, all_text, one_per_writer, rows_of
from tests.kills import slow_unless


@pytest.mark.parametrize(("names", "digest"), [(PAIRS_OR_TEXTS, "741d7aff58948808"), (OTHERS, "df0be04011e80911")])
def test_rows_are_the_same_in_every_process(names, digest):
    rows = [rows_of(name, "validation", 20) for name in sorted(names)]
    assert hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize("name", slow_unless(["sst2", "rerank"], one_per_writer([*DEMO_SETS])))
def test_splits_share_no_text(name):
    first = {
        split: [row.get("text") or row.get("context") or all_text(row) for row in rows_of(name, split, None)]
        for split in SIZES
    }
    assert {split: len(set(texts)) for split, texts in first.items()} == SIZES
    everything = [all_text(row) for split in SIZES for row in rows_of(name, split, None)]
    assert len(set(everything)) == sum(SIZES.values())
    assert not set(first["train"]) & {*first["validation"], *first["test"]}
    assert not set(first["validation"]) & set(first["test"])


@pytest.mark.parametrize("name", PAIRS_OR_TEXTS)
def test_the_splits_hold_every_label(name):
    labels = DEMO_SETS[name].labels
    if labels:
        counts = Counter(row["label"] for row in rows_of(name, "train", 600))
        assert set(counts) == set(labels)
        assert min(counts.values()) > 0.25 * 600


def test_the_mismatched_split_is_about_something_else():
    matched, mismatched = (rows_of("mnli", f"validation{suffix}", 300) for suffix in ("", "_mismatched"))
    assert not {row["text"] for row in matched} & {row["text"] for row in mismatched}


def test_other_validation_splits_have_rows_of_their_own():
    first, second = (demo_rows(DEMO_SETS["cola"], split, 20) for split in ("validation", "validation_hard"))
    assert first != second


def test_what_there_is_not_is_refused():
    for split in ("dev", "train_mismatched"):
        with pytest.raises(DataError, match=f"the demo data of 'cola' has no split '{split}'"):
            demo_rows(DEMO_SETS["cola"], split)


def test_text_to_pretrain_on_is_the_same_in_every_process():
    text = "\n".join(demo_text(500, seed=1))
    # the demo model was trained on this text: where it changes, `make demo-model`
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "1eee59ce69a35566"
    assert text.startswith("\n".join(demo_text(50, seed=1)))
    assert list(demo_text(50, seed=1)) != list(demo_text(50, seed=2))


@pytest.mark.slow
def test_the_demo_learns_to_tell_good_sentences_from_broken_ones(run):
    ended = run("finetune", "cola", "--model", "demo", "--data", "demo", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["results"][0]["scores"]["matthews_correlation"] > 0.6
