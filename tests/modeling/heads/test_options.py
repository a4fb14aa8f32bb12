"""The head over options, held against plain loops over each question, and its loss against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from torch.nn.functional import cosine_similarity
from transformers import AutoConfig

from bertkit.modeling.heads.options import _SCALE, SequenceParts, build_option_class, option_loss
from bertkit.tokens.features import IGNORE_INDEX
from bertkit.tokens.questions import NOMINAL, ORDINAL

CLS, WORD, SEP, MASK, PAD = 2, 9, 4, 3, 0


def sequence_of(state, counts):
    """Write a sequence: a state of words, and for each question an instruction and so many options of two words."""
    ids, places = [CLS, *[WORD] * state, SEP], []
    for count in counts:
        ids.append(WORD)
        of_question = []
        for _ in range(count):
            of_question.append(len(ids))
            ids += [MASK, WORD + 1, WORD]
        places.append(of_question)
        ids.append(SEP)
    return ids, places


def padded(sequences):
    width = max(map(len, sequences))
    ids = torch.tensor([[*each, *[PAD] * (width - len(each))] for each in sequences])
    mask = torch.tensor([[1] * len(each) + [0] * (width - len(each)) for each in sequences])
    return ids, mask


def batch_of(counts, kinds, gold, seed=3):
    sequences, places = zip(*(sequence_of(2, [count]) for count in counts), strict=True)
    ids, mask = padded(sequences)
    labels = torch.full(ids.shape, IGNORE_INDEX)
    for line, (kind, right, [of_question]) in enumerate(zip(kinds, gold, places, strict=True)):
        if right is not None:
            labels[line, of_question[right]] = kind
    logits = torch.randn(ids.shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)
    found = [logits[n, of[0]].detach().double().softmax(-1).numpy() for n, of in enumerate(places)]
    return logits, SequenceParts(ids, mask, SEP, MASK), labels, found


def ranked(probabilities, right):
    below = [sum(probabilities[: level + 1]) - (level >= right) for level in range(len(probabilities))]
    return sum(each**2 for each in below) / (len(probabilities) - 1)


def test_labels_have_the_cross_entropy_of_their_options_alone():
    logits, parts, labels, found = batch_of([2, 4, 3], [NOMINAL] * 3, [1, 0, 2])
    each = [log_loss([right], [line], labels=range(len(line))) for line, right in zip(found, [1, 0, 2], strict=True)]
    assert option_loss(logits, parts, labels).item() == pytest.approx(np.mean(each), rel=1e-5)


def test_levels_have_the_ranked_probability_score():
    logits, parts, labels, found = batch_of([3, 5], [ORDINAL] * 2, [0, 3])
    scores = [ranked(line, right) for line, right in zip(found, [0, 3], strict=True)]
    assert option_loss(logits, parts, labels).item() == pytest.approx(np.mean(scores), rel=1e-5)


def test_questions_of_one_sequence_have_losses_of_their_own():
    ids, places = sequence_of(2, [2, 3])
    logits = torch.randn(1, len(ids), generator=torch.Generator().manual_seed(1))
    labels = torch.full((1, len(ids)), IGNORE_INDEX)
    labels[0, places[0][1]], labels[0, places[1][0]] = NOMINAL, ORDINAL
    first, second = (logits[0, of].double().softmax(-1).numpy() for of in places)
    expected = (-np.log(first[1]) + ranked(second, 0)) / 2
    parts = SequenceParts(*padded([ids]), SEP, MASK)
    assert option_loss(logits, parts, labels).item() == pytest.approx(expected, rel=1e-5)


def test_what_is_no_option_or_has_no_answer_gets_no_gradient():
    logits, parts, labels, _ = batch_of([2, 3, 4], [NOMINAL, ORDINAL, ORDINAL], [0, None, 1])
    option_loss(logits, parts, labels).backward()
    assert torch.isfinite(logits.grad).all()
    is_read = parts.is_marker.clone()
    is_read[1] = False
    assert (logits.grad[~is_read] == 0).all()
    assert (logits.grad[is_read] != 0).all()


@pytest.fixture(scope="module")
def model(tiny_model):
    config = AutoConfig.from_pretrained(tiny_model)
    config.option_separator, config.option_marker, config.num_labels = SEP, MASK, 1
    torch.manual_seed(0)
    return build_option_class(type(config))(config).eval()


def test_an_option_is_scored_by_its_words_and_those_of_the_state(model):
    ids, [places] = sequence_of(3, [2])
    ids[places[1] + 1] = WORD + 2
    batch, mask = padded([ids])
    logits = model(batch, mask).logits[0, :, 0]
    state_ends = 5  # [CLS], three words, [SEP]
    allowed = torch.ones(len(ids), len(ids), dtype=torch.bool)
    allowed[:state_ends, state_ends:] = False
    states = model.base_model(input_ids=batch, attention_mask=allowed[None, None]).last_hidden_state[0]
    state = states[:state_ends].mean(0)
    for place in places:
        option = states[place : place + 3].mean(0)
        cosine = cosine_similarity(option, state, dim=0)
        expected = model.classifier(option) + _SCALE * (cosine + model.scale(cosine[None]))
        assert logits[place].item() == pytest.approx(expected.item(), abs=1e-4)


def test_an_answer_depends_on_no_other_question_and_on_no_padding(model):
    alone, [places] = sequence_of(3, [3])
    together, of_each = sequence_of(3, [2, 3, 4])
    batch, mask = padded([alone, together])
    logits = model(batch, mask).logits[..., 0]
    torch.testing.assert_close(logits[0, places], logits[1, of_each[1]], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits[0, places], model(*padded([alone])).logits[0, places, 0], atol=1e-5, rtol=1e-5)
