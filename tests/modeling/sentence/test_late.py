"""Late interaction, compared with plain loops over tokens and with sentence-transformers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import AutoModel

from bertkit.errors import ModelError, RecipeError
from bertkit.modeling.load import restore_weights
from bertkit.modeling.sentence.folder import LATE, PROJECTION, SentenceModules, read_format
from bertkit.modeling.sentence.late import LateLoss, load_late_head, score_texts
from bertkit.modeling.sentence.texts import drop_padding, max_sim
from tests.conftest import make_tokenizer
from tests.modeling.sentence.test_head import LENGTHS, make_batch

MODULES = SentenceModules(pooling=())


def make_texts(lengths, seed) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    vectors = [rng.normal(size=(length, 6)).astype(np.float32) for length in lengths]
    return [one / np.linalg.norm(one, axis=1, keepdims=True) for one in vectors]


def pad(texts) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)


def score_by_loop(query, document) -> float:
    return sum(max(float(one @ other) for other in document) for one in query)


QUERIES, DOCUMENTS = make_texts([3, 1, 4], 0), make_texts([5, 2, 7, 1, 3], 1)


def test_padded_texts_are_scored_as_by_a_loop_over_tokens():
    expected = [[score_by_loop(query, document) for document in DOCUMENTS] for query in QUERIES]
    np.testing.assert_allclose(score_texts(pad(QUERIES), pad(DOCUMENTS)).numpy(), expected, rtol=1e-5)


def test_the_loss_is_cross_entropy_over_the_documents_that_are_there():
    documents = make_texts([5, 2, 7], 2), make_texts([4, 1, 3], 3)  # positives, and negatives; the second row has none
    flat = [*QUERIES, *documents[0], *documents[1]]
    vectors = pad(flat).unflatten(0, (3, 3)).transpose(0, 1).requires_grad_()
    missing = torch.zeros(3, 3, dtype=torch.bool)
    missing[1, 2] = True
    candidates = [*documents[0], documents[1][0], documents[1][2]]
    total = 0.0
    for row, query in enumerate(QUERIES):
        scores = [2 * score_by_loop(query, document) for document in candidates]
        total += math.log(sum(map(math.exp, scores))) - scores[row]
    loss = LateLoss(2.0)(vectors, None, missing)
    assert loss.item() == pytest.approx(total / 3, rel=1e-5)
    loss.backward()
    assert vectors.grad.isfinite().all()


def test_vectors_are_projected_states_of_length_one(still_model):
    model, batch = load_late_head(still_model, MODULES, 8).eval(), make_batch()
    found = model(**batch)["vectors"]
    plain = AutoModel.from_pretrained(still_model)
    for row in range(4):
        for text in range(3):
            length = LENGTHS[row, text]
            states = plain(batch["input_ids"][row, text, :length][None]).last_hidden_state[0]
            expected = torch.nn.functional.normalize(states @ model.projection.weight.T, dim=-1)
            torch.testing.assert_close(found[row, text, :length], expected, rtol=1e-4, atol=1e-5)
            assert not found[row, text, length:].any()


def test_chunks_have_the_gradients_of_the_whole_batch(still_model):
    torch.manual_seed(1)
    whole = load_late_head(still_model, MODULES, 8, LateLoss()).train()
    parts = load_late_head(still_model, MODULES, 8, LateLoss(), texts_at_once=5).train()
    parts.load_state_dict(whole.state_dict())
    losses = [model(**make_batch())["loss"] for model in (whole, parts)]
    torch.stack(losses).sum().backward()
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)
    for (name, one), other in zip(whole.named_parameters(), parts.parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_the_projection_is_saved_beside_the_encoder_and_restored(tiny_model, tmp_path):
    model = load_late_head(tiny_model, SentenceModules(pooling=(), max_length=32), 8, LateLoss())
    model.save_pretrained(tmp_path, state_dict=model.state_dict())
    _, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    modules = read_format(tmp_path, LATE)
    again, other = load_late_head(tmp_path, modules), load_late_head(tiny_model, MODULES, 8)
    restore_weights(other, tmp_path / "model.safetensors")
    for found in (again, other):
        assert all(torch.equal(one, two) for one, two in zip(found.parameters(), model.parameters(), strict=True))
    with pytest.raises(RecipeError, match=r"options.dimension is 9, but the model's vectors have 8 dimensions"):
        load_late_head(tmp_path, modules, 9)
    (tmp_path / PROJECTION / "model.safetensors").write_bytes(b"none")
    with pytest.raises(ModelError, match="the weights of the projection are damaged"):
        load_late_head(tmp_path, modules)


@pytest.mark.slow
def test_vectors_scores_and_loss_are_those_of_sentence_transformers(still_model, tmp_path):
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss

    model = load_late_head(still_model, SentenceModules(pooling=(), max_length=64), 8, LateLoss(2.0))
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    encoder = MultiVectorEncoder(str(tmp_path), device="cpu")
    texts = [["the cat sees a bird", "an old man"], ["good film", "dull dull book ."], ["so", "very very weak song !"]]
    batch = make_tokenizer()([text for row in texts for text in row], padding=True, return_tensors="pt")
    batch = {name: values.unflatten(0, (3, 2)) for name, values in batch.items()}
    found = model.eval()(**batch)["vectors"].detach().numpy()
    queries, documents = ([drop_padding(row[text]) for row in found] for text in (0, 1))
    theirs = [encoder.encode_query([row[0] for row in texts]), encoder.encode_document([row[1] for row in texts])]
    for ours, expected in zip((queries, documents), theirs, strict=True):
        for one, other in zip(ours, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    np.testing.assert_allclose(max_sim(queries, documents), encoder.similarity(*theirs).numpy(), atol=1e-4)
    columns = [
        {**encoder.preprocess(list(column), task=task), "task": task}
        for column, task in zip(zip(*texts, strict=True), ("query", "document"), strict=True)
    ]
    expected = MultiVectorMultipleNegativesRankingLoss(encoder, scale=2.0)(columns)
    assert model.train()(**batch)["loss"].item() == pytest.approx(expected.item(), rel=1e-4)
