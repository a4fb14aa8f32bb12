"""Which rows of files repeat others, in the order in which they are preferred."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.errors import DataError, UsageError
from bertkit.vectors.duplicates import (
    Duplicate,
    find_repeated_texts,
    find_similar_rows,
    get_remaining_rows,
    group_rows,
    measure_similarity,
    resolve_chains,
    scan_rows,
)
from bertkit.vectors.text_files import TextFile
from bertkit.vectors.vector_files import to_unit_length
from tests.conftest import write_csv

ROWS = [("A cat", 1), ("dog", 5), ("a  cat.", 2), ("A CAT", 3), ("", 9), ("dog ", 7)]


@pytest.fixture
def file(tmp_path):
    return TextFile(write_csv(tmp_path / "a.csv", [{"text": text, "score": score} for text, score in ROWS]))


@pytest.mark.parametrize(
    ("keep", "pairs"),
    [("first", {3: 0, 5: 1}), ("longest", {3: 0, 5: 1}), ("best:score", {0: 3, 1: 5})],
)
def test_the_preferred_row_is_kept(keep, pairs, file):
    scanned = scan_rows([file], keep, with_signatures=True)
    found = resolve_chains(find_repeated_texts(scanned, 0.9), scanned.fixed)
    assert {row: duplicate.kept_row for row, duplicate in found.items()} == pairs
    assert 4 not in get_remaining_rows(scanned, list(found.values()))


@pytest.mark.parametrize(
    ("keep", "error", "message"),
    [
        ("last", UsageError, "--keep last"),
        ("best:", UsageError, "--keep best:"),
        ("best:scor", DataError, "no column 'scor'.*did you mean score"),
        ("best:text", DataError, "'A cat' is not a number.*a.csv:2"),
    ],
)
def test_a_wrong_preference_is_refused(keep, error, message, file):
    with pytest.raises(error, match=message):
        scan_rows([file], keep, with_signatures=False)


def test_rows_of_other_files_stay_and_are_named(file, tmp_path):
    training = TextFile(write_csv(tmp_path / "train.csv", [{"text": "dog"}, {"text": "DOG"}]))
    scanned = scan_rows([training, file], "best:score", with_signatures=True)
    gone = resolve_chains(find_repeated_texts(scanned, 0.9), scanned.fixed)
    assert {row: duplicate.kept_row for row, duplicate in gone.items()} == {2: 5, 3: 0, 7: 0}
    groups: dict[int, list] = {}
    for row in group_rows(scanned, gone):
        groups.setdefault(row["group"], []).append((row["file"].rpartition("/")[2], row["row"], row["reason"]))
    assert sorted(groups.values()) == [
        [("a.csv", 5, ""), ("a.csv", 2, "exact")],
        [("train.csv", 2, ""), ("a.csv", 3, "exact"), ("a.csv", 7, "exact")],
    ]


def test_a_row_that_repeats_one_that_goes_names_the_one_that_stays():
    found = [Duplicate(5, 3, "exact", 1.0), Duplicate(3, 1, "near", 0.92), Duplicate(1, 0, "meaning", 0.97)]
    assert resolve_chains(found, 2) == {5: Duplicate(5, 0, "meaning", 0.97), 3: Duplicate(3, 0, "meaning", 0.92)}


def test_vectors_are_compared_in_the_order_of_preference():
    rows = np.array([7, 2, 9])
    vectors = np.array([[1, 0], [0, 1], [0.999, 0.04]], dtype=np.float32)
    found = find_similar_rows(rows, vectors, 0.9, 0)
    assert [(duplicate.row, duplicate.kept_row, duplicate.reason) for duplicate in found] == [(9, 7, "meaning")]


def test_the_similarity_of_rows_is_that_of_all_pairs():
    vectors = to_unit_length(np.random.default_rng(1).standard_normal((300, 4)).astype(np.float32))
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -2)
    steps = measure_similarity(vectors)
    assert [step.threshold for step in steps] == [0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5]
    nearest = cosines.max(axis=1)
    for threshold, share, pair in steps:
        assert share == pytest.approx((nearest >= threshold).mean())
        assert cosines[pair] == pytest.approx(nearest[nearest >= threshold].min())
    assert measure_similarity(np.eye(3, dtype=np.float32))[0].pair is None
