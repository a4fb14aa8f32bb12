"""Fingerprints: equal for equal content, and only then."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path

import pytest

from bertkit.errors import ResourceError
from bertkit.storage import fingerprints
from bertkit.storage.fingerprints import (
    cached_checksum,
    file_fingerprint,
    json_fingerprint,
    package_fingerprint,
    read_object,
    read_with_checksum,
    tokenizer_content,
    write_with_checksum,
)
from tests.conftest import make_tokenizer


def test_a_file_is_read_in_blocks_to_its_end(tmp_path):
    content = bytes(range(256)) * 5000  # more than a mebibyte
    (tmp_path / "a").write_bytes(content)
    assert file_fingerprint(tmp_path / "a") == hashlib.sha256(content).hexdigest()


@pytest.fixture
def large_file(tmp_path, monkeypatch) -> Path:
    """A file that counts as large and unchanged for long, with a count of how often files are read."""
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fingerprints, "_SMALL", 5)
    monkeypatch.setattr(fingerprints, "_SETTLED", 0.0)
    (tmp_path / "a").write_bytes(b"content")
    return tmp_path / "a"


def count_reads(monkeypatch) -> list[Path]:
    read, whole = [], fingerprints.file_fingerprint
    monkeypatch.setattr(fingerprints, "file_fingerprint", lambda file: read.append(file) or whole(file))
    return read


def test_a_file_is_read_once(large_file, monkeypatch):
    read = count_reads(monkeypatch)
    monkeypatch.chdir(large_file.parent)
    hashes = {cached_checksum(file) for file in (large_file, large_file, Path("a"))}
    assert hashes == {hashlib.sha256(b"content").hexdigest()}
    assert len(read) == 1


@pytest.mark.parametrize("change", ["content", "times put back", "another file", "memory"])
def test_a_changed_file_of_the_same_size_is_read_again(change, large_file, monkeypatch):
    cached_checksum(large_file)
    times = large_file.stat()
    if change == "memory":
        (memory,) = large_file.parent.glob("cache/fingerprints/*/*.json")
        memory.write_text('["00", 1')
    elif change == "another file":
        (large_file.parent / "b").write_bytes(b"CONTENT")
        (large_file.parent / "b").replace(large_file)
    else:
        large_file.write_bytes(b"CONTENT")
    if change == "times put back":
        os.utime(large_file, ns=(times.st_atime_ns, times.st_mtime_ns))
    read = count_reads(monkeypatch)
    assert cached_checksum(large_file) == file_fingerprint(large_file)
    assert len(read) == 1


def test_small_and_fresh_files_are_not_remembered(large_file, monkeypatch):
    for name in ("_SMALL", "_SETTLED"):
        with monkeypatch.context() as patched:
            patched.setattr(fingerprints, name, 1000)
            assert cached_checksum(large_file) == hashlib.sha256(b"content").hexdigest()
    assert not (large_file.parent / "cache").exists()


def test_a_cache_that_cannot_be_written_is_done_without(large_file, monkeypatch):
    monkeypatch.setenv("BERTKIT_CACHE", str(large_file))
    assert cached_checksum(large_file) == hashlib.sha256(b"content").hexdigest()


def test_values_are_those_that_json_gives_back():
    values = {"a": (1, 2.5), 10: "x", 9: None, "folder": Path("a")}
    assert json_fingerprint(values) == json_fingerprint(json.loads(json.dumps(values, default=str)))
    assert json_fingerprint({"loss": math.nan}) == json_fingerprint({"loss": None})
    assert json_fingerprint({"loss": 0.5}) != json_fingerprint({"loss": 0.25})


def test_the_package_has_one_fingerprint():
    assert len(package_fingerprint()) == 64
    assert package_fingerprint() == package_fingerprint()


def test_truncation_and_padding_of_the_last_call_do_not_count():
    tokenizer, fresh = make_tokenizer(), tokenizer_content(make_tokenizer())
    tokenizer(["good film", "good"], truncation=True, max_length=4, padding=True)
    assert tokenizer_content(tokenizer) == fresh


def test_a_word_more_and_another_length_count():
    fresh = tokenizer_content(make_tokenizer())
    longer, larger = make_tokenizer(), make_tokenizer()
    longer.model_max_length = 128
    larger.add_tokens(["unheard"])
    assert fresh != tokenizer_content(longer) != tokenizer_content(larger) != fresh


DAMAGED = ResourceError("the file is damaged")


def test_what_is_signed_comes_back_and_a_change_is_noticed(tmp_path):
    file = tmp_path / "a.json"
    assert read_with_checksum(file, DAMAGED) is None
    write_with_checksum(file, {"runs": [{"seed": 1}], "mean": float("nan")})
    assert read_with_checksum(file, DAMAGED) == {"runs": [{"seed": 1}], "mean": None}
    assert read_object(file, DAMAGED)["sha256"]
    for damaged in (file.read_text().replace('"seed": 1', '"seed": 2'), "{}", "[]", "{"):
        file.write_text(damaged)
        with pytest.raises(ResourceError, match="the file is damaged"):
            read_with_checksum(file, DAMAGED)


def test_no_value_of_a_signed_file_can_become_another(tmp_path):
    file = tmp_path / "a.json"
    write_with_checksum(file, {"graph": None, "rows": 3})
    file.write_text(file.read_text().replace("null", "NaN"))
    assert read_with_checksum(file, DAMAGED) == {"graph": None, "rows": 3}
    file.write_text(file.read_text().replace("3", "4"))
    with pytest.raises(ResourceError, match="damaged"):
        read_with_checksum(file, DAMAGED)
