"""Objects become records only if all have the same keys, one type per key, and text without NUL."""

from __future__ import annotations

import pytest

from bertkit.data.json_objects import DECODER, as_data_error, check_objects, has_suspect_escape, parse_json
from bertkit.errors import DataError


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
        ([["a"]], "a list where an object belongs"),
        ([{"a": 1}, {"b": 1}], "the keys change: no 'a', a new 'b'"),
        ([{"a": None}, {"a": 1}, {"a": "x"}], "text here, a number in row 2"),
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
