"""Reading texts more than once, and the vectors of a file."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bertkit.errors import DataError, UsageError
from bertkit.vectors.groups.texts import TextFile, VectorSource
from tests.conftest import write_csv

VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_texts_are_read_twice_and_a_file_that_changes_is_noticed(tmp_path):
    file = write_csv(tmp_path / "a.csv", [{"body": " one "}, {"body": ""}])
    texts = TextFile(file, "body")
    assert [(row.line, row.text) for row in texts] == [row[:1] + row[2:] for row in texts] == [(2, "one"), (3, "")]
    write_csv(file, [{"body": "one"}, {"body": "two"}])
    with pytest.raises(DataError, match="changed while it was read"):
        list(texts)


@pytest.mark.parametrize(
    ("row", "message"), [({"txt": "a"}, "no column 'text'.*did you mean txt"), ({"text": 3}, "not a text: '3'.*:1")]
)
def test_a_column_without_texts_is_refused(row, message, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=message):
        list(TextFile(file))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (VectorSource(), "no vectors"),
        (VectorSource("demo", ("a.npy",)), "--model and --vectors"),
        (VectorSource(None, ("a.npy",), "query"), "a prompt without --model"),
    ],
)
def test_vectors_come_from_one_place(source, message):
    with pytest.raises(UsageError, match=message):
        _ = source.embedder


def test_standard_input_is_refused():
    with pytest.raises(UsageError, match="standard input only once"):
        TextFile.open("-")


def test_vectors_of_several_files_are_chosen_by_row(tmp_path):
    files = (tmp_path / "a.npy", tmp_path / "b.npy")
    for number, file in enumerate(files):
        np.save(file, VECTORS + 100 * number)
    chosen = VectorSource(files=files).read([], np.array([3, 4]), [4, 4])
    np.testing.assert_array_equal(chosen, [VECTORS[3], VECTORS[0] + 100])
