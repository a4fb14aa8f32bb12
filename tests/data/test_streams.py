"""Rows of a stream: in order, pass after pass, no further than asked for, and checked as rows in memory are."""

from __future__ import annotations

from itertools import count, cycle, islice
from pathlib import Path

import pytest

from bertkit.data import hub_sets, streams
from bertkit.data.columns import Columns
from bertkit.data.streams import SORT_WINDOW, RowStream, StreamBuffers, open_stream
from bertkit.errors import DataError, RecipeError, UnavailableError
from bertkit.recipe import Data
from tests.conftest import toy_rows, write_csv
from tests.data.test_sources import hub_folder

COLUMNS = Columns(given=("text",), gold="label")


def stream_of(rows: list[dict], buffer_rows: int) -> RowStream:
    return RowStream("memory", lambda: iter(enumerate(rows, start=2)), buffer_rows)


def write_source(folder: Path, train: list[dict]) -> Data:
    write_csv(folder / "train.csv", train)
    write_csv(folder / "validation.csv", toy_rows(3, 2))
    return Data(source=str(folder), streaming=True)


def read_some(data: Data, number: int, read=dict) -> list[dict]:
    return [row for _, row in islice(open_stream(data, COLUMNS, read, 1).open(), number)]


@pytest.mark.parametrize("size", [1, 3, 7, 16])
def test_buffers_hold_the_rows_in_their_order_and_go_on_with_the_next_pass(size):
    rows = toy_rows(7, 1)
    buffers, endless = StreamBuffers(stream_of(rows, size)), cycle(rows)
    for _ in range(9):
        assert buffers.read() == list(islice(endless, size))


def test_no_more_is_read_than_a_buffer():
    last = [0]

    def begin():
        for last[0] in count(1):
            yield last[0], {"text": str(last[0])}

    stream = RowStream("endless", begin, buffer_rows=10)
    assert len(stream.head().rows) == 10
    assert last == [10]
    buffers = StreamBuffers(stream)
    buffers.read()
    assert last == [10]
    buffers.read()
    assert last == [20]


@pytest.mark.parametrize("before", [0, 1, 2, 5, 8])
@pytest.mark.parametrize("size", [3, 7, 16])
def test_a_loaded_state_gives_the_buffers_that_follow_it(before, size):
    rows = toy_rows(7, 1)
    unbroken, resumed = StreamBuffers(stream_of(rows, size)), StreamBuffers(stream_of(rows, size))
    for _ in range(before):
        unbroken.read()
    resumed.load_state(unbroken.state())
    assert [resumed.read() for _ in range(6)] == [unbroken.read() for _ in range(6)]
    assert resumed.state() == unbroken.state()


def test_a_state_is_loaded_in_one_pass():
    passes = [0]

    def begin():
        passes[0] += 1
        return iter(enumerate(toy_rows(10, 1)))

    buffers = StreamBuffers(RowStream("memory", begin, buffer_rows=4))
    for _ in range(100):
        buffers.read()
    resumed = StreamBuffers(RowStream("memory", begin, buffer_rows=4))
    passes[0] = 0
    resumed.load_state(buffers.state())
    assert passes == [1]


@pytest.mark.parametrize("change", ["text", "missing"])
def test_rows_that_changed_before_the_state_are_refused(change):
    rows = toy_rows(8, 1)
    buffers = StreamBuffers(stream_of(rows, 3))
    buffers.read()
    buffers.read()
    others = [dict(row) for row in rows[:5]] if change == "missing" else [dict(row) for row in rows]
    others[4]["text"] += "" if change == "missing" else "!"
    with pytest.raises(DataError, match=r"the first 6 rows are not those that this run was trained on.*--fresh"):
        StreamBuffers(stream_of(others, 3)).load_state(buffers.state())


def test_rows_after_the_state_may_change():
    rows = toy_rows(8, 1)
    buffers = StreamBuffers(stream_of(rows, 3))
    buffers.read()
    mended = [*rows[:5], {"text": "mended", "label": "good"}, *rows[6:]]
    resumed = StreamBuffers(stream_of(mended, 3))
    resumed.load_state(buffers.state())
    assert resumed.read() == mended[3:6]


def test_a_stream_without_rows_is_refused():
    with pytest.raises(DataError, match="the train split has no rows"):
        StreamBuffers(stream_of([], 3)).read()
    with pytest.raises(DataError, match="the train split has no rows"):
        stream_of([], 3).head()


def test_a_buffer_is_fifty_batches(tmp_path):
    assert (
        open_stream(write_source(tmp_path, toy_rows(4, 1)), COLUMNS, dict, 8).buffer_rows == 50 * 8 == SORT_WINDOW * 8
    )


def test_limit_blank_rows_and_rows_that_are_left_out(tmp_path):
    rows = [{"text": text, "label": "good"} for text in ("a", " ", "b", "out", "c", "d")]
    data = write_source(tmp_path, rows).model_copy(update={"empty_text": "drop", "limit": 3})
    found = read_some(data, 99, lambda row: None if row["text"] == "out" else row)
    assert [row["text"] for row in found] == ["a", "b", "c"]


def test_shards_follow_each_other_and_a_fault_names_its_own(tmp_path):
    data = write_source(tmp_path, toy_rows(2, 1))
    (tmp_path / "train.csv").unlink()
    write_csv(tmp_path / "train-00000-of-00002.csv", toy_rows(3, 1))
    write_csv(tmp_path / "train-00001-of-00002.csv", [*toy_rows(2, 4), {"text": "", "label": "good"}])
    assert read_some(data, 5) == [*toy_rows(3, 1), *toy_rows(2, 4)]
    with pytest.raises(DataError, match=r"no text \(.*train-00001-of-00002.csv:4, column 'text'\)"):
        read_some(data, 6)


def test_the_columns_of_the_source_are_named_in_a_fault(tmp_path):
    data = write_source(tmp_path, [{"words": "a", "label": "good"}, {"words": " ", "label": "good"}])
    with pytest.raises(DataError, match=r"train.csv:3, column 'words'"):
        read_some(data.model_copy(update={"columns": {"text": "words"}}), 2)


def test_parquet_is_streamed_with_its_label_names(tmp_path):
    data = Data(source=str(hub_folder(tmp_path)), columns={"text": "sentence"}, streaming=True)
    assert [(row["text"], row["label"]) for row in read_some(data, 2)] == [
        ("train 0", "acceptable"),
        ("train 1", "acceptable"),
    ]


@pytest.mark.slow
@pytest.mark.allow_hosts(["127.0.0.1"])
def test_a_data_set_of_the_hub_is_streamed_with_its_label_names(loopback, tmp_path):
    loopback.add("datasets", "me/glue", hub_folder(tmp_path / "glue"))
    data = Data(source="me/glue", columns={"text": "sentence"}, streaming=True)
    stream = open_stream(data, COLUMNS, dict, 1)
    assert stream.source == f"{data.source}:train"
    rows = [{"text": f"train {n}", "label": "acceptable"} for n in range(4)]
    assert StreamBuffers(stream).read() == list(islice(cycle(rows), 50))
    assert not list((tmp_path / "cache").rglob("*.parquet"))  # nothing was downloaded first


def test_a_connection_that_breaks_off_is_told_in_one_line(monkeypatch):
    class Broken:
        features = None

        def __iter__(self):
            yield {"text": "a", "label": 1}
            raise ConnectionResetError("gone\naway")

    monkeypatch.setattr(hub_sets, "_open_split", lambda data, split: Broken())
    found = streams.read_hub_split(Data(source="a/b", streaming=True), "train")
    assert next(found) == (1, {"text": "a", "label": 1})
    with pytest.raises(
        UnavailableError, match=r"a/b: reading was interrupted \(gone away\) - the same command continues"
    ):
        next(found)


def test_a_file_beside_the_validation_file_holds_the_training_rows(tmp_path):
    write_source(tmp_path, toy_rows(4, 1))
    data = Data(source=str(tmp_path / "train.csv"), files={"validation": str(tmp_path / "validation.csv")})
    assert read_some(data, 9) == toy_rows(4, 1)


def test_nothing_is_held_out_from_a_stream(tmp_path):
    file = write_csv(tmp_path / "train.csv", toy_rows(4, 1))
    for source in (file, tmp_path):
        with pytest.raises(DataError, match=r"nothing is held out from a stream.*--set data.files.validation=FILE"):
            open_stream(Data(source=str(source)), COLUMNS, dict, 1)


def test_a_stream_needs_training_rows(tmp_path):
    write_csv(tmp_path / "validation.csv", toy_rows(4, 1))
    with pytest.raises(DataError, match=r"no train split \(found: validation\)"):
        open_stream(Data(source=str(tmp_path)), COLUMNS, dict, 1)
    with pytest.raises(DataError, match="the recipe names no data"):
        open_stream(Data(), COLUMNS, dict, 1)
    with pytest.raises(RecipeError, match="demo rows are not streamed"):
        open_stream(Data(source="demo"), COLUMNS, dict, 1)
