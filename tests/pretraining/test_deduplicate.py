"""Held-out documents and duplicates: which are found, which split they are in, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.errors import DataError
from bertkit.pretraining.deduplicate import find_duplicates, split_documents
from bertkit.pretraining.documents import find_corpus
from bertkit.recipe.records import CorpusConfig


def write(name: str, documents: list[str]) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("\n\n".join(documents) + "\n", encoding="utf-8")


def read(data: CorpusConfig) -> list[tuple[str, str, bool]]:
    return [document[:3] for document in split_documents(find_corpus(data), find_duplicates(find_corpus(data)))]


def test_only_the_first_of_equal_documents_is_no_duplicate(here):
    write("a.txt", ["one", "two", "one", "three", "one"])
    flags = [(text, is_duplicate) for text, _, is_duplicate in read(CorpusConfig(source="a.txt"))]
    assert flags == [("one", False), ("two", False), ("one", True), ("three", False), ("one", True)]
    assert not any(is_duplicate for _, _, is_duplicate in read(CorpusConfig(source="a.txt", deduplicate=False)))


def test_a_document_of_both_splits_is_dropped_from_train(here):
    write("d/train.txt", ["one", "two"])
    write("d/validation.txt", ["two", "three"])
    assert read(CorpusConfig(source="d")) == [
        ("two", "validation", False),
        ("three", "validation", False),
        ("one", "train", False),
        ("two", "train", True),
    ]


def test_copies_of_a_document_are_in_one_split_and_neither_split_is_empty(here):
    write("a.txt", [f"text {number % 20}" for number in range(60)])
    for share in (1e-9, 0.3, 0.999999):
        splits: dict[str, set[str]] = {}
        for text, split, _ in read(CorpusConfig(source="a.txt", validation_fraction=share)):
            splits.setdefault(text, set()).add(split)
        assert all(len(names) == 1 for names in splits.values())
        assert set.union(*splits.values()) == {"train", "validation"}


def test_a_document_keeps_its_split_when_others_come(here):
    documents = [f"text {number}" for number in range(300)]
    write("a.txt", documents[:200])
    write("b.txt", documents[::-1])
    first, more = (
        dict(document[:2] for document in read(CorpusConfig(source=name, validation_fraction=0.2)))
        for name in ("a.txt", "b.txt")
    )
    assert 20 < list(first.values()).count("validation") < 60
    assert all(more[text] == split for text, split in first.items())


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"d/train.txt": ["one"]}, "only one document: nothing can be held out"),
        ({"d/train.txt": ["one", "one"]}, "only one document: nothing can be held out"),
        ({"d/train.txt": ["one"], "d/dev.txt": ["one"]}, "every training document is also in validation"),
    ],
)
def test_too_few_documents_are_refused(here, files, message):
    for name, documents in files.items():
        write(name, documents)
    with pytest.raises(DataError, match=message):
        find_duplicates(find_corpus(CorpusConfig(source="d")))
