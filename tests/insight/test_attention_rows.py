"""Rows are texts or words, with the relations that CoNLL-U has."""

from __future__ import annotations

import pytest

from bertkit.data.files import read_records
from bertkit.errors import DataError
from bertkit.insight.attention_rows import TextOrWords, encode_rows, parse_row
from bertkit.recipe import Data
from tests.conftest import make_tokenizer

CONLLU = "1\tGoods\t_\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tis\t_\tAUX\t_\t_\t0\troot\t_\t_\n\n"


def test_words_of_conllu_have_heads_and_relations(tmp_path):
    (tmp_path / "a.conllu").write_text(CONLLU)
    (record,) = read_records(tmp_path / "a.conllu", Data())
    row = parse_row(record, "text", "a.conllu")
    assert row == TextOrWords(None, ["Goods", "is"], [2, 0], ["nsubj", "root"])
    (encoded,) = encode_rows([row], make_tokenizer(), 12)
    assert encoded.spans == [(1, 3), (3, 4)]  # good ##s, is
    assert encoded.is_special == [True, *[False] * 3, True]
    assert encoded.separators == [*[False] * 4, True]
    assert (encoded.heads, encoded.relations) == ([2, 0], ["nsubj", "root"])


def test_texts_and_words_without_relations():
    assert parse_row((1, {"text": "a film"}), "text", "f") == TextOrWords("a film", None)
    assert parse_row((1, {"words": ["a", "film"]}), "words", "f") == TextOrWords(None, ["a", "film"])
    assert parse_row((1, {"tokens": ["a"], "head": [None], "deprel": ["_"]}), "text", "f").heads == [0]
    contracted = {
        "tokens": ["I", "don't", "do", "n't", "go"],
        "head": ["4", "None", "4", "4", "0"],
        "deprel": ["x"] * 5,
    }
    assert parse_row((1, contracted), "text", "f").heads == [5, 0, 5, 5, 0]
    rows = [TextOrWords("a film", None), TextOrWords("", None), TextOrWords(None, ["a"]), TextOrWords("a " * 9, None)]
    tokenizer = make_tokenizer()
    found = encode_rows(rows, tokenizer, 10)  # the second is empty, the last too long
    assert [tokenizer.convert_ids_to_tokens(row.feature["input_ids"]) for row in found] == [
        ["[CLS]", "a", "film", "[SEP]"],
        ["[CLS]", "a", "[SEP]"],
    ]
    assert [row.spans for row in found] == [[], [(1, 2)]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"body": "a"}, "no column 'text'"),
        ({"text": 3}, "not a text"),
        ({"tokens": ["a"], "head": ["1", "2"], "deprel": ["x"]}, "1 words but 2 values"),
        ({"tokens": ["a"], "head": ["one"], "deprel": ["x"]}, "are not the heads of 1 words"),
        ({"tokens": ["a"], "head": ["0"], "deprel": []}, "1 words but 0 values"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_rows_that_do_not_fit_are_refused(values, message):
    with pytest.raises(DataError, match=message):
        parse_row((7, values), "text", "f")
