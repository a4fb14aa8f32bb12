"""Tasks of MTEB: what its package is handed, and what is refused."""

from __future__ import annotations

import shutil
import sys
from enum import Enum
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import spearmanr

from bertkit.errors import UnavailableError, UsageError
from bertkit.modeling.sentence.modules import SentenceModules
from bertkit.modeling.sentence.writing import write_modules
from bertkit.vectors.benchmark import BenchmarkModel, run_benchmark
from bertkit.vectors.embedder import Embedder
from tests.conftest import toy_rows

PROMPTS = {"query": "so ", "document": "the ", "STS": "very ", "Mine-query": "a "}
Side = Enum("Side", {"query": "query", "document": "document"})


@pytest.fixture(scope="module")
def prompted(tiny_model, tmp_path_factory):
    """The tiny model as a folder of sentence-transformers with prompts."""
    folder = shutil.copytree(tiny_model, tmp_path_factory.mktemp("prompted") / "tiny")
    write_modules(folder, SentenceModules(prompts=PROMPTS), width=32)
    return Embedder(str(folder), precision="fp32")


@pytest.mark.parametrize(
    ("task", "task_type", "side", "prompt"),
    [
        ("Mine", "Retrieval", Side.query, "a "),
        ("Other", "Retrieval", Side.query, "so "),
        ("Other", "Retrieval", Side.document, "the "),
        ("Other", "STS", None, "very "),
        ("Other", "Clustering", None, ""),
    ],
)
def test_texts_begin_with_the_prompt_for_the_task(prompted, task, task_type, side, prompt):
    batches = [{"text": ["good film"]}, {"text": ["bad", "a song"]}]
    metadata = SimpleNamespace(name=task, type=task_type)
    vectors = BenchmarkModel(prompted).encode(
        batches, task_metadata=metadata, hf_split="test", hf_subset="default", prompt_type=side, batch_size=2
    )
    plain = Embedder(prompted.model, prefix="", precision="fp32")
    expected = plain.encode([f"{prompt}{text}" for text in ("good film", "bad", "a song")])
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_similarities_are_cosines_or_products(prompted, tiny_model, tmp_path):
    one, two = np.random.default_rng(0).normal(size=(2, 5, 4))
    unit = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (one, two)]
    model = BenchmarkModel(prompted)
    np.testing.assert_allclose(model.similarity(one, two), unit[0] @ unit[1].T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        model.similarity_pairwise(one, two), (unit[0] * unit[1]).sum(axis=1), rtol=1e-5, atol=1e-6
    )
    folder = shutil.copytree(tiny_model, tmp_path / "dot")
    write_modules(folder, SentenceModules(similarity="dot"), width=32)
    dot = BenchmarkModel(Embedder(str(folder)))
    np.testing.assert_allclose(dot.similarity(one, two), one @ two.T, rtol=1e-4, atol=1e-5)


def fake_mteb(monkeypatch, **task):
    """Put a package in the place of mteb that knows one task, Known."""

    def get_task(name):
        if name != "Known":
            raise KeyError(f"KeyError: '{name}' not found. Did you mean: 'Known'?")
        return SimpleNamespace(is_aggregate=False, **task)

    monkeypatch.setitem(sys.modules, "mteb", SimpleNamespace(get_task=get_task))


def test_without_the_package_or_the_task_nothing_is_run(prompted, monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(UnavailableError, match=r"need the package mteb - `pip install .*\[mteb\]'"):
        run_benchmark("Known", prompted)
    fake_mteb(monkeypatch, metadata=SimpleNamespace(modalities=["image"]))
    with pytest.raises(UsageError, match=r"MTEB has no task 'Nown' - did you mean Known\?"):
        run_benchmark("Nown", prompted)
    with pytest.raises(UsageError, match="Known of MTEB is a task of image"):
        run_benchmark("Known", prompted)


def test_rows_that_cannot_be_had_are_named(prompted, monkeypatch):
    def load_data():
        raise ConnectionError("Couldn't reach 'some/rows' on the Hub")

    metadata = SimpleNamespace(name="Known", modalities=["text"], dataset={"path": "some/rows"})
    fake_mteb(monkeypatch, metadata=metadata, load_data=load_data)
    with pytest.raises(UnavailableError, match=r"the rows of Known \(some/rows\) are neither in the cache nor to be"):
        run_benchmark("Known", prompted)


@pytest.mark.slow
def test_a_task_has_the_score_of_scipy(prompted, here, monkeypatch):
    pytest.importorskip("mteb")
    monkeypatch.setenv("HF_HOME", str(here / "home"))
    texts = [row["text"] for row in toy_rows(80, seed=1)]
    labels = np.random.default_rng(0).integers(0, 6, 40).astype(float)
    columns = {"sentence1": texts[:40], "sentence2": texts[40:], "score": labels}
    (here / "mteb" / "stsbenchmark-sts").mkdir(parents=True)  # `datasets` takes it for the data set of this name
    pq.write_table(pa.table(columns), here / "mteb" / "stsbenchmark-sts" / "test.parquet")
    (result,) = run_benchmark("STSBenchmark", prompted)
    vectors = Embedder(prompted.model, prompt="STS", precision="fp32").encode(texts)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = spearmanr((unit[:40] * unit[40:]).sum(axis=1), labels).statistic
    assert (result.split, result.subset, result.metric) == ("test", "default", "cosine_spearman")
    assert result.score == pytest.approx(expected, abs=1e-6) and result.scores["main_score"] == result.score
