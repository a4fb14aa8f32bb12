"""JSON Lines: values stay as written, keys and types stay the same, and every fault names its line."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bertkit.data import text as text_files
from bertkit.errors import DataError
from tests.data.formats.contents import json_of_any_content, json_rows, read_content, rows_or_one_line

LINES = "write one JSON object per line"
QUOTE = "write it as text, in quotes"
CP1252 = "if the file is cp1252: --set data.encoding=cp1252"
ONE_TYPE = "give the column values of one type"
AS_ROWS = 'write rows as {"text": ..., "label": ...}'
SAME_KEYS = "give every row the same keys, with null for a missing value"


def reading(content, **options):
    return read_content("jsonl", content, "train.jsonl", **options)


def test_one_object_per_line():
    assert reading('{"a": "x", "b": 1}\n\n  {"b": 2.5, "a": null}\r\n{"a": "007", "b": null}\n\n') == [
        (1, {"a": "x", "b": 1}),
        (3, {"b": 2.5, "a": None}),
        (4, {"a": "007", "b": None}),
    ]


def test_byte_order_mark_and_encoding():
    assert reading('{"a": "é"}'.encode("utf-8-sig")) == [(1, {"a": "é"})]
    assert reading('{"a": "é"}\n'.encode("utf-16"), encoding="utf-16") == [(1, {"a": "é"})]


def test_values_that_stay():
    row = reading(r'{"a": NaN, "b": -Infinity, "c": "\ud83d\ude00 \\u0000", "d": 9223372036854775807, "e": [{}]}')[0][1]
    assert math.isnan(row["a"])
    assert (row["b"], row["c"], row["d"], row["e"]) == (-math.inf, "😀 \\u0000", 2**63 - 1, [{}])


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "the file is empty (train.jsonl) - add rows"),
        ("\n\n", "the file is empty (train.jsonl) - add rows"),
        (
            '{"a": 1}\n{"a" 2}\n{"a": 3}\n',
            "not JSON, character 6: Expecting ':' delimiter: '{\"a\" 2}' (train.jsonl:2) - " + LINES,
        ),
        (
            '{"a": "x\n{"a": 3}\n',
            'not JSON, character 9: Invalid control character at: \'{"a": "x\' (train.jsonl:1) - ' + LINES,
        ),
        (
            '{"a": 1}{"a": 2}\n',
            'not JSON, character 9: Extra data: \'{"a": 1}{"a": 2}\' (train.jsonl:1) - ' + LINES,
        ),
        (
            '{"a": 1}\n{"a": "x',
            'the last line is truncated: \'{"a": "x\' (train.jsonl:2) - delete it, or download the file again',
        ),
        (
            '{"a": 1}\n{"a": {"b": 2}',
            'the last line is truncated: \'{"a": {"b": 2}\' (train.jsonl:2) - delete it, or download the file again',
        ),
        (
            '{"a": 1}\n{"a" 2}',
            "not JSON, character 6: Expecting ':' delimiter: '{\"a\" 2}' (train.jsonl:2) - " + LINES,
        ),
        ('[\n{"a": 1}\n]', "a list, not one object per line: '[' (train.jsonl:1) - rename the file to .json"),
        (
            '{"text": 1, "label": 1}\n{"text": 2}\n',
            f"the keys change: no 'label' (train.jsonl:2) - {SAME_KEYS}",
        ),
        (
            '{"text": 1, "label": 1}\n\n{"text": 2, "lable": 1}\n',
            f"the keys change: no 'label', a new 'lable' (train.jsonl:3) - {SAME_KEYS}",
        ),
        (
            '{"a": 1}\n{"a": 1, "b": {"c": 1, "c": 2}}\n',
            "the key 'c' occurs twice (train.jsonl:2) - keep one",
        ),
        ('{"a": 1, "a": 2}\n', "the key 'a' occurs twice (train.jsonl:1) - keep one"),
        (
            '{"a": "x", "b": ["\\ud83d"]}\n',
            "half of a surrogate pair: '\\ud83d' (train.jsonl:1, column 'b') - write the whole character",
        ),
        ('{"a": "x", "b": "y\\u0000"}\n', "a NUL character (train.jsonl:1, column 'b') - remove it"),
        ('{"a": "x", "b\\u0000": "y"}\n', "a NUL character (train.jsonl:1, column 'b\\x00') - remove it"),
        ('{"a": {"b\\u0000": "y"}}\n', "a NUL character (train.jsonl:1, column 'a') - remove it"),
        ('{"a": "x\0"}\n', "a NUL character (train.jsonl:1) - remove it"),
        (
            '{"a": "x"}\n'.encode("utf-16-le"),
            "a NUL character (train.jsonl:1) - the file looks like utf-16-le: --set data.encoding=utf-16-le",
        ),
        (
            '{"a": "x"}\n{"a": "é"}\n'.encode("cp1252"),
            "byte 0xe9 at offset 18 is not valid utf-8 (train.jsonl:2) - " + CP1252,
        ),
        ('{"a": 1}\n["x"]\n', f"a list instead of an object: '[\"x\"]' (train.jsonl:2) - {AS_ROWS}"),
        ("null\n", f"null instead of an object: 'null' (train.jsonl:1) - {AS_ROWS}"),
        ('"x"\n', f"text instead of an object: '\"x\"' (train.jsonl:1) - {AS_ROWS}"),
        (
            '{"a": 9223372036854775808}\n',
            "the integer 9223372036854775808 does not fit in 64 bits (train.jsonl:1) - " + QUOTE,
        ),
        (
            '{"a": [-' + "9" * 5000 + "]}\n",
            f"the integer -{'9' * 39} does not fit in 64 bits (train.jsonl:1) - " + QUOTE,
        ),
        (
            '{"a": null}\n{"a": "x"}\n{"a": 1}\n',
            "a number, but text in row 2 (train.jsonl:3, column 'a') - " + ONE_TYPE,
        ),
        (
            '{"a": 1}\n{"a": 1.5}\n{"a": true}\n',
            "true or false, but a number in row 1 (train.jsonl:3, column 'a') - " + ONE_TYPE,
        ),
        ("[" * 100_000 + "\n", "lists or objects nest too deep (train.jsonl:1) - flatten them"),
    ],
)
def test_faults_of_lines(content, line):
    with pytest.raises(DataError) as caught:
        reading(content)
    assert str(caught.value) == line


def test_a_line_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(text_files, "MAX_CHARS", 100)
    with pytest.raises(DataError) as caught:
        reading('{"a": "x"}\n' + '{"a": "' + "x" * 100 + '"}\n')
    assert str(caught.value) == "a line of more than 100 characters (train.jsonl:2) - split it"


def test_utf16_without_its_mark_is_refused():
    with pytest.raises(DataError, match=r"\(train.jsonl\) - add --set data.encoding=utf-8"):
        reading('{"a": 1}\n', encoding="utf-16")


@given(st.lists(json_rows, min_size=1), st.booleans())
def test_what_json_writes_is_read_back(written, ascii_only):
    lines = "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in written)
    assert json.dumps(reading(lines)) == json.dumps(list(enumerate(written, 1)))


@given(json_of_any_content)
@example(b'{"a": 1}\n\xef\xbb\xbf')
def test_anything_ends_in_rows_or_one_line(content):
    records = rows_or_one_line(reading, content)
    assert all(set(row) == set(records[0][1]) for _, row in records)
