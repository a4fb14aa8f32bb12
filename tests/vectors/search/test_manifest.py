"""Damage to an index is named, and half of one is none."""

from __future__ import annotations

import json

import pytest

from bertkit.errors import DataError, UsageError
from bertkit.vectors.search.build import build_index
from bertkit.vectors.search.index import Index
from bertkit.vectors.search.manifest import MANIFEST, Manifest, read_manifest
from tests.vectors.search.test_index import chunks_of, make_vectors


@pytest.fixture
def index(tmp_path):
    return build_index(tmp_path / "index", Manifest(16), chunks_of(make_vectors(40))).folder


def test_a_manifest_is_read_as_it_was_written(index):
    manifest = read_manifest(index, verify=True)
    assert (manifest.total, manifest.rows, manifest.dimension) == (40, 40, 16)
    assert json.loads((index / MANIFEST).read_text())["rows"] == 40


def shorten(file):
    file.write_bytes(file.read_bytes()[:-9])


def change(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage, name, message",
    [
        (lambda file: file.unlink(), "shard-00000/vectors.npy", "missing"),
        (shorten, "shard-00000/rows.jsonl", "bytes, not"),
        (change, "shard-00000/vectors-bf16.npy", "does not match its checksum"),
        (shorten, MANIFEST, "the manifest of the index is damaged"),
        (lambda file: file.write_text(file.read_text().replace("40", "41")), MANIFEST, "damaged"),
        (lambda file: file.write_text("[]"), MANIFEST, "damaged"),
        (lambda file: file.write_text('{"format": 9}'), MANIFEST, "format 9, where this bertkit reads 1"),
    ],
)
def test_damage_is_named(damage, name, message, index):
    damage(index / name)
    with pytest.raises(DataError, match=message):
        Index.open(index, verify=True)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda path: None, "no such index"),
        (lambda path: path.write_text("text"), "a file, not an index"),
        (lambda path: path.mkdir(), f"not an index: it has no {MANIFEST}"),
    ],
)
def test_what_is_no_index_is_refused(make, message, tmp_path):
    make(tmp_path / "other")
    with pytest.raises(UsageError, match=message):
        read_manifest(tmp_path / "other")
