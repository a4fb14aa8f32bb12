"""The loss of options, held against losses of scikit-learn and plain loops over each question."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from bertkit.modeling.heads.options import NOMINAL, ORDINAL, option_loss
from bertkit.tokens.features import IGNORED


def batch_of(counts, kinds, gold):
    """Lay the options of each question on every other token, after one that is none."""
    tokens = 2 * max(counts) + 3
    markers, labels = torch.zeros(len(counts), tokens, dtype=torch.long), torch.full((len(counts), tokens), IGNORED)
    for line, (count, kind, right) in enumerate(zip(counts, kinds, gold, strict=True)):
        markers[line, 1 : 1 + 2 * count : 2] = 1
        if right is not None:
            labels[line, 1 + 2 * right] = kind
    logits = torch.randn(len(counts), tokens, generator=torch.Generator().manual_seed(3), requires_grad=True)
    return logits, markers, labels


def probabilities_of(logits, markers):
    return [
        line[marked == 1].detach().double().softmax(-1).numpy() for line, marked in zip(logits, markers, strict=True)
    ]


def test_labels_have_the_cross_entropy_of_their_options_alone():
    logits, markers, labels = batch_of([2, 4, 3], [NOMINAL] * 3, [1, 0, 2])
    found = probabilities_of(logits, markers)
    each = [log_loss([right], [line], labels=range(len(line))) for line, right in zip(found, [1, 0, 2], strict=True)]
    assert option_loss(logits, markers, labels).item() == pytest.approx(np.mean(each), rel=1e-5)


def test_levels_have_the_ranked_probability_score():
    logits, markers, labels = batch_of([3, 5], [ORDINAL] * 2, [0, 3])
    scores = []
    for line, right in zip(probabilities_of(logits, markers), [0, 3], strict=True):
        below = [sum(line[: level + 1]) - (level >= right) for level in range(len(line))]
        scores.append(sum(each**2 for each in below) / (len(line) - 1))
    assert option_loss(logits, markers, labels).item() == pytest.approx(np.mean(scores), rel=1e-5)


def test_a_question_without_an_answer_counts_for_nothing():
    logits, markers, labels = batch_of([2, 3, 4], [NOMINAL, ORDINAL, NOMINAL], [0, None, 1])
    loss = option_loss(logits, markers, labels)
    loss.backward()
    assert (logits.grad[1] == 0).all()
    assert loss.item() == pytest.approx(option_loss(logits[::2], markers[::2], labels[::2]).item())


def test_tokens_that_are_no_options_get_no_gradient():
    logits, markers, labels = batch_of([2, 3], [NOMINAL, ORDINAL], [0, 1])
    option_loss(logits, markers, labels).backward()
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[markers == 0] == 0).all()
    assert (logits.grad[markers == 1] != 0).all()
