"""Rows of the hub come with the names of their labels, and a failure is one line with a remedy."""

from __future__ import annotations

import pytest

from bertkit.data import hub_sets
from bertkit.data.hub_sets import read_hub_split
from bertkit.errors import DataError, UnavailableError
from bertkit.recipe import Data
from tests.data.test_sources import hub_folder


def read(source, split="train", **options):
    return list(read_hub_split(Data(source=str(source), **options), split))


@pytest.mark.parametrize("streaming", [False, True])
def test_labels_come_out_as_names(tmp_path, monkeypatch, streaming):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = hub_folder(tmp_path / "glue")
    rows = read(folder, "validation", streaming=streaming)
    assert rows[0] == (1, {"sentence": "validation 0", "label": "unacceptable", "idx": 0})
    assert [number for number, _ in rows] == [1, 2, 3, 4]
    assert {row["label"] for _, row in read(folder, "test", streaming=streaming)} == {None}


def test_an_unknown_split_or_configuration_is_a_fault_of_the_recipe(monkeypatch):
    import datasets

    def refuse(*_, **__):
        raise ValueError("BuilderConfig 'colla' not found.\nAvailable: ['cola']")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(DataError, match=r"a/b: BuilderConfig 'colla' not found\. - see data\.config and data\.splits"):
        read("a/b", config="colla")


@pytest.mark.parametrize(("online", "error"), [(True, DataError), (False, UnavailableError)])
def test_a_set_that_is_not_there_differs_from_one_that_cannot_be_reached(monkeypatch, online, error):
    import datasets

    def refuse(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    monkeypatch.setattr(hub_sets, "is_online", lambda: online)
    with pytest.raises(error):
        read("a/b")
