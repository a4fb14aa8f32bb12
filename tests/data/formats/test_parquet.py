"""Parquet: rows over batches, class labels by name, and damage in one line."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.files import FORMATS, read_records
from bertkit.errors import BertkitError, DataError, UsageError
from bertkit.recipe.records import DataConfig

LABEL = {"names": ["neg", "pos"], "_type": "ClassLabel"}


def write(table, features=None, path="train.parquet", **options):
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, **options)
    return Path(path)


def read_parquet(path):
    return FORMATS["parquet"].read(path, DataConfig(), str(path))


def test_rows_are_counted_over_batches(here):
    path = write(pa.table({"text": [f"t{i}" for i in range(2500)], "n": range(2500)}), row_group_size=700)
    assert list(read_parquet(path)) == [(i + 1, {"text": f"t{i}", "n": i}) for i in range(2500)]


def test_class_labels_come_out_as_names(here):
    table = pa.table({"text": ["a", "b", "c", "d"], "label": [0, 1, -1, None], "stars": [0, 1, -1, None]})
    features = {"text": {"dtype": "string", "_type": "Value"}, "label": LABEL, "gone": LABEL}
    assert list(read_parquet(write(table, features))) == [
        (1, {"text": "a", "label": "neg", "stars": 0}),
        (2, {"text": "b", "label": "pos", "stars": 1}),
        (3, {"text": "c", "label": None, "stars": -1}),
        (4, {"text": "d", "label": None, "stars": None}),
    ]


@pytest.mark.parametrize(
    "feature", [{"feature": LABEL, "_type": "List"}, {"feature": LABEL, "_type": "Sequence"}, [LABEL]]
)
def test_lists_of_class_labels_come_out_as_names(here, feature):
    table = pa.table({"tags": [[0, 1, -1], [], None, [None]]})
    rows = [row["tags"] for _, row in read_parquet(write(table, {"tags": feature}))]
    assert rows == [["neg", "pos", None], [], None, [None]]


def test_structs_have_the_fields_that_were_written(here):
    """Arrow fills each with those of all: here a question of either row, and the criteria of another question."""
    asked = [
        {"questions": {"liked": {"type": "yes_no"}}, "answers": {"liked": True}, "note": None},
        {"questions": {"tone": {"type": "choice", "criteria": ["warm", "cold"]}}, "answers": {"tone": "cold"}},
    ]
    path = write(pa.Table.from_pylist(asked))
    assert [row for _, row in read_parquet(path)] == [{**asked[0]}, {**asked[1], "note": None}]


def test_a_file_that_datasets_wrote(here):
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["O", "B-PER"])
    features = datasets.Features(
        {
            "tokens": datasets.List(datasets.Value("string")),
            "tags": datasets.List(label),
            "deep": datasets.List(datasets.List(label)),
            "label": label,
            "answer": {"label": label},
        }
    )
    row = {"tokens": ["Ada", "sang"], "tags": [1, 0], "deep": [[1], [0]], "label": 1, "answer": {"label": 1}}
    datasets.Dataset.from_list([row], features=features).to_parquet("train.parquet")
    named = {"tags": ["B-PER", "O"], "deep": [["B-PER"], ["O"]], "label": "B-PER"}
    assert list(read_parquet(Path("train.parquet"))) == [(1, {**row, **named})]


def test_columns_that_are_text_already_stay(here):
    assert list(read_parquet(write(pa.table({"label": ["pos"]}), {"label": LABEL}))) == [(1, {"label": "pos"})]


def test_an_unknown_label_is_refused(here):
    rows = read_parquet(write(pa.table({"label": [0, 2]}), {"label": LABEL}))
    assert next(rows) == (1, {"label": "neg"})
    with pytest.raises(DataError) as caught:
        next(rows)
    assert str(caught.value) == (
        "label 2 has no name, because the file names 2 labels (train.parquet:2, column 'label') - write the file again"
    )


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "the file is empty (train.parquet) - download it again, or "),
        (b"text,label\nx,1\n", "not a Parquet file (train.parquet) - download it again, or "),
        (b"PAR1" + b"x" * 100, "the file is truncated or damaged (train.parquet) - download it again"),
    ],
)
def test_what_is_not_parquet(here, content, line):
    path = here / "train.parquet"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(read_records("train.parquet", DataConfig()))
    assert str(caught.value).startswith(line)


def test_a_truncated_file_and_a_damaged_page(here):
    path = write(pa.table({"text": [f"text {i}" for i in range(2000)]}), row_group_size=1000, compression="none")
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(DataError) as caught:
        list(read_parquet(path))
    assert str(caught.value) == "the file is truncated or damaged (train.parquet) - download it again"
    start = pq.read_metadata(write(pq.read_table(pa.BufferReader(whole)), row_group_size=1000)).row_group(1)
    offset = start.column(0).dictionary_page_offset
    damaged = bytearray(path.read_bytes())
    damaged[offset : offset + 40] = b"\xff" * 40
    path.write_bytes(damaged)
    with pytest.raises(DataError) as caught:
        list(read_parquet(path))
    assert str(caught.value).startswith("the file is truncated or damaged (train.parquet")


def test_no_rows_and_repeated_columns(here):
    with pytest.raises(DataError) as caught:
        list(read_parquet(write(pa.table({"text": pa.array([], pa.string())}))))
    assert str(caught.value) == "the file has columns but no rows (train.parquet) - add rows"
    twice = pa.Table.from_arrays([pa.array(["x"]), pa.array([1])], names=["text", "text"])
    with pytest.raises(DataError) as caught:
        list(read_parquet(write(twice)))
    assert str(caught.value) == "two columns have the same name (train.parquet, column 'text') - rename one of them"


@pytest.mark.parametrize("metadata", ["{", "[]", '{"info": {"features": {"label": {"_type": "ClassLabel"}}}}'])
def test_damaged_metadata_is_refused(here, metadata):
    pq.write_table(pa.table({"label": [0]}).replace_schema_metadata({"huggingface": metadata}), "train.parquet")
    with pytest.raises(DataError) as caught:
        list(read_parquet(Path("train.parquet")))
    assert str(caught.value) == (
        "the `huggingface` metadata of the file cannot be read (train.parquet) - write the file again"
    )


@given(cut=st.integers(0, 400), patch=st.binary(max_size=30))
def test_damage_ends_in_rows_or_one_line(tmp_path_factory, cut, patch):
    path = tmp_path_factory.getbasetemp() / "train.parquet"
    write(pa.table({"text": ["a", "b"], "label": [0, 1]}), {"label": LABEL}, path)
    content = path.read_bytes()
    path.write_bytes(content[:cut] + patch + content[cut + len(patch) :])
    try:
        assert all(isinstance(row, dict) for _, row in read_parquet(path))
    except BertkitError as error:
        assert "\n" not in str(error)


def test_standard_input_is_refused():
    with pytest.raises(UsageError, match="parquet cannot be read from standard input - name the file"):
        FORMATS["parquet"].read(io.BytesIO(b"PAR1"), DataConfig(), "standard input")
