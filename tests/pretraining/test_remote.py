"""Text at an address is copied into the cache, and copied again where it has changed."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from bertkit.errors import DataError, ResourceError, UnavailableError
from bertkit.pretraining import remote
from bertkit.pretraining.documents import find_corpus, read_documents
from bertkit.recipe.records import Corpus


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return a file system that other machines could have, with text in two splits, and an empty cache."""
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    system.store.clear()
    for name, text in (("text/train/b.txt", "two\n"), ("text/train/a.txt", "one\n"), ("text/dev/c.txt", "three\n")):
        system.pipe(f"/{name}", text.encode())
    system.pipe("/text/notes.bin", b"\0")
    yield system
    system.store.clear()


def texts(address, split="train", **settings):
    return [document.text for document in read_documents(find_corpus(Corpus(source=address, **settings)), split)]


def test_a_folder_a_pattern_and_a_file_are_read_as_those_of_a_disk(store):
    assert texts("memory://text") == ["one", "two"]
    assert texts("memory://text", "validation") == ["three"]
    assert texts("memory://text/**/*.txt", "validation") == ["three"]
    assert texts("memory://text/train/b.txt") == ["two"]
    named = {"train": "memory://text/train", "validation": "memory://text/dev/c.txt"}
    assert texts("", files=named) == ["one", "two"]
    assert texts("", "validation", files=named) == ["three"]


def test_only_what_has_changed_is_copied_again(store, monkeypatch):
    folder = remote.copy_remote("memory://text/train")
    copied = []
    get_file = type(store).get_file
    monkeypatch.setattr(type(store), "get_file", lambda self, name, *a: copied.append(name) or get_file(self, name, *a))
    assert texts("memory://text/train") == ["one", "two"]
    assert copied == []
    store.pipe("/text/train/a.txt", b"another\n")
    store.rm("/text/train/b.txt")
    assert texts("memory://text/train") == ["another"]
    assert copied == ["/text/train/a.txt"]
    assert sorted(file.name for file in folder.iterdir()) == [".copied.json", "a.txt"]


def test_a_copy_that_was_broken_off_goes_on(store, monkeypatch):
    get_file = type(store).get_file

    def refuse(self, name, *arguments):
        if name.endswith("b.txt"):
            raise OSError(28, "No space left on device")
        return get_file(self, name, *arguments)

    with monkeypatch.context() as patched, pytest.raises(ResourceError):
        patched.setattr(type(store), "get_file", refuse)
        texts("memory://text/train")
    copied = []
    monkeypatch.setattr(type(store), "get_file", lambda self, name, *a: copied.append(name) or get_file(self, name, *a))
    assert texts("memory://text/train") == ["one", "two"]
    assert copied == ["/text/train/b.txt"]


@pytest.mark.parametrize(
    ("address", "error", "line"),
    [
        ("memory://text/*.csv", DataError, r"no file is there \(memory://text/\*.csv\) - check the address"),
        ("memory://nowhere", DataError, r"no file is there \(memory://nowhere\)"),
        ("nonsense://text", UnavailableError, "nonsense://text: Protocol not known: nonsense - check the address"),
    ],
)
def test_what_is_not_there_is_said_in_a_line(store, address, error, line):
    with pytest.raises(error, match=line):
        texts(address)


def test_an_error_of_a_server_is_said_in_a_line(store, monkeypatch):
    class ServerError(Exception):
        """As those of HTTP clients, which are no OSError."""

    def refuse(self, path):
        raise ServerError("403, message='Forbidden'")

    monkeypatch.setattr(type(store), "find", refuse)
    with pytest.raises(UnavailableError, match=r"memory://text: 403, .* - check the address and your access"):
        texts("memory://text")


def test_a_copy_that_is_gone_and_a_damaged_record_are_made_anew(store):
    folder = remote.copy_remote("memory://text/train")
    (folder / "a.txt").unlink()
    assert texts("memory://text/train") == ["one", "two"]
    (folder / ".copied.json").write_text("{")
    (folder / "a.txt").write_text("other\n")
    assert texts("memory://text/train") == ["one", "two"]


def test_the_package_of_a_protocol_is_named(store, monkeypatch):
    def refuse(address):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(UnavailableError, match="s3://bucket/text: Install s3fs to access S3 - install that package"):
        texts("s3://bucket/text")


def test_a_name_that_leads_elsewhere_is_copied_nowhere(store, tmp_path):
    store.store["/text/../../evil.txt"] = store.store["/text/train/a.txt"]
    with pytest.raises(UnavailableError, match="would be copied elsewhere"):
        remote.copy_remote("memory://text")
    assert not list(Path(tmp_path).rglob("evil.txt"))
