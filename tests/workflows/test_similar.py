"""The cosine of pairs, beside that of vectors one by one."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from bertkit.errors import DataError
from bertkit.vectors.embedder import Embedder
from bertkit.workflows.similar import read_pairs, similar

PAIRS = [("the good film", "a lovely song"), ("a dull book", "a dull book"), ("the film", "so good " * 40)]


@pytest.fixture
def embedder(tiny_model):
    return Embedder(str(tiny_model), precision="fp32")


def write(folder, text):
    (folder / "pairs.csv").write_text(text)
    return "pairs.csv"


def test_cosines_are_those_of_the_vectors(embedder, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    rows = list(similar(embedder, [({"n": number}, *pair) for number, pair in enumerate(PAIRS)]))
    assert [row["n"] for row in rows] == [0, 1, 2]
    for row, pair in zip(rows, PAIRS, strict=True):
        first, second = (embedder.encode([text])[0].astype(np.float64) for text in pair)
        expected = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
        assert row["cosine"] == pytest.approx(expected, abs=1e-6)
    assert rows[1]["cosine"] == pytest.approx(1, abs=1e-6)
    assert caplog.messages[1:] == ["texts of more than 64 tokens are truncated"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("text,other\na,b\n", "no column 'text_pair'"),
        ("text,text_pair\na,b\nc,\n", "no text"),
        ("text,text_pair,cosine\na,b,1\n", "results have too"),
        ("text,text_pair\n", "no rows"),
    ],
)
def test_faults_of_a_file(text, message, embedder, here):
    with pytest.raises(DataError, match=message):
        list(similar(embedder, read_pairs(write(here, text))))
