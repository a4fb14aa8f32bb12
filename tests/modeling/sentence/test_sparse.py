"""Sparse vectors, compared with the logits of transformers, with plain loops, and with sentence-transformers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

import bertkit
from bertkit.errors import ModelError
from bertkit.hardware.device import Device
from bertkit.modeling.load import restore_weights
from bertkit.modeling.sentence.folder import SPARSE, SentenceModules, find_format, read_format
from bertkit.modeling.sentence.sparse import SparseLoss, load_sparse_head, load_table
from tests.conftest import make_tokenizer

LENGTHS = torch.tensor([[5, 9, 3], [7, 2, 1], [4, 12, 6], [3, 3, 8]])  # the second row lacks its last text
MODULES = SentenceModules(pooling=())
PAD = {"padding": True, "truncation": True, "return_tensors": "pt"}


def make_batch() -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 60, (4, 3, 12), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(12) < LENGTHS[..., None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.fixture(scope="module")
def masked_model(tmp_path_factory):
    """A random masked language model with large weights, so that some logits are above 0 and most are not."""
    folder = tmp_path_factory.mktemp("masked") / "tiny"
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = BertForMaskedLM(
        BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, initializer_range=0.3, **sizes, **no_dropout)
    )
    torch.nn.init.normal_(model.cls.predictions.bias, mean=-4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def plain_vectors(model, batch) -> torch.Tensor:
    """Compute the vectors from all logits: (rows, texts, vocabulary)."""
    flat = {name: values.flatten(0, 1) for name, values in batch.items()}
    logits = model(**flat).logits.relu().log1p() * flat["attention_mask"].unsqueeze(-1)
    return logits.amax(dim=1).unflatten(0, (4, 3))


# logits of all texts at once, or of two; gradients as a CPU computes them, or an accelerator
@pytest.mark.parametrize(("tokens", "is_cpu"), [(2**10, True), (24, True), (24, False)])
def test_vectors_and_gradients_are_those_of_all_logits(masked_model, monkeypatch, tokens, is_cpu):
    monkeypatch.setattr("bertkit.modeling.sentence.sparse._MAX_TOKENS", tokens)
    monkeypatch.setattr(Device, "is_cpu", is_cpu)
    batch, missing = make_batch(), LENGTHS == 1
    loss = SparseLoss("mnrl", 0.01, 0.02)
    plain = AutoModelForMaskedLM.from_pretrained(masked_model)
    expected = plain_vectors(plain, batch)
    value = loss(expected, None, missing)
    value.backward()
    model = load_sparse_head(masked_model, MODULES, loss).train()
    found = model(**batch)
    found["loss"].backward()
    assert found["loss"].item() == pytest.approx(value.item(), rel=1e-5)
    gradients = {name: one.grad for name, one in plain.named_parameters()}
    for name, one in model.named_parameters():
        torch.testing.assert_close(one.grad, gradients[name], rtol=1e-4, atol=1e-5, msg=name)
    output = model.eval()(**batch)
    wide = torch.zeros_like(expected).scatter(-1, output["tokens"], output["values"])
    torch.testing.assert_close(wide, expected.detach(), rtol=1e-5, atol=1e-6)
    assert output["values"].shape[-1] == (expected > 0).sum(-1).max() < expected.shape[-1]


def test_the_loss_is_cross_entropy_and_the_cost_of_products():
    rng = np.random.default_rng(0)
    vectors = rng.random((3, 3, 7)) * (rng.random((3, 3, 7)) > 0.5)
    missing = torch.tensor([[False, False, False], [False, False, True], [False, False, False]])
    documents = [(row, text) for text in (1, 2) for row in range(3) if not missing[row, text]]
    entropy = 0.0
    for row in range(3):
        scores = {one: float(vectors[row, 0] @ vectors[one]) for one in documents}
        entropy += math.log(sum(map(math.exp, scores.values()))) - scores[row, 1]
    cost_of = [
        sum(np.mean([vectors[one][word] for one in texts]) ** 2 for word in range(7))
        for texts in ([(row, 0) for row in range(3)], documents)
    ]
    loss = SparseLoss("mnrl", 0.3, 0.2, warmup=0.5)
    whole = loss(torch.tensor(vectors), None, missing).item()
    assert whole == pytest.approx(entropy / 3 + 0.3 * cost_of[0] + 0.2 * cost_of[1])


@pytest.mark.parametrize(("progress", "share"), [(0.0, 0), (0.25, 0.25), (0.5, 1), (0.9, 1)])
def test_the_penalty_grows_with_the_square_of_progress(masked_model, progress, share):
    loss = SparseLoss("mnrl", 1.0, 0.0, warmup=0.5)
    model = load_sparse_head(masked_model, MODULES, loss)
    assert model.compares_rows
    model.set_progress(progress)
    vectors, missing = torch.ones(2, 2, 5), torch.zeros(2, 2, dtype=torch.bool)
    assert model._get_loss(missing)(vectors, None, missing).item() == pytest.approx(math.log(2) + share * 5)


def test_what_is_saved_is_a_masked_language_model(masked_model, tmp_path):
    model = load_sparse_head(masked_model, MODULES, SparseLoss("mnrl", 0, 0))
    model.save_pretrained(tmp_path, state_dict=model.state_dict())
    assert find_format(tmp_path) == SPARSE
    saved, report = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert saved.config.architectures == ["BertForMaskedLM"]
    assert not report["missing_keys"] and not report["unexpected_keys"]
    other = load_sparse_head(masked_model, MODULES)
    torch.nn.init.zeros_(other.cls.predictions.transform.dense.weight)
    restore_weights(other, tmp_path / "model.safetensors")
    assert all(torch.equal(one, two) for one, two in zip(other.parameters(), model.parameters(), strict=True))


@pytest.mark.slow
def test_vectors_and_loss_are_those_of_sentence_transformers(masked_model, tmp_path):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss

    loss = SparseLoss("mnrl", 0.01, 0.02)
    model = load_sparse_head(masked_model, SentenceModules(pooling=(), max_length=64), loss)
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    encoder = SparseEncoder(str(tmp_path), device="cpu")
    assert encoder.similarity_fn_name == "dot"
    texts = [["the cat sees a bird", "an old man"], ["good film", "dull dull book ."], ["so", "very very weak song !"]]
    columns = [encoder.preprocess(list(column)) for column in zip(*texts, strict=True)]
    theirs = SpladeLoss(encoder, SparseMultipleNegativesRankingLoss(encoder), 0.02, 0.01)
    expected = torch.stack([encoder(dict(column))["sentence_embedding"] for column in columns], dim=1)
    batch = make_tokenizer()([text for row in texts for text in row], padding=True, return_tensors="pt")
    batch = {name: values.unflatten(0, (3, 2)) for name, values in batch.items()}
    found = model.eval()(**batch)
    wide = torch.zeros_like(expected).scatter(-1, found["tokens"], found["values"])
    torch.testing.assert_close(wide, expected, rtol=1e-5, atol=1e-6)
    encoded = encoder.encode_document([row[1] for row in texts], convert_to_sparse_tensor=False)
    torch.testing.assert_close(encoded, wide[:, 1], rtol=1e-5, atol=1e-6)
    value = sum(theirs(columns, None).values()).item()
    assert model.train()(**batch)["loss"].item() == pytest.approx(value, rel=1e-5)


@pytest.fixture(scope="module")
def inference_free(masked_model, tmp_path_factory):
    """A model with random weights for queries, and the folder that it wrote."""
    folder = tmp_path_factory.mktemp("table") / "saved"
    model = load_sparse_head(masked_model, SentenceModules(pooling=(), max_length=8), SparseLoss("mnrl", 0.0, 0.02))
    model.use_table(torch.rand(len(make_tokenizer()), generator=torch.Generator().manual_seed(1)), make_tokenizer())
    model.save_pretrained(folder, state_dict=model.state_dict())
    make_tokenizer().save_pretrained(folder)
    return model, folder


def test_a_query_has_the_weights_of_its_tokens_and_documents_their_vectors(inference_free, masked_model):
    model, folder = inference_free
    batch, table = make_batch(), model.query_table
    expected = plain_vectors(AutoModelForMaskedLM.from_pretrained(masked_model), batch)
    for row, length in enumerate(LENGTHS[:, 0]):
        expected[row, 0] = 0
        for token in batch["input_ids"][row, 0, :length]:
            expected[row, 0, token] = table[token]
    found = model.eval()(**batch)
    wide = torch.zeros_like(expected).scatter(-1, found["tokens"], found["values"])
    torch.testing.assert_close(wide, expected.detach(), rtol=1e-5, atol=1e-6)
    single = model(**{name: values[:, :1] for name, values in batch.items()})  # rows of one text are documents
    plain = load_sparse_head(masked_model, MODULES).eval()(**{name: values[:, :1] for name, values in batch.items()})
    torch.testing.assert_close(single["values"], plain["values"])
    assert all(table[token] == 0 for token in make_tokenizer()("")["input_ids"])
    modules = read_format(folder, SPARSE)
    assert torch.equal(load_table(modules.query_table), table) and modules.max_length == 8
    (modules.query_table / "model.safetensors").write_bytes(
        (modules.query_table / "model.safetensors").read_bytes()[:-9]
    )
    with pytest.raises(ModelError, match="the weights of queries are damaged"):
        load_table(modules.query_table)
    model.save_pretrained(folder)
    with pytest.raises(ModelError, match="outputs for 5 tokens, and its tokenizer has"):
        model.use_table(torch.ones(5), make_tokenizer())


@pytest.mark.slow
def test_vectors_and_loss_of_a_table_are_those_of_sentence_transformers(inference_free):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss

    model, folder = inference_free
    encoder = SparseEncoder(str(folder), device="cpu")
    queries = ["the cat sees a bird .", "good good film", "so " * 9]  # the last one is truncated
    documents = ["an old man", "dull dull book .", "very very weak song !"]
    embedder = bertkit.SparseEmbedder(str(folder), precision="fp32")
    encode = {"convert_to_sparse_tensor": False}
    theirs = encoder.encode_query(queries, **encode).numpy(), encoder.encode_document(documents, **encode).numpy()
    ours = embedder.encode(queries, "query").toarray(), embedder.encode(documents).toarray()
    for found, expected in zip(ours, theirs, strict=True):
        assert expected.any()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(encoder.encode(documents, **encode).numpy(), theirs[1])  # without a role
    encoder.train()  # otherwise, the library computes in place
    columns = [encoder.preprocess(texts, task=task) for texts, task in ((queries, "query"), (documents, "document"))]
    value = sum(SpladeLoss(encoder, SparseMultipleNegativesRankingLoss(encoder), 0.02)(columns, None).values())
    value.backward()
    batch = make_tokenizer()([t for pair in zip(queries, documents, strict=True) for t in pair], max_length=8, **PAD)
    found = model.train()(**{name: values.unflatten(0, (3, 2)) for name, values in batch.items()})["loss"]
    model.zero_grad()
    found.backward()
    assert found.item() == pytest.approx(value.item(), rel=1e-5)
    gradients = {name: one.grad for name, one in encoder[0].sub_modules["document"][0].auto_model.named_parameters()}
    for name, one in model.named_parameters():
        torch.testing.assert_close(one.grad, gradients[name], rtol=1e-4, atol=1e-5, msg=name)
