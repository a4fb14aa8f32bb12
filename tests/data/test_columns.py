"""What is said where a column is missing: what is there instead, and how to name it."""

from __future__ import annotations

import pytest

from bertkit.data.columns import missing_column
from bertkit.data.rows import Columns, canonical_records
from bertkit.errors import DataError
from bertkit.recipe import Data

COLUMNS = Columns(given=("text",), gold="label", optional=("text_pair",))


@pytest.mark.parametrize(("name", "format_name"), [("d.txt", "auto"), ("d.txt.gz", "auto"), ("d", "lines")])
def test_lines_of_text_have_no_other_column(name, format_name):
    data = Data(columns={"text": "sentence_A", "text_pair": "sentence_B"}, format=format_name)
    assert str(missing_column("text_pair", "sentence_B", ["sentence_A"], name, data)) == (
        f"no column 'sentence_B': each line is one text, and there are no other columns ({name}) - "
        "if tabs separate columns: --set data.format=tsv"
    )


def test_a_header_whose_name_is_a_value_below_it_is_data():
    rows = [{"Great film": text, "positive": label} for text, label in [("Bad", "negative"), ("Fine", "positive")]]
    with pytest.raises(DataError) as caught:
        list(canonical_records(enumerate(rows, 2), Data(), COLUMNS, "d.csv"))
    assert str(caught.value) == (
        "no header: the first line looks like data ('Great film', 'positive') (d.csv:1) - "
        "name the columns: --set 'data.header=[text, label]'"
    )
