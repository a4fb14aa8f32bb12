"""Data sets that `datasets` saves to disk are read back: rows, names of labels, splits by name."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest

from bertkit.data.files import find_files, read_records
from bertkit.data.sources import find_single_file
from bertkit.errors import DataError
from bertkit.recipe import DataConfig

FEATURES = datasets.Features(
    {
        "text": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["bad", "good"]),
        "tags": datasets.List(datasets.ClassLabel(names=["O", "B-X"])),
    }
)


def made(count):
    rows = [{"text": f"é {number}", "label": number % 3 - 1, "tags": [number % 2, 0]} for number in range(count)]
    return rows, datasets.Dataset.from_list(rows, features=FEATURES)


def named(row):
    labels = ["bad", "good", None]  # -1 is no label
    return {"text": row["text"], "label": labels[row["label"]], "tags": [["O", "B-X"][tag] for tag in row["tags"]]}


def test_a_data_set_in_shards(here):
    rows, data_set = made(2500)
    data_set.save_to_disk("set", num_shards=3)
    (Path("set") / "cache-0123.arrow").write_bytes(b"of a map")
    assert find_single_file(DataConfig(source="set")) == Path("set")
    assert list(read_records("set", DataConfig())) == [(number, named(row)) for number, row in enumerate(rows, 1)]
    (shard,) = Path("set").glob("data-00001-*.arrow")
    assert next(iter(read_records(shard, DataConfig())))[0] == 1
    shard.write_bytes(shard.read_bytes()[:200])
    with pytest.raises(DataError, match=r"the file is truncated or damaged \(set:\d+\) - save it again"):
        list(read_records("set", DataConfig()))


def test_the_splits_of_a_data_set_are_found_by_name(run, tiny_model):
    rows, data_set = made(12)
    datasets.DatasetDict({"train": data_set, "dev": data_set.select(range(3))}).save_to_disk("sets")
    assert find_single_file(DataConfig(source="sets")) is None
    files = find_files(Path("sets"), DataConfig())
    assert files == {"train": [Path("sets/train")], "validation": [Path("sets/dev")]}
    assert [row for _, row in read_records(files["validation"][0], DataConfig())] == [named(row) for row in rows[:3]]
    ended = run(
        *("finetune", "classify", "--data", "sets", "--model", tiny_model, "--dry-run"),
        *("--set", "data.empty_label=drop"),
    )
    assert ended.code == 0, ended.err
    assert "train 8, validation 2" in ended.out


def test_text_that_begins_outside_of_the_file_is_refused_and_never_read(here):
    offsets = pa.py_buffer(np.array([0, 1 << 30, 2], np.int32))
    texts = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    table = pa.RecordBatch.from_arrays([texts], ["text"])
    with pa.OSFile("a.arrow", "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_batch(table)
    with pytest.raises(DataError, match=r"the file is truncated or damaged \(a.arrow\)"):
        list(read_records("a.arrow", DataConfig()))


@pytest.mark.parametrize("state", ["[]", '{"_data_files": [3]}', '{"_data_files": [{"filename": 3}]}', "{}"])
def test_a_folder_whose_state_names_no_files_is_refused(here, state):
    made(3)[1].save_to_disk("set")
    Path("set/state.json").write_text(state)
    with pytest.raises(DataError, match=r"the file is truncated or damaged \(set\)"):
        list(read_records("set", DataConfig()))
