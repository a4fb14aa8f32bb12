"""JSON: a list of objects or one in a wrapper, with every fault in one line."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bertkit.data.formats.json import DECODER, as_data_error, check_objects, has_suspect_escape, parse_json
from bertkit.errors import DataError
from tests.data.formats.contents import json_of_any_content, json_rows, read_content, rows_or_one_line

LIST = 'write [{"text": ...}, ...], or one object per line as .jsonl'
AS_ROWS = 'write rows as {"text": ..., "label": ...}'
SAME_KEYS = "give every row the same keys, with null for a missing value"


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
            " - correct the file",
        ),
        (
            '[{"a": 1}] x}',
            "not JSON, line 1, character 12: Extra data: '[{\"a\": 1}] x}' (train.json) - correct the file",
        ),
        (
            '[{"a": 1}, {"a": 2',
            'the file is truncated, and ends in \'[{"a": 1}, {"a": 2\' (train.json) - download the file again',
        ),
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
        ('[{"a": 1}, 2]', f"a number instead of an object: '2' (train.json:2) - {AS_ROWS}"),
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


# --- Objects as rows ---


def records(*values, suspect=True):
    return list(check_objects(((row, suspect, value) for row, value in enumerate(values, 1)), "a.jsonl"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('["a", 1, true, null]', ["a", 1, True, None]),
        ("['a', None, True]", ["a", None, True]),
        ("{'a': [1.5]}", {"a": [1.5]}),
        ("['a'\n 'b']", "['a'\n 'b']"),  # an array of numpy
        ("[1 0]", "[1 0]"),
        ("[f()]", "[f()]"),
        ("{'a'}", "{'a'}"),
        ("a, b", "a, b"),
        (3, 3),
    ],
)
def test_lists_and_objects_in_cells(text, value):
    assert parse_json(text) == value


def test_objects_of_one_shape_are_records():
    assert records({"a": 1, "b": None}, {"b": "x", "a": 2.5}) == [(1, {"a": 1, "b": None}), (2, {"b": "x", "a": 2.5})]


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ([], "the file is empty"),
        ([["a"]], "a list instead of an object"),
        ([{"a": 1}, {"b": 1}], "the keys change: no 'a', a new 'b'"),
        ([{"a": None}, {"a": 1}, {"a": "x"}], "text, but a number in row 2"),
        ([{"a": {"b": ["x\0"]}}], "a NUL character"),
        ([{"a": "\ud83d"}], "half of a surrogate pair"),
    ],
)
def test_faults(values, fault):
    with pytest.raises(DataError, match=fault):
        records(*values)


def test_strings_are_looked_into_only_where_an_escape_is_suspect():
    assert has_suspect_escape(r'"\u0000"') and has_suspect_escape(r'"\ud83d"')
    assert not has_suspect_escape(r'"\u00e9"')
    assert not has_suspect_escape(r'"\u0000" "x"', 9)
    assert records({"a": "\0"}, suspect=False) == [(1, {"a": "\0"})]


def test_the_decoder_refuses_what_would_be_lost():
    for content in ('{"a": 1, "a": 2}', '{"a": 9223372036854775808}'):
        with pytest.raises(DataError):
            DECODER.decode(content)
    error = as_data_error(RecursionError(), "a.json", 7)
    assert str(error) == "lists or objects nest too deep (a.json:7) - flatten them"
