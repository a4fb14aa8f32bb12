"""Rows and text at an address are copied into the cache, and copied again if they have changed."""

from __future__ import annotations

import gzip
import json
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import fsspec
import pytest

from bertkit.data import remote
from bertkit.data.columns import ColumnSpec
from bertkit.data.sources import read_splits
from bertkit.errors import DataError, ResourceError, UnavailableError
from bertkit.pretraining.documents import find_corpus, read_documents
from bertkit.recipe import load_recipe
from bertkit.recipe.records import CorpusConfig, DataConfig
from tests.conftest import LEARN, toy_rows, write_csv


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return a file system that other machines could have, with text in two splits, and an empty cache."""
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "cache"))
    start_again()
    system = fsspec.filesystem("memory")
    system.store.clear()
    for name, text in (("text/train/b.txt", "two\n"), ("text/train/a.txt", "one\n"), ("text/dev/c.txt", "three\n")):
        system.pipe(f"/{name}", text.encode())
    system.pipe("/text/notes.bin", b"\0")
    yield system
    system.store.clear()


def start_again():
    """Forget what was copied, as a new process does."""
    remote.copy_remote.cache_clear()


def texts(address, split="train", **settings):
    start_again()
    return [document.text for document in read_documents(find_corpus(CorpusConfig(source=address, **settings)), split)]


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
        ("memory://text/*.csv", DataError, r"no such file \(memory://text/\*.csv\) - check the address"),
        ("memory://nowhere", DataError, r"no such file \(memory://nowhere\)"),
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
    start_again()
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


def test_copies_are_used_if_the_address_cannot_be_reached(store, monkeypatch, caplog):
    before = texts("memory://text/train")

    def refuse(self, path, **options):
        raise ConnectionError("no route to the host")

    monkeypatch.setattr(type(store), "info", refuse)
    with caplog.at_level("INFO", logger="bertkit"):
        assert texts("memory://text/train") == before
    assert (
        "using the cached copy, because the address cannot be read: memory://text/train: no route to the host"
        in caplog.messages
    )
    with pytest.raises(UnavailableError, match="memory://text/dev: no route to the host"):
        texts("memory://text/dev")


# --- Rows of a web server ---


CSV = "text,label\n" + "".join(f"text {number},{'ab'[number % 2]}\n" for number in range(40))


@pytest.fixture
def web(tmp_path, monkeypatch):
    """Serve a folder on the loopback, and record the files that are sent."""
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "cache"))
    start_again()
    (tmp_path / "www").mkdir()
    sent, done = [], Event()

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=tmp_path / "www")

        def do_GET(self):
            sent.append(self.path)
            if "forbidden" in self.path:
                self.send_error(403)
            elif "slow" in self.path:
                done.wait(30)
            elif "cut" in self.path:
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b"text,label\n")
            else:
                super().do_GET()

        do_HEAD = SimpleHTTPRequestHandler.do_HEAD

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever).start()
        yield SimpleNamespace(folder=tmp_path / "www", sent=sent, url=f"http://127.0.0.1:{server.server_port}")
        done.set()
        server.shutdown()


def read(source, **settings):
    """Read the splits of a source as a new process does."""
    start_again()
    recipe = load_recipe("classify", {"data.source": str(source), **settings})
    return read_splits(recipe, ColumnSpec(inputs=("text",), gold="label"), dict, lambda name: name != "all")


@pytest.mark.allow_hosts(["127.0.0.1"])
@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "rows.csv?download=true"])
def test_rows_of_a_web_server_are_the_rows_of_the_file(web, tmp_path, name):
    content = gzip.compress(CSV.encode(), mtime=0) if name.endswith(".gz") else CSV.encode()
    file = web.folder / name.partition("?")[0]
    file.write_bytes(content)
    local, copied = (
        read(file, **{"data.validation_fraction": 0.3}),
        read(f"{web.url}/{name}", **{"data.validation_fraction": 0.3}),
    )
    assert {key: split.fingerprint() for key, split in copied.items()} == {
        key: split.fingerprint() for key, split in local.items()
    }
    assert copied["train"].source == f"{web.url}/{file.name}"
    assert str(copied["train"].locate(0)).startswith(f"{web.url}/{file.name}:")
    read(f"{web.url}/{name}")
    assert web.sent == [f"/{name}"]


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_a_file_of_a_web_server_is_copied_again_if_it_has_changed(web):
    file = web.folder / "rows.csv"
    file.write_text(CSV)
    read(f"{web.url}/rows.csv")
    file.write_text(CSV + "one more,a\n")
    assert sum(len(split.rows) for split in read(f"{web.url}/rows.csv").values()) == 41
    assert len(web.sent) == 2


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_splits_may_be_at_addresses(web):
    (web.folder / "train.csv").write_text(CSV)
    (web.folder / "other.jsonl").write_text('{"text": "a", "label": "a"}\n')
    files = {"data.files.train": f"{web.url}/train.csv", "data.files.validation": f"{web.url}/other.jsonl"}
    assert {name: len(split.rows) for name, split in read("", **files).items()} == {"train": 40, "validation": 1}
    assert web.sent == ["/train.csv", "/other.jsonl"]


@pytest.mark.allow_hosts(["127.0.0.1"])
@pytest.mark.parametrize(
    ("name", "content", "error", "line"),
    [
        ("missing.csv", None, DataError, "no such file (URL) - check the address, and whether it can be reached"),
        (
            "forbidden.csv",
            b"",
            UnavailableError,
            "URL: the server answered 403 Forbidden - check the",
        ),
        (
            "page.csv",
            b"<!DOCTYPE html><title>Log in</title>",
            DataError,
            "a web page, not a data file (URL) - download the file itself",
        ),
        ("forbidden.csv?key=secret", b"", UnavailableError, "URL: the server answered 403 Forbidden - check the"),
        ("cut.csv", b"", UnavailableError, "URL: the connection was interrupted - repeat the command"),
        ("slow.csv?key=secret", b"", UnavailableError, "URL: the server does not answer - try again later"),
        ("half.csv.gz", gzip.compress(CSV.encode(), mtime=0)[:60], DataError, "damaged gzip file: "),
        ("wrong.csv", b"review,label\nfine,a\n", DataError, "no column 'text'; there are 'review', 'label' (URL)"),
        ("short.csv", b"text,label\nfine\n", DataError, "1 field instead of 2: 'fine' (URL:2) - "),
        ("rows.bin", b"\0", DataError, "unknown file ending (URL) - supported are "),
    ],
)
def test_each_mistake_names_the_address(web, name, content, error, line, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.5)
    file_name, _, query = name.partition("?")
    if content is not None:
        (web.folder / file_name).write_bytes(content)
    address = f"{web.url}/{file_name}"
    with pytest.raises(error) as refused:
        read(f"{address}?{query}" if query else address)
    assert "secret" not in str(refused.value)
    assert str(refused.value).startswith(line.replace("URL", address))
    assert address in str(refused.value) and "cache" not in str(refused.value)


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_nobody_at_an_address(web):
    with pytest.raises(UnavailableError, match=r"http://127.0.0.1:9/rows.csv: Cannot connect to host .* - check the"):
        read("http://127.0.0.1:9/rows.csv")


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_a_file_of_a_dataset_on_the_hub_has_an_address(loopback, tmp_path, monkeypatch):
    from huggingface_hub import HfFileSystem

    HfFileSystem.clear_instance_cache()  # An instance keeps the address of its Hub.
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "rows.csv").write_text(CSV)
    loopback.add("datasets", "me/rows", tmp_path / "rows")
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "kept"))
    splits = read("hf://datasets/me/rows/rows.csv")
    assert sum(len(split.rows) for split in splits.values()) == 40
    assert splits["train"].source == "hf://datasets/me/rows/rows.csv"
    with pytest.raises(DataError, match=r"no such file \(hf://datasets/me/rows/other.csv\)"):
        read("hf://datasets/me/rows/other.csv")
    loopback.fail("*", 403, headers={"X-Error-Code": "GatedRepo"})
    HfFileSystem.clear_instance_cache()
    with pytest.raises(UnavailableError, match=r"hf://datasets/me/gated/rows.csv: it is gated \(403\) - request"):
        read("hf://datasets/me/gated/rows.csv")


@pytest.mark.parametrize(
    ("source", "files", "dataset"),
    [
        ("me/rows@v2", {}, "me/rows"),
        ("hf://datasets/me/rows@v2/part/rows.csv", {}, "me/rows"),
        ("https://example.org/me/rows.csv", {}, None),
        ("me/rows", {"train": "a.csv"}, None),
        ("demo", {}, None),
        (__file__, {}, None),
    ],
)
def test_the_dataset_on_the_hub_behind_a_source(source, files, dataset):
    assert remote.find_hub_dataset(DataConfig(source=source, files=files)) == dataset


# --- Commands ---


@pytest.mark.slow
@pytest.mark.allow_hosts(["127.0.0.1"])
def test_a_run_is_the_same_wherever_its_rows_are(web, run, tiny_model, tmp_path):
    sources = {"local": write_csv(web.folder / "rows.csv", toy_rows(60, 1)), "remote": f"{web.url}/rows.csv"}
    for output, source in sources.items():
        start_again()
        ended = run("finetune", "classify", "--model", tiny_model, "--data", source, *LEARN, "--output", output)
        assert ended.code == 0, ended.err
    assert Path("local/model.safetensors").read_bytes() == Path("remote/model.safetensors").read_bytes()
    local, remote_run = (json.loads(Path(output, "run.json").read_text()) for output in sources)
    assert local["identity"] == remote_run["identity"]
    texts_of_run = [
        file.read_text() for pattern in ("*.json", "*.yaml", "*.md") for file in Path("remote").glob(pattern)
    ]
    assert not any(str(tmp_path / "cache") in text for text in texts_of_run)
    assert web.sent == ["/rows.csv"]
    start_again()
    ended = run("eval", "remote", "--data", sources["remote"], "--json")
    assert ended.code == 0, ended.err


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_commands_read_a_file_at_an_address(web, run, trained):
    file = write_csv(web.folder / "rows.csv", toy_rows(8, 1))
    for output, source in {"local": file, "remote": f"{web.url}/rows.csv"}.items():
        for command, ending in ((("predict", trained), "csv"), (("embed", "--model", trained), "npy")):
            ended = run(*command, source, "--output", f"{output}.{ending}")
            assert ended.code == 0, ended.err
    for ending in ("csv", "npy"):
        assert Path(f"local.{ending}").read_bytes() == Path(f"remote.{ending}").read_bytes()
    for number, command in enumerate(("search build", "cluster", "dedup")):
        model = [] if command == "dedup" else ["--model", trained]
        written = []
        for place, source in {"local": file, "remote": f"{web.url}/rows.csv"}.items():
            # An index is a folder, which holds the rows as records.
            output = f"{place}-{number}" + ("" if command == "search build" else ".csv")
            ended = run(*command.split(), source, *model, "--output", output)
            assert ended.code == 0, ended.err
            rows = Path(output) / "rows.jsonl" if command == "search build" else Path(output)
            written.append(rows.read_bytes() if rows.is_file() else None)
        assert written[0] == written[1]
        ended = run(*command.split(), f"{web.url}/rows.csv", *model, "--output", "unwritten", "--column", "nope")
        assert ended.code in (2, 3) and "cache" not in ended.last and (ended.code == 2 or web.url in ended.last)
    ended = run("predict", trained, f"{web.url}/missing.csv")
    assert (ended.code, ended.last.partition(" - ")[0]) == (3, f"error: no such file ({web.url}/missing.csv)")
