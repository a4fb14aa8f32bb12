"""Vectors of an exported folder: those of its graph, with its prompts, lengths and dimension, without torch."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bertkit import Embedder
from bertkit.errors import ModelError, UsageError
from tests.conftest import make_tokenizer
from tests.kills import slow_unless
from tests.runtime.hand_made import write_exported, write_vectors

TEXTS = ["the film was good", "good " * 40, "a"]


def sums(table: np.ndarray, texts: list[str], length: int = 32) -> np.ndarray:
    tokenizer = make_tokenizer()
    return np.stack([table[tokenizer(text, truncation=True, max_length=length)["input_ids"]].sum(0) for text in texts])


@pytest.mark.parametrize(
    "output", slow_unless(["sentence_embedding"], ["sentence_embedding", "vectors"])
)  # the last is that of earlier exports
def test_vectors_are_those_of_the_graph_without_torch(output, tmp_path, light_zygote):
    table = write_vectors(tmp_path / "made", output)
    model = Embedder(str(tmp_path / "made"))
    assert np.abs(model.encode(TEXTS) - sums(table, TEXTS)).max() < 1e-4
    begun = [f"good {text}" for text in TEXTS]
    assert np.abs(model.with_prompt("query").encode(TEXTS) - sums(table, begun)).max() < 1e-4
    shorter = Embedder(str(tmp_path / "made"), max_length=8, dimension=2)
    assert np.abs(shorter.encode(TEXTS) - sums(table, TEXTS, 8)[:, :2]).max() < 1e-4
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    arguments = ["embed", "texts.txt", "--model", "made", "--output", "vectors.npy"]
    assert light_zygote.imports(tmp_path, arguments) & {"torch", "transformers", "datasets"} == set()
    assert json.loads((tmp_path / "vectors.npy.json").read_text())["precision"] == "fp32"


def test_what_a_graph_has_settled_cannot_be_changed(tmp_path):
    write_vectors(tmp_path / "made")
    for options in ({"pooling": "cls"}, {"normalize": True}, {"layers": "mean_last_2"}):
        with pytest.raises(UsageError, match=r"modules of its own: the graph of an exported model .* - leave out"):
            Embedder(str(tmp_path / "made"), **options).encode(["a"])
    with pytest.raises(UsageError, match="a length of 99 tokens"):
        Embedder(str(tmp_path / "made"), max_length=99).encode(["a"])
    write_vectors(tmp_path / "unpooled", include_prompt=False)
    with pytest.raises(ModelError, match="leaves out the tokens of prompts, which a graph cannot"):
        Embedder(str(tmp_path / "unpooled"), prompt="query").encode(["a"])


def test_a_graph_without_vectors_is_refused(tmp_path):
    write_exported(tmp_path / "classes", ("bad", "good"))
    with pytest.raises(ModelError, match="exported for text_classification, and its graph makes no vectors of texts"):
        Embedder(str(tmp_path / "classes")).encode(["a"])


def test_other_graphs_have_other_fingerprints(tmp_path):
    write_vectors(tmp_path / "one")
    write_vectors(tmp_path / "two", prompts={})
    one, again, two = (Embedder(str(tmp_path / name)).fingerprint for name in ("one", "one", "two"))
    assert one == again != two
