"""Columns written shard by shard, continued after a kill, and mapped only when they are complete."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from bertkit.storage.columns import ColumnWriter, locked, map_columns, map_npy, unmap_rows

DTYPES = {"tokens": "uint16", "ends": "int64"}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "columns"


def write_shard(columns, tokens, ends):
    columns.append("tokens", np.array(tokens))
    columns.append("ends", np.array(ends))
    columns.commit({"documents": len(ends)})


def finish(folder, origin="a"):
    with ColumnWriter(folder, DTYPES, origin) as columns:
        write_shard(columns, [1, 2, 65535], [2, 3])
        columns.finish({"documents": 2})


def test_finished_columns_are_mapped_with_their_facts(folder):
    finish(folder)
    mapped, facts = map_columns(folder)
    assert mapped["tokens"].tolist() == [1, 2, 65535] and mapped["tokens"].dtype == np.uint16
    assert mapped["ends"].tolist() == [2, 3]
    assert facts["documents"] == 2 and set(facts["sha256"]) == set(DTYPES)
    with pytest.raises(ValueError, match="read-only"):
        mapped["tokens"][0] = 3


def test_unfinished_columns_are_not_mapped_and_continue_from_the_last_commit(folder):
    with ColumnWriter(folder, DTYPES, "a") as columns:
        write_shard(columns, [1, 2], [2])
        columns.append("tokens", np.array([9, 9, 9]))  # and then the process is killed
    assert map_columns(folder) is None
    with ColumnWriter(folder, DTYPES, "a") as columns:
        assert (columns.lengths, columns.state) == ({"tokens": 2, "ends": 1}, {"documents": 1})
        write_shard(columns, [3], [3])
        columns.finish({})
    assert map_columns(folder)[0]["tokens"].tolist() == [1, 2, 3]


def test_a_journal_that_a_killed_writer_left_beside_its_manifest_is_deleted(folder, monkeypatch):
    unlink = type(folder).unlink
    monkeypatch.setattr(type(folder), "unlink", lambda file, **options: None)  # a kill before the last step
    finish(folder)
    assert {"journal.json", "manifest.json"} <= {file.name for file in folder.iterdir()}
    monkeypatch.setattr(type(folder), "unlink", unlink)
    assert map_columns(folder)[0]["tokens"].tolist() == [1, 2, 65535]
    assert {file.name for file in folder.iterdir()} == {"ends.bin", "manifest.json", "tokens.bin"}


@pytest.mark.parametrize("harm", ["origin", "no file", "short file", "changed file", "journal", "lengths", "state"])
def test_columns_that_cannot_be_continued_are_begun_again(folder, harm, caplog):
    caplog.set_level("INFO", logger="bertkit")
    with ColumnWriter(folder, DTYPES, "a") as columns:
        write_shard(columns, [1, 2], [2])
    tokens, journal = folder / "tokens.bin", folder / "journal.json"
    if harm == "no file":
        tokens.unlink()
    if harm in ("short file", "changed file"):
        tokens.write_bytes(b"\0" if harm == "short file" else bytes([1, 0, 3, 0]))
    if harm == "journal":
        journal.write_text("{")
    if harm in ("lengths", "state"):
        changed = {"tokens": 1, "ends": 1} if harm == "lengths" else {"documents": 2}
        journal.write_text(json.dumps({**json.loads(journal.read_text()), harm: changed}))
    with ColumnWriter(folder, DTYPES, "b" if harm == "origin" else "a") as columns:
        assert (columns.lengths, columns.state) == ({"tokens": 0, "ends": 0}, {})
    assert bool(caplog.messages) == (harm != "origin")


@pytest.mark.parametrize("harm", ["bytes", "size", "manifest", "facts"])
def test_damaged_columns_are_not_mapped(folder, harm, caplog):
    finish(folder)
    file, manifest = folder / "tokens.bin", folder / "manifest.json"
    if harm == "bytes":
        file.write_bytes(bytes(6))
    if harm == "size":
        file.write_bytes(bytes(8))
    if harm == "manifest":
        manifest.write_text("{")
    if harm == "facts":
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "facts": {"documents": 3}}))
    caplog.set_level("INFO", logger="bertkit")
    assert map_columns(folder) is None
    assert caplog.messages == [f"the numbers in {folder} are damaged and are computed again"]
    assert not manifest.exists()


def test_a_folder_is_locked_beside_it_before_it_exists(folder):
    with locked(folder):
        assert not folder.exists()
        assert folder.with_name("columns.lock").read_text().startswith("process ")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_rows_whose_pages_are_dropped_take_no_memory_and_are_read_again(tmp_path):
    values = np.random.default_rng(0).random((40_000, 64))  # 20 MB
    np.save(tmp_path / "values.npy", values)

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    mapped = map_npy(tmp_path / "values.npy")
    before = resident()
    mapped.sum()
    assert resident() > before + 0.9 * values.nbytes
    unmap_rows(mapped, 100, 39_900)
    assert resident() < before + 0.1 * values.nbytes
    np.testing.assert_array_equal(mapped, values)
