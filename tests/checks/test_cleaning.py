"""Cleaned copies of files."""

from __future__ import annotations

import pyarrow
import pytest
from pyarrow import parquet

from bertkit.checks.cleaning import find_removable, find_sources, write_copies
from bertkit.checks.repeats import Repeats
from bertkit.data.rows import RowLocation, Split
from bertkit.errors import DataError, UsageError
from bertkit.recipe import DataConfig


def test_sources_are_one_file_per_split(here):
    folder = here / "data"
    folder.mkdir()
    (folder / "train.csv").write_text("text,label\na,b\n")
    (folder / "dev.csv").write_text("text,label\na,b\n")
    assert find_sources(DataConfig(source=str(folder)), here / "new") == {
        "train": folder / "train.csv",
        "validation": folder / "dev.csv",
    }
    assert find_sources(DataConfig(source="data/dev.csv"), here / "new")["dev"].name == "dev.csv"
    for data, target, match in (
        (DataConfig(source="demo"), here / "new", "needs files"),
        (DataConfig(source="nyu-mll/glue"), here / "new", "needs files"),
        (DataConfig(source=str(folder)), folder, "exists already, and bertkit does not replace it"),
        (DataConfig(source=str(folder), limit=5), here / "new", "--fix with --limit"),
    ):
        with pytest.raises(UsageError, match=match):
            find_sources(data, target)
    for shard in (0, 1):
        (folder / f"test-0000{shard}-of-00002.csv").write_text("text,label\na,b\n")
    with pytest.raises(UsageError, match="the test split has 2 files"):
        find_sources(DataConfig(source=str(folder)), here / "new")


def test_only_what_is_safe_can_go():
    train = Split("train", "t.csv", [{}] * 4, [2, 3, 4, 5])
    faults = [DataError("no text", file="v.csv", row=7), DataError("no label", file="v.csv", row=8)]
    removable = find_removable({"train": train}, Repeats([], [1], [2]), faults)
    assert set(removable) == {("v.csv", 7), ("v.csv", 8), ("t.csv", 3), ("t.csv", 4)}


def test_copies_keep_their_formats(here):
    (here / "a.csv").write_text("text,label\nx,1\ny,2\n")
    (here / "b.txt").write_text("one\ntwo\n")
    parquet.write_table(
        pyarrow.table({"text": ["p", "q"], "n": pyarrow.array([1, 2], pyarrow.int8())}), here / "c.parquet"
    )
    sources = {name: here / file for name, file in (("a", "a.csv"), ("b", "b.txt"), ("c", "c.parquet"))}
    removable = {RowLocation(str(here / "a.csv"), 2): "why", RowLocation(str(here / "c.parquet"), 2): "why"}
    assert write_copies(sources, DataConfig(), removable, here / "new") == {"why": 2}
    new = here / "new"
    assert (new / "a.csv").read_text() == "text,label\ny,2\n"
    assert len((new / "b.jsonl").read_text().splitlines()) == 2
    table = parquet.read_table(new / "c.parquet")
    assert (table.to_pylist(), table.schema.field("n").type) == ([{"text": "p", "n": 1}], pyarrow.int8())
    write_copies({"a": here / "a.csv"}, DataConfig(delimiter=","), {}, here / "other")
    assert {file.name for file in (here / "other").iterdir()} == {
        ".gitignore",
        "a.jsonl",
    }  # no key of the recipe misreads it
