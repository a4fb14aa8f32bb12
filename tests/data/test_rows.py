"""Columns are mapped by name, rows are checked, and a fault names its line and the source's column."""

from __future__ import annotations

import logging
import math

import pytest

from bertkit.data.columns import ColumnSpec, map_columns
from bertkit.data.files import read_records
from bertkit.data.rows import Split, add_row_location, canonical_records, read_number, read_split
from bertkit.errors import DataError
from bertkit.recipe import DataConfig

COLUMNS = ColumnSpec(inputs=("text",), gold="label", optional=("text_pair",))
WORDS = ColumnSpec(inputs=("tokens",), gold="", lists=("tokens",), fallback_columns={"tokens": "text"})


def rows_of(records, data=None, read=dict):
    return read_split("train", enumerate(records, 2), data or DataConfig(), COLUMNS, read, "d.csv").rows


def test_canonical_columns_come_from_the_columns_of_the_source():
    data = DataConfig(columns={"text": "review", "text_pair": "reply"})
    ((line, values, row),) = canonical_records([(5, {"review": "a", "reply": "b", "label": 1})], data, COLUMNS, "d.csv")
    assert (line, values["review"], row) == (5, "a", {"text": "a", "text_pair": "b", "label": 1})


def test_several_columns_make_one_list():
    data = DataConfig(columns={"tokens": ["a", "b"]})
    assert map_columns(["a", "b"], data, WORDS, "d.csv") == {"tokens": ["a", "b"]}
    with pytest.raises(DataError, match="text is one column, not 2"):
        map_columns(["a", "b", "label"], DataConfig(columns={"text": ["a", "b"]}), COLUMNS, "d.csv")


def test_text_stands_in_for_words_to_predict():
    assert map_columns(["text"], DataConfig(columns={"id": "id"}), WORDS, "d.csv") == {"text": ["text"]}


@pytest.mark.parametrize(
    ("names", "columns", "line"),
    [
        (["text"], {}, "no column 'label'; there are 'text' (d.csv) - add --set data.columns.label=COLUMN"),
        (["txt", "label"], {}, "no column 'text'; there are 'txt', 'label' (d.csv) - add --set data.columns.text=txt"),
        (
            ["a", "b"],
            {"text": "a", "label": "a"},
            "text and label are both mapped to the column 'a' (d.csv) - map them",
        ),
    ],
)
def test_columns_that_do_not_fit(names, columns, line):
    with pytest.raises(DataError) as caught:
        map_columns(names, DataConfig(columns=columns), COLUMNS, "d.csv")
    assert str(caught.value).startswith(line)


def test_faults_of_one_sort_are_listed_together():
    rows = [{"text": text, "label": 1} for text in ("a", " ", "b", "", "\t")]
    with pytest.raises(DataError, match=r"no text \(also in lines 5, 6\) \(d.csv:3, column 'text'\)"):
        rows_of(rows)
    assert len(rows_of(rows, DataConfig(empty_text="drop"))) == 2
    assert len(rows_of(rows, DataConfig(empty_text="keep"))) == 5


def test_limit_and_rows_left_out():
    rows = [{"text": text, "label": 1} for text in "abcd"]
    assert [
        row["text"] for row in rows_of(rows, DataConfig(limit=2), lambda row: row if row["text"] > "a" else None)
    ] == [
        "b",
        "c",
    ]
    with pytest.raises(DataError, match="the train split has no rows"):
        rows_of(rows, read=lambda row: None)


def test_two_rows_may_not_share_an_id():
    rows = [{"text": text, "label": 1, "id": name} for text, name in (("a", "x"), ("b", "y"), ("c", "x"))]
    with pytest.raises(DataError, match="the id 'x' is also the id of line 2"):
        rows_of(rows, DataConfig(columns={"id": "id"}))


def test_a_fault_is_placed():
    with (
        pytest.raises(DataError, match=r"odd \(d.csv:7, column 'review'\)"),
        add_row_location("d.csv", 7, DataConfig(columns={"text": "review"}), {"review": "a"}),
    ):
        raise DataError("odd", "mend it", column="text")


def test_equal_rows_have_equal_fingerprints():
    one = Split("train", "a.csv", [{"text": "a", "label": 1}], [2])
    other = Split("train", "b.jsonl", [{"label": 1, "text": "a"}], [1])
    assert one.fingerprint() == other.fingerprint()
    assert one.fingerprint() != Split("train", "a.csv", [{"text": "b", "label": 1}], [2]).fingerprint()


def test_rows_without_a_label_are_dropped_before_they_are_read(caplog):
    """In every family: what is missing is known before the family sees it, and is counted as empty texts are."""
    labels = {"a": 1, "b": "", "c": None, "d": math.nan, "": 2}
    rows = [{"text": text, "label": label} for text, label in labels.items()]

    def read(row):
        assert row["label"] == 1
        return row

    with caplog.at_level(logging.INFO, "bertkit"):
        assert [row["text"] for row in rows_of(rows, DataConfig(empty_label="drop", empty_text="drop"), read)] == ["a"]
    assert caplog.messages == ["rows of d.csv without a label, left out: 3", "rows of d.csv without text, left out: 1"]


def test_a_fault_names_the_number_and_the_id_of_a_row_beside_its_line(tmp_path):
    """A csv file has a line more for each line end in its cells."""
    file = tmp_path / "d.csv"
    file.write_text('id,text,Queue\nT-1,"one\ntwo\nthree",a\nT-2,four,a\nT-3," ",b\n')
    data = DataConfig(columns={"label": "Queue"})
    with pytest.raises(DataError) as caught:
        read_split("train", read_records(file, data), data, COLUMNS, dict, file)
    assert f"no text ({file}:6, id 'T-3', column 'text')" in str(caught.value)
    assert caught.value.as_dict()["record"] == "id 'T-3'"


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ("1,000", "write 1000 or 1.000"),
        ("-12,345", "write -12345 or -12.345"),
        ("1,234,567", "write 1234567"),
        ("1,234.5", "write 1234.5"),
        ("1.234,5", "write a decimal point: 1234.5"),
        ("12,34", "write a decimal point: 12.34"),
        ("1,2,3", "give a number"),
    ],
)
def test_commas_in_numbers_are_read_both_ways(value, remedy):
    with pytest.raises(DataError) as caught:
        read_number({"label": value}, "label", "give a number")
    assert str(caught.value) == f"label {value!r} is not a number (column 'label') - {remedy}"


def test_rows_that_an_annotator_rejected_or_ignored_are_left_out(caplog):
    """In every family: the label of such a row of Prodigy was only a suggestion."""
    answers = ["accept", "reject", "ignore", "accept"]
    rows = [{"text": name, "label": "A", "answer": answer} for name, answer in zip("abcd", answers, strict=True)]
    with caplog.at_level(logging.INFO, "bertkit"):
        assert [row["text"] for row in rows_of(rows)] == ["a", "d"]
    assert caplog.messages == ["rows of d.csv without an accepted answer, left out: 2"]
    assert len(rows_of(rows, DataConfig(columns={"label": "answer"}))) == 4  # a classifier of answers
    assert len(rows_of([{"text": "a", "label": "A", "answer": "Reject it."}])) == 1


def test_a_row_of_a_folder_is_known_by_its_file(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text("Oslo is cold.")
        (tmp_path / f"{name}.ann").write_text("T1\tLOC 0 4\tOslo\n")
    columns = ColumnSpec(inputs=("tokens",), gold="tags", fallback_columns={"tokens": "text"}, spans="spans")
    split = read_split("train", read_records(tmp_path, DataConfig()), DataConfig(), columns, dict, tmp_path)
    assert [row["id"] for row in split.rows] == ["one", "two"]
    assert [str(split.locate(index)) for index in (0, 1)] == [str(tmp_path / "one.txt"), str(tmp_path / "two.txt")]

    def refuse(row):
        raise DataError("odd", "mend it")

    with pytest.raises(DataError) as caught:
        read_split("train", read_records(tmp_path, DataConfig()), DataConfig(), columns, refuse, tmp_path)
    assert str(caught.value) == f"odd (also in two.txt) ({tmp_path / 'one.txt'}) - mend it"


def test_rows_with_spans_keep_their_ids_which_need_not_differ():
    rows = [{"id": 7, "text": "Oslo", "spans": []}, {"id": 7, "text": "Rome", "spans": []}]
    columns = ColumnSpec(inputs=("tokens",), gold="tags", fallback_columns={"tokens": "text"}, spans="spans")
    split = read_split("train", enumerate(rows, 1), DataConfig(), columns, dict, "d.jsonl")
    assert [row["id"] for row in split.rows] == [7, 7]
