"""Rows of the hub come with the names of their labels; what is fetched, and what the cache serves."""

from __future__ import annotations

import logging

import pytest

from bertkit.data import remote
from bertkit.data.remote import read_hub_split
from bertkit.errors import DataError, UnavailableError
from bertkit.recipe import DataConfig, load_recipe
from bertkit.storage import hub
from bertkit.storage.hub import repositories
from tests.data.test_sources import hub_folder
from tests.kills import slow_unless

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])

TRAIN, VALIDATION, TEST = (f"data/{split}-00000-of-00001.parquet" for split in ("train", "validation", "test"))


@pytest.fixture
def glue(loopback, tmp_path):
    """A data set with three splits on the hub: the folder that it is served from."""
    folder = hub_folder(tmp_path / "glue")
    loopback.add("datasets", "me/glue", folder)
    return folder


def read(split="train", source="me/glue", *, streaming=False, **options):
    repositories._look_up.cache_clear()  # as in a new process
    return list(read_hub_split(DataConfig(source=source, **options), split, streaming=streaming))


@pytest.mark.parametrize("streaming", [False, True])
def test_labels_come_out_as_names(glue, streaming):
    rows = read("validation", streaming=streaming)
    assert rows[0] == (1, {"sentence": "validation 0", "label": "unacceptable", "idx": 0})
    assert [number for number, _ in rows] == [1, 2, 3, 4]
    assert {row["label"] for _, row in read("test", streaming=streaming)} == {None}


def test_all_splits_are_fetched_once_into_the_cache_that_programs_share(loopback, glue):
    import datasets

    read("train")
    assert loopback.fetched() == [TEST, TRAIN, VALIDATION]
    loopback.forget()
    read("train"), read("validation")
    assert loopback.fetched() == []
    with hub.offline():
        assert datasets.load_dataset("me/glue", split="validation")[1]["sentence"] == "validation 1"


def test_a_slice_of_a_split_is_read(loopback, glue):
    assert [row["idx"] for _, row in read("train[1:3]")] == [1, 2]
    assert len(read("train+test")) == 8


def test_a_configuration_is_named_by_the_card(loopback, glue):
    glue.joinpath("README.md").write_text(
        "---\nconfigs:\n- config_name: ax\n  data_files: [{split: train, path: data/test-*}]\n"
        "- config_name: cola\n  data_files: [{split: train, path: data/validation-*}]\n---\n"
    )
    loopback.add("datasets", "me/glue", glue)
    assert read(config="cola")[0][1]["sentence"] == "validation 0"
    assert loopback.fetched() == ["README.md", VALIDATION]
    with pytest.raises(DataError, match=r"me/glue: BuilderConfig 'colla' not found\. Available: \['ax', 'cola'\] - "):
        read(config="colla")
    data = load_recipe("cola", {"data.source": "me/glue", "data.config": "{language}", "data.language": "ax"}).data
    assert next(read_hub_split(data, "train"))[1]["sentence"] == "test 0"


@pytest.mark.parametrize("streaming", slow_unless([False], [False, True]))
def test_an_unknown_split_is_a_fault_of_the_recipe(glue, streaming):
    with pytest.raises(
        DataError, match=r"me/glue: Unknown split \"nope\"\. Should be one of \['train', 'validation', '"
    ):
        read("nope", streaming=streaming)


def test_a_name_that_is_none():
    with pytest.raises(DataError, match=r"'\{a: b\}' is neither a path nor a name on the Hub - use --data DIR or FILE"):
        read(source="{a: b}")


def test_a_data_set_without_files_and_one_with_a_script(loopback, tmp_path):
    (tmp_path / "README.md").write_text("Nothing here.")
    loopback.add("datasets", "me/none", tmp_path)
    with pytest.raises(DataError, match=r"me/none: .*doesn't contain any data"):
        read(source="me/none")
    (tmp_path / "script.py").write_text("import this")
    loopback.add("datasets", "me/script", tmp_path)
    with pytest.raises(DataError, match="me/script: Dataset scripts are no longer supported"):
        read(source="me/script")


def test_a_file_that_is_not_what_its_name_says(loopback, glue):
    (glue / TRAIN).write_bytes(b"not Parquet")
    loopback.add("datasets", "me/glue", glue)
    with pytest.raises(DataError, match=r"me/glue: .*Parquet"):
        read("train")


@pytest.mark.parametrize("status", slow_unless([404, 503], [401, 403, 404, 429, 500, 503]))
def test_the_cache_serves_where_the_hub_refuses(loopback, glue, caplog, status):
    rows = read("train")
    loopback.fail("*", status)
    with caplog.at_level(logging.INFO, "bertkit"):
        assert read("train") == rows
    assert [line for line in caplog.messages if line.startswith("me/glue is read from the cache: ")] != []
    assert f"({status}" in caplog.text


def test_the_cache_serves_where_nobody_answers_and_the_hub_is_not_asked_again(loopback, glue, monkeypatch):
    from huggingface_hub import constants

    before = [read("train"), read("validation")]
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.1)
    loopback.forget()
    loopback.fail("*", seconds=1)
    assert [read("train"), read("validation")] == before
    assert len(loopback.requests) == 1
    with pytest.raises(UnavailableError, match=r"'me/other' is neither a path nor in the cache, and the Hub cannot"):
        read(source="me/other")


def test_another_revision_of_the_cache_does_not_serve(loopback, glue):
    first = loopback.main["datasets", "me/glue"]
    old = read("train", revision=first)
    (glue / TRAIN).write_bytes((glue / VALIDATION).read_bytes())
    second = loopback.add("datasets", "me/glue", glue)
    new = read("train", revision=second)
    loopback.fail("*", 403)
    # `datasets` serves the revision that was prepared last.
    assert old != new == read("train", revision=second)
    for other in (first, "v1"):
        with pytest.raises(UnavailableError, match="nor in the cache, and the Hub forbids it"):
            read("train", revision=other)


@pytest.mark.parametrize("status", slow_unless([403], [403, 503]))
def test_a_hub_that_fails_in_the_middle(loopback, glue, monkeypatch, status):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    loopback.fail("* */tree/*", status)
    with pytest.raises(UnavailableError, match=rf"me/glue: the Hub .*\({status}"):
        read("train")
    loopback.faults.clear()
    loopback.fail(f"* */{TRAIN}", status)
    with pytest.raises(UnavailableError, match=rf"me/glue, {TRAIN}: the Hub .*\({status}"):
        read("train")


def test_a_damaged_file_is_not_used(loopback, glue):
    loopback.fail(f"GET */{TRAIN}", spoils=True, times=1)
    with pytest.raises(UnavailableError, match=f"me/glue, {TRAIN}: what has arrived is damaged"):
        read("train")
    assert len(read("train")) == 4


def test_an_interrupted_connection_ends_in_one_line(monkeypatch):
    class Broken:
        features = None

        def __iter__(self):
            yield {"text": "a", "label": 1}
            raise ConnectionResetError("gone\naway")

    monkeypatch.setattr(remote, "_open_split", lambda data, split, *, streaming: Broken())
    rows = read_hub_split(DataConfig(source="a/b"), "train", streaming=True)
    assert next(rows) == (1, {"text": "a", "label": 1})
    with pytest.raises(
        UnavailableError, match=r"a/b: reading was interrupted \(gone away\) - the same command continues"
    ):
        next(rows)
