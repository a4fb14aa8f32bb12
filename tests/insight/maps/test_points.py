"""What becomes a point: texts, occurrences of words, and targets of rows."""

from __future__ import annotations

import pytest

from bertkit.errors import DataError, UsageError
from bertkit.insight.maps.points import read_occurrences, unit_of
from bertkit.recipe import Data
from bertkit.vectors.text_files import TextSource
from tests.conftest import write_csv, write_jsonl

TEXTS = ["An apple. Apple's APPLE-pie!", "pineapple, apples", "the New York bank", "a new  york? new york apple"]


def source(file, **data):
    return TextSource(file, None, Data(**data))


@pytest.fixture
def texts(tmp_path):
    rows = [{"id": f"r{n}", "text": text, "sense": "xy z"[n]} for n, text in enumerate(TEXTS)]
    return write_csv(tmp_path / "a.csv", rows)


def words_of(found):
    return [(one.id, one.text[slice(*one.span)]) for one in found]


def test_each_occurrence_of_a_word_is_a_point_whole_and_in_any_case(texts):
    found = read_occurrences(source(texts), words=["apple"], label="sense")
    assert words_of(found) == [("r0", "apple"), ("r0", "Apple"), ("r0", "APPLE"), ("r3", "apple")]
    assert [one.label for one in found] == ["x", "x", "x", "z"]
    assert found[1].row == {"text": TEXTS[0], "target": [10, 15]}


def test_several_words_are_labels_of_their_own(texts, caplog):
    caplog.set_level("INFO")
    found = read_occurrences(source(texts), words=["York", "new york", "Apple", "zebra"])
    assert words_of(found)[3:] == [("r2", "New York"), ("r3", "york"), ("r3", "new york"), ("r3", "apple")]
    assert [one.label for one in found][2:] == ["Apple", "new york", "York", "new york", "Apple"]
    assert "no row has the word 'zebra'" in caplog.text


def test_whole_texts_are_points_and_an_empty_cell_is_no_label(texts):
    found = read_occurrences(source(texts), label="sense")
    assert [one.text for one in found] == TEXTS
    assert [one.label for one in found] == ["x", "y", None, "z"]
    assert found[0].row == {"text": TEXTS[0]} and found[0].span is None
    assert len(read_occurrences(source(texts, limit=2))) == 2


def test_targets_are_points_in_lists_of_words_and_in_texts(tmp_path):
    rows = [{"tokens": ["eat", "an", "Apple"], "target": 2}, {"tokens": ["a", "bank"], "target": 1}]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    found = read_occurrences(source(file), "target")
    assert words_of(found) == [(0, "Apple"), (1, "bank")]
    assert found[0].row == {"tokens": ["eat", "an", "Apple"], "target": 2}
    assert words_of(read_occurrences(source(file), "target", ["apple"])) == [(0, "Apple")]
    assert words_of(read_occurrences(source(file), "text", ["a", "an"])) == [(0, "an"), (1, "a")]
    file = write_jsonl(tmp_path / "b.jsonl", [{"text": "an apple, or two", "target": [3, 8]}])
    assert words_of(read_occurrences(source(file), "target")) == [(0, "apple")]


def test_what_cannot_be_found_is_named(texts):
    with pytest.raises(DataError, match=r"no row has the word 'bananas'"):
        read_occurrences(source(texts), words=["bananas"])
    with pytest.raises(DataError, match=r"no column 'senses' \(.*a.csv.*did you mean sense"):
        read_occurrences(source(texts), label="senses")
    with pytest.raises(UsageError, match="--word without a word"):
        unit_of("text", [" "])
