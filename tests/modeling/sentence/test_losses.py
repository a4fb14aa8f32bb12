"""Losses are plain loops and those of sentence-transformers; the hardest negatives are mined."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bertkit.modeling.sentence import losses
from bertkit.modeling.sentence.losses import LOSSES, VectorLoss, add_negatives, mine_negatives

ROWS, WIDTH = 6, 12
LABELS = torch.tensor([0.2, 0.8, 0.2, 0.5, 1.0, 0.0])


def make_vectors(texts: int = 2, rows: int = ROWS) -> torch.Tensor:
    return torch.randn(rows, texts, WIDTH, generator=torch.Generator().manual_seed(texts)).requires_grad_()


def all_present(vectors):
    return torch.zeros(vectors.shape[:2], dtype=torch.bool)


def test_cosent_is_the_sum_over_all_pairs_in_the_wrong_order():
    vectors = make_vectors()
    cosines = torch.cosine_similarity(vectors[:, 0], vectors[:, 1]).tolist()
    terms = [
        math.exp(20 * (cosines[low] - cosines[high]))
        for low in range(ROWS)
        for high in range(ROWS)
        if LABELS[low] < LABELS[high]
    ]
    assert VectorLoss("cosent")(vectors, LABELS, all_present(vectors)).item() == pytest.approx(
        math.log(1 + sum(terms)), rel=1e-6
    )


def test_labels_that_are_all_the_same_teach_nothing():
    vectors = make_vectors()
    assert VectorLoss("cosent")(vectors, torch.ones(ROWS), all_present(vectors)).item() == 0


@pytest.mark.parametrize("name", ["mnrl", "margin_mse"])
def test_a_negative_that_a_row_lacks_counts_nowhere(name):
    """The loss of rows with one and two negatives is that of a loop over the texts that are there."""
    vectors, margins = make_vectors(texts=4), torch.randn(ROWS, 2)
    missing = all_present(vectors)
    missing[::2, 3] = True
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    total = 0.0
    for row in range(ROWS):
        if name == "mnrl":
            others = [unit[other, text] for other in range(ROWS) for text in (1, 2, 3) if not missing[other, text]]
            scores = torch.stack([20 * unit[row, 0] @ one for one in others])
            total += (scores.logsumexp(0) - 20 * unit[row, 0] @ unit[row, 1]).item()
        else:
            anchor, positive, *negatives = vectors[row]
            kept = [number for number in (0, 1) if not missing[row, 2 + number]]
            errors = [anchor @ positive - anchor @ negatives[number] - margins[row, number] for number in kept]
            total += sum(error.item() ** 2 for error in errors) / len(kept)
    assert VectorLoss(name)(vectors, margins, missing).item() == pytest.approx(total / ROWS, rel=1e-5)


def test_simcse_finds_each_text_again():
    """Rows hold two texts each and come twice, so it is the loss of four pairs."""
    once, again = make_vectors(rows=2), make_vectors(rows=2).detach() + 0.1
    both = torch.cat([once, again])
    pairs = torch.stack([once.flatten(0, 1), again.flatten(0, 1)], dim=1)
    expected = VectorLoss("mnrl")(pairs, None, all_present(pairs))
    assert VectorLoss("simcse")(both, None, all_present(both)).item() == pytest.approx(expected.item())


def test_losses_are_computed_in_fp32_under_autocast():
    vectors = make_vectors()
    with torch.autocast("cpu", torch.bfloat16):
        found = VectorLoss("mnrl")(vectors, None, all_present(vectors))
    assert found.item() == VectorLoss("mnrl")(vectors, None, all_present(vectors)).item()


@pytest.mark.slow
@pytest.mark.parametrize("dimensions", [(), (12, 8, 3)], ids=["whole", "matryoshka"])
@pytest.mark.parametrize("name", [name for name in LOSSES if name != "class_cosent"])  # which has a test of its own
@pytest.mark.parametrize("texts", [2, 3, 4])
def test_values_and_gradients_are_those_of_sentence_transformers(name, texts, dimensions):
    from sentence_transformers.sentence_transformer import losses
    from sentence_transformers.sentence_transformer.losses.matryoshka import shrink

    if (name in ("cosent", "cosine", "simcse") and texts > 2) or (name == "margin_mse" and texts < 3):
        pytest.skip("another number of texts")
    labels = torch.randn(ROWS, texts - 2) if name == "margin_mse" else LABELS if name.startswith("cos") else None
    classes = {
        "cosent": losses.CoSENTLoss,
        "cosine": losses.CosineSimilarityLoss,
        "margin_mse": losses.MarginMSELoss,
    }
    theirs = classes.get(name, losses.MultipleNegativesRankingLoss)(model=None)
    ours, others = make_vectors(texts), make_vectors(texts)
    found = VectorLoss(name, dimensions=dimensions)(ours, labels, all_present(ours))
    columns = list(others.unbind(1))
    if name == "simcse":  # one text per row, which comes twice
        columns = [others[:3].flatten(0, 1), others[3:].flatten(0, 1)]
    shrunk = [[shrink(column, count) for column in columns] for count in dimensions] or [columns]
    expected = sum(theirs.compute_loss_from_embeddings(each, labels) for each in shrunk)
    found.backward()
    expected.backward()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.grad, others.grad, rtol=1e-5, atol=1e-6)


def test_class_cosent_is_cosent_of_all_pairs_of_rows():
    vectors, labels = make_vectors(texts=1), torch.tensor([0, 1, 2, 1, 0, 1])
    first, second = torch.triu_indices(ROWS, ROWS, 1)
    pairs = torch.stack([vectors[first, 0], vectors[second, 0]], dim=1)
    like = (labels[first] == labels[second]).float()
    expected = VectorLoss("cosent")(pairs, like, all_present(pairs))
    found = VectorLoss("class_cosent")(vectors, labels, all_present(vectors))
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    wanted, got = (torch.autograd.grad(loss, vectors)[0] for loss in (expected, found))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("labels", [[1, 1, 1], [0, 1, 2], [0]])
def test_rows_without_pairs_of_both_sorts_teach_nothing(labels):
    vectors = make_vectors(texts=1, rows=len(labels))
    loss = VectorLoss("class_cosent")(vectors, torch.tensor(labels), all_present(vectors))
    loss.backward()
    assert loss.item() == 0 and not vectors.grad.any()


TEXTS = [[n % 17, 100 + n % 29] for n in range(40)]
TEXTS[5][0] = 107  # an anchor that is the positive of others


def make_pairs() -> np.ndarray:
    vectors = np.random.default_rng(0).normal(size=(40, 2, 6))
    vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    for row, numbers in enumerate(TEXTS):  # equal texts have equal vectors
        vectors[row, 1] = vectors[next(r for r, other in enumerate(TEXTS) if other[1] == numbers[1]), 1]
    return vectors


@pytest.mark.parametrize("block", [7, 512])
def test_the_hardest_that_are_not_too_similar_are_found(monkeypatch, block):
    monkeypatch.setattr(losses, "_BLOCK", block)
    vectors = make_pairs()
    for row, found in enumerate(mine_negatives(vectors, TEXTS, 3, 0.1)):
        anchor, positive = vectors[row]
        right = {other[1] for other in TEXTS if other[0] == TEXTS[row][0]} | {TEXTS[row][0]}
        limit = anchor @ positive - 0.1 * abs(anchor @ positive)
        first = {numbers[1]: n for n, numbers in reversed(list(enumerate(TEXTS)))}
        allowed = [n for number, n in first.items() if number not in right and anchor @ vectors[n, 1] <= limit]
        assert found == sorted(allowed, key=lambda n: -(anchor @ vectors[n, 1]))[:3]


def test_rows_beyond_a_run_are_mined_by_themselves(monkeypatch):
    monkeypatch.setattr(losses, "_MAX_ROWS", 20)
    vectors = make_pairs()
    found = mine_negatives(vectors, TEXTS, 2, 0.0)
    assert found[20:] == [[20 + n for n in rows] for rows in mine_negatives(vectors[20:], TEXTS[20:], 2, 0.0)]


def test_a_feature_gets_the_positives_of_others():
    features = [{"row": n, "input_ids": [[n], [10 + n]], "texts": [n, 10 + n]} for n in range(3)]
    add_negatives(features, [[2, 1], [], [0]])
    assert [feature["input_ids"] for feature in features] == [[[0], [10], [12], [11]], [[1], [11]], [[2], [12], [10]]]
    assert [feature["texts"] for feature in features] == [[0, 10, 12, 11], [1, 11], [2, 12, 10]]
