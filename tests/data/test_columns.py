"""What is said where a column is missing: what is there instead, and how to name it."""

from __future__ import annotations

import math

import pytest

from bertkit.data.columns import ColumnSpec, describe_unread, has_unmapped_pair, missing_column_error
from bertkit.data.rows import canonical_records, read_split
from bertkit.errors import DataError
from bertkit.recipe import DataConfig

COLUMNS = ColumnSpec(inputs=("text",), gold="label", optional=("text_pair",))
WORDS = ColumnSpec(inputs=("tokens",), gold="tags")


@pytest.mark.parametrize(("name", "format_name"), [("d.txt", "auto"), ("d.txt.gz", "auto"), ("d", "lines")])
def test_lines_of_text_have_no_other_column(name, format_name):
    data = DataConfig(columns={"text": "sentence_A", "text_pair": "sentence_B"}, format=format_name)
    assert str(missing_column_error("text_pair", "sentence_B", ["sentence_A"], name, data)) == (
        f"no column 'sentence_B': each line is one text, and there are no other columns ({name}) - "
        "if tabs separate columns: --set data.format=tsv"
    )


def test_a_header_whose_name_is_a_value_below_it_is_data():
    rows = [{"Great film": text, "positive": label} for text, label in [("Bad", "negative"), ("Fine", "positive")]]
    with pytest.raises(DataError) as caught:
        list(canonical_records(enumerate(rows, 2), DataConfig(), COLUMNS, "d.csv"))
    assert str(caught.value) == (
        "no header: the first line looks like data ('Great film', 'positive') (d.csv:1) - "
        "name the columns: --set 'data.header=[text, label]'"
    )


@pytest.mark.parametrize(
    ("names", "data", "is_taken"),
    [
        (["text", "text_pair"], DataConfig(), True),
        (["text", "Text_Pair"], DataConfig(), False),
        (["text", "text_pair"], DataConfig(columns={"text_pair": None}), False),
        (["text", "text_pair"], DataConfig(columns={"text": "text_pair"}), False),
        (["text", "text_pair", "other"], DataConfig(columns={"text_pair": "other"}), False),
    ],
)
def test_a_second_text_is_taken_by_its_name_alone(names, data, is_taken):
    assert has_unmapped_pair(names, data) == is_taken


def test_columns_that_are_not_read_are_kept_with_the_split():
    rows = [{"text": "a", "text_pair": "b", "label": 1, "date": "today", "id": 7, "part": "train"}]

    def read(data, columns=COLUMNS):
        return read_split("train", enumerate(rows, 2), data, columns, dict, "d.csv")

    split = read(DataConfig(split_column="part"))
    assert (split.rows[0]["text_pair"], split.unread_columns) == ("b", ("date", "id"))
    assert read(DataConfig(columns={"text_pair": None})).unread_columns == ("text_pair", "date", "id", "part")
    split = read(DataConfig(), ColumnSpec(inputs=("text",), gold="label"))  # a family without pairs
    assert ("text_pair" in split.rows[0], split.unread_columns) == (False, ("text_pair", "date", "id", "part"))


def test_what_looks_like_input_is_named_with_a_remedy_only_where_it_helps():
    (line,) = describe_unread(["Question", "date", "context"], DataConfig(), [])
    assert line == "'Question', 'context' look like input and are not read."
    (line,) = describe_unread(["sentence2"], DataConfig(columns={"text": "sentence1"}), ["text_pair"])
    assert line.endswith("To read a pair: --set data.columns.text_pair=sentence2")
    assert describe_unread(["question"], DataConfig(columns={"text_pair": "b"}), ["text_pair"])[0].endswith("not read.")
    assert describe_unread(["text_pair", "date"], DataConfig(columns={"text_pair": None}), ["text_pair"]) == []


@pytest.mark.parametrize(
    ("rows", "columns", "line"),
    [
        (["A fine film .,1", "Dull,0"], COLUMNS, "--set 'data.header=[text, label]'"),
        (["a,2.5", "b,3.75"], COLUMNS, "--set 'data.header=[text, label]'"),
        (["Anna,B-PER", "left,O"], WORDS, "--set data.format=conll"),
        (["Anna,x,y", "left,x,z"], WORDS, "--set 'data.header=[tokens, tags, c]'"),
        (
            ["A fine film .", "Dull ."],
            ColumnSpec(("text",), ""),
            "data.header=[text]'; or add --set data.columns.text=COLUMN",
        ),
    ],
)
def test_a_first_line_that_is_a_row_is_told_by_the_rows_below(rows, columns, line):
    names, *below = [row.split(",") for row in rows]
    records = enumerate([dict(zip(names, row, strict=True)) for row in below], 2)
    with pytest.raises(DataError) as caught:
        list(canonical_records(records, DataConfig(), columns, "d.csv"))
    assert str(caught.value).startswith("no header: the first line looks like data (") and line in str(caught.value)


@pytest.mark.parametrize(
    ("names", "row", "line"),
    [
        (["", "sentence", "target"], ["0", "so fine", "1"], "--set data.columns.text=COLUMN"),
        (
            ["Timestamp", "How satisfied are you with our service overall?"],
            ["2024", "very"],
            "data.columns.text=COLUMN",
        ),
        (["0", "1"], ["so fine", "1"], "data.columns.text=COLUMN"),
        (["2019", "2020"], ["so fine", "1"], "data.header="),
    ],
)
def test_names_that_are_odd_are_names(names, row, line):
    records = [(number, dict(zip(names, row, strict=True))) for number in (2, 3)]
    with pytest.raises(DataError) as caught:
        list(canonical_records(iter(records), DataConfig(), COLUMNS, "d.csv"))
    assert line in str(caught.value) and ("no column 'text'" in str(caught.value)) == ("header" not in line)


def test_a_header_in_the_middle_of_the_rows_is_refused():
    rows = [{"text": "a", "label": "x"}, {"text": "text", "label": "label"}]
    with pytest.raises(DataError, match=r"the header is repeated \(d.csv:3\) - delete the line"):
        list(canonical_records(enumerate(rows, 2), DataConfig(), COLUMNS, "d.csv"))
    assert (
        len(list(canonical_records(enumerate([{"text": "text"}], 2), DataConfig(), ColumnSpec(("text",), ""), "d.csv")))
        == 1
    )


def test_several_columns_that_may_be_meant_are_all_named():
    names = ["tokens", "pos_tags", "chunk_tags", "ner_tags"]
    line = str(missing_column_error("tags", "tags", names, "d.conll", DataConfig()))
    assert line.endswith("did you mean pos_tags or ner_tags? add --set data.columns.tags=COLUMN")


def test_a_row_without_columns_lacks_them():
    with pytest.raises(DataError, match="no column 'tokens'"):
        list(canonical_records(iter([(1, {})]), DataConfig(), WORDS, "d.jsonl"))


SENTENCES = ColumnSpec(inputs=("tokens",), gold="tags", lists=("tokens",), fallback_columns={"tokens": "text"})


def read_words(rows, columns=SENTENCES, **mapped):
    records = canonical_records(enumerate(rows, 2), DataConfig(columns=mapped), columns, "d.csv")
    return [(line, row) for line, _, row in records]


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("Sentence #", ["Sentence: 1", "", "Sentence: 2", "", ""]),
        ("sentence_id", ["0", "0", "1", "1", "1"]),
        ("sentence_idx", [1.0, math.nan, 2.0, None, math.nan]),
        ("Sent_No", [0, 0, 1, 1, 1]),
    ],
)
def test_one_word_per_row_is_joined_into_sentences(name, marks):
    words = [("Anna", "B-PER"), ("left", "O"), ("Go", "O"), ("to", "O"), ("Rome", "B-LOC")]
    rows = [{name: mark, "Word": word, "Tag": tag} for mark, (word, tag) in zip(marks, words, strict=True)]
    assert read_words(rows, tokens="Word", tags="Tag") == [
        (2, {"tokens": ["Anna", "left"], "tags": ["B-PER", "O"]}),
        (4, {"tokens": ["Go", "to", "Rome"], "tags": ["O", "O", "B-LOC"]}),
    ]


@pytest.mark.parametrize("tokens", [["Anna", "left"], "Anna left", '["Anna"]'])
def test_sentences_with_a_number_stay_as_they_are(tokens):
    rows = [{"sentence_id": 1, "tokens": tokens, "tags": "O O"}] * 2
    assert [row["tokens"] for _, row in read_words(rows)] == [tokens, tokens]


def test_words_without_a_column_of_sentences_are_refused_unless_they_are_only_predicted():
    rows = [{"tokens": "word", "tags": "O"}] * 60
    with pytest.raises(DataError, match=r"every row is one word, .* \(d.csv\) - add a column sentence_id"):
        read_words(rows)
    assert len(read_words(rows, ColumnSpec(inputs=("tokens",), gold=""))) == 60
