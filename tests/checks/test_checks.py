"""The texts of rows, and which rows count as alike."""

from __future__ import annotations

from bertkit.checks import digest_inputs, digest_other_columns, get_input_columns, read_texts
from bertkit.data.columns import ColumnSpec

PAIRS = ColumnSpec(inputs=("text",), gold="label", optional=("text_pair",))
SENSES = ColumnSpec(inputs=("tokens", "target"), gold="sense", lists=("tokens",), fallback_columns={"tokens": "text"})


def test_texts_are_read_from_any_columns():
    assert get_input_columns(PAIRS) == ["text", "text_pair"]
    assert read_texts({"id": "7", "text": "A cat", "text_pair": "B", "label": "x"}, PAIRS) == {
        "text": "A cat",
        "text_pair": "B",
    }
    assert read_texts({"tokens": ["the", "bank"], "target": 1, "sense": "bank/river"}, SENSES) == {"tokens": "the bank"}


def test_rows_are_alike_whatever_their_case_spaces_and_last_mark():
    rows = [
        {"text": text, "label": label}
        for text, label in (("A  cat", "x"), ("a cat ", "y"), ("a cat!", "x"), ("a cats", "x"))
    ]
    first, second, third, fourth = digest_inputs(rows, PAIRS).tolist()
    assert first == second == third != fourth


def test_all_columns_count():
    one, other = {"tokens": ["bank"], "target": 0}, {"tokens": ["bank"], "target": 1}
    digests = digest_inputs([one, other], SENSES).tolist()
    assert digests[0] != digests[1]
    assert digest_other_columns(one, SENSES, "target") == digest_other_columns(other, SENSES, "target")
    assert digest_other_columns(one, SENSES, "tokens") != digest_other_columns(other, SENSES, "tokens")
