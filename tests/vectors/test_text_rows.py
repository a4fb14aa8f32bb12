"""The rows of a file with a text each."""

from __future__ import annotations

import pytest

from bertkit.errors import DataError
from bertkit.vectors.text_rows import TextRow, read_text_rows


def test_a_row_without_a_value_has_an_empty_text():
    records = [(2, {"id": 7, "review": " Good. "}), (3, {"id": 8, "review": None})]
    rows = list(read_text_rows(records, "review", "d.csv"))
    assert rows == [TextRow(2, records[0][1], " Good. "), TextRow(3, records[1][1], "")]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"reviews": "a"}, "no column 'review'.*--column"),
        ({"review": 1.5}, "not a text: '1.5'.*d.csv:2"),
    ],
)
def test_a_row_without_the_column_or_with_something_else_there_is_refused(record, message):
    with pytest.raises(DataError, match=message):
        list(read_text_rows([(2, record)], "review", "d.csv"))
