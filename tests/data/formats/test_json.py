"""JSON: a list of objects or one in a wrapper, with every fault in one line."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bertkit.errors import DataError
from tests.data.formats.contents import json_of_any_content, json_rows, read_content, rows_or_one_line

LIST = 'write [{"text": ...}, ...], or one object per line as .jsonl'
AS_ROWS = 'write rows as {"text": ..., "label": ...}'
SAME_KEYS = "give every row the same keys, with null where there is no value"


def reading(content, **options):
    return read_content("json", content, "train.json", **options)


def test_a_list_or_data_in_a_wrapper():
    rows = [(1, {"a": "x"}), (2, {"a": "y"})]
    assert reading('[{"a": "x"},{"a": "y"}]') == rows
    assert reading('\n[\n  {"a": "x"} ,\n  {"a": "y"}\n]\n') == rows
    assert reading('{"version": "1.1", "data": [{"a": "x"}, {"a": "y"}]}') == rows


def test_byte_order_mark_and_encoding():
    assert reading('[{"a": "é"}]'.encode("utf-8-sig")) == [(1, {"a": "é"})]
    assert reading('[{"a": "é"}]'.encode("utf-16"), encoding="utf-16") == [(1, {"a": "é"})]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "the file is empty (train.json) - add rows"),
        (" \n", "the file is empty (train.json) - add rows"),
        (" [ ] ", "the file is empty (train.json) - add rows"),
        ('{"data": []}', "the file is empty (train.json) - add rows"),
        (
            '{"text": ["x"], "label": [1]}',
            "an object with the keys ['text', 'label'], not a list of rows (train.json) - " + LIST,
        ),
        (
            '{"data": ["x"]}',
            "an object with the keys ['data'], not a list of rows (train.json) - " + LIST,
        ),
        (
            '"x"',
            "text, not a list of rows (train.json) - " + LIST,
        ),
        (
            '{"a": 1}\n{"a": 2}\n',
            "one object per line, not a list (train.json) - rename the file to .jsonl",
        ),
        (
            '[{"a": 1},\n {"a": 2}\n {"a": 3}]',
            "not JSON, line 3, character 2: Expecting ',' delimiter: "
            '\'"a": 1},\\n {"a": 2}\\n {"a": 3}]\' (train.json)'
            " - repair it",
        ),
        (
            '[{"a": 1}] x}',
            "not JSON, line 1, character 12: Extra data: '[{\"a\": 1}] x}' (train.json) - repair it",
        ),
        ('[{"a": 1}, {"a": 2', 'the end is missing: \'[{"a": 1}, {"a": 2\' (train.json) - get the file again'),
        ('[{"a": 1}, {"a": "x\0"}]', "a NUL character (train.json) - remove it"),
        ('[{"a": 1}, {"a": 1, "a": 2}]', "the key 'a' occurs twice (train.json:2) - keep one"),
        ('{"data": [{"a": 1, "a": 2}]}', "the key 'a' occurs twice (train.json) - keep one"),
        ('[{"a": 1}, {"b": 2}]', f"the keys change: no 'a', a new 'b' (train.json:2) - {SAME_KEYS}"),
        (
            '[{"a": "x"}, {"a": "\\u0000"}]',
            "a NUL character (train.json:2, column 'a') - remove it",
        ),
        (
            '{"data": [{"a": "x"}, {"a": "\\u0000"}]}',
            "a NUL character (train.json:2, column 'a') - remove it",
        ),
        ('[{"a": 1}, 2]', f"a number where an object belongs: '2' (train.json:2) - {AS_ROWS}"),
        ("[" * 100_000, "lists or objects nest too deep (train.json:1) - flatten them"),
    ],
)
def test_faults_of_lists(content, line):
    with pytest.raises(DataError) as caught:
        reading(content)
    assert str(caught.value) == line


@given(st.lists(json_rows, min_size=1), st.booleans())
def test_what_json_writes_is_read_back(written, ascii_only):
    for indent in (None, 2):
        content = json.dumps(written, ensure_ascii=ascii_only, indent=indent)
        assert json.dumps(reading(content)) == json.dumps(list(enumerate(written, 1)))


@given(json_of_any_content)
@example(b'{"a": 1}\n\xef\xbb\xbf')
def test_anything_ends_in_rows_or_one_line(content):
    records = rows_or_one_line(reading, content)
    assert all(set(row) == set(records[0][1]) for _, row in records)
