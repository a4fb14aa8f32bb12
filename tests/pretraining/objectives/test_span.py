"""Masked spans: their boundaries in a feature, the loss from them, and the checkpoint without their head."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from bertkit.modeling.info import get_loading_info
from bertkit.pretraining.objectives import load_objective, mlm, span
from bertkit.tokens.features import IGNORE_INDEX
from tests.pretraining.objectives.texts import make_corpus, make_features, make_setup, measure, train


@pytest.fixture(scope="module")
def corpus():
    return make_corpus()


def test_a_feature_has_the_span_of_each_masked_token(corpus):
    context = make_setup("span")
    special = set(context.tokenizer.all_special_ids)
    lengths = []
    for feature in make_features(span, context, corpus):
        masked = feature["labels"] != IGNORE_INDEX
        assert not special & set(feature["labels"][masked])
        for index in np.flatnonzero(masked):
            start, end = feature["span_starts"][index], feature["span_ends"][index]
            assert start <= index < end and masked[start:end].all() and not masked[start - 1] and not masked[end]
            lengths.append(end - start)
        assert not feature["span_starts"][~masked].any()
    assert max(lengths) > 2


def test_spans_are_keyed(corpus):
    context = make_setup("span")
    drawn = [make_features(span, context, corpus, epoch)[3]["input_ids"].tolist() for epoch in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_held_out_spans_mask_15_percent_whatever_the_recipe_says(corpus):
    context = make_setup("span", options={"mask_rate": 0.4})
    shares = {}
    for progress in (0.0, None):
        labels = np.concatenate([f["labels"] for f in make_features(span, context, corpus, progress=progress)])
        shares[progress] = (labels != IGNORE_INDEX).mean()
    assert shares[0.0] > 0.25 and 0.1 < shares[None] < 0.15


@pytest.mark.parametrize(("model_type", "packing"), [("bert", "documents"), ("albert", "none")])
def test_the_boundary_loss_is_that_of_a_plain_loop(corpus, model_type, packing):
    context = make_setup("span", model_type, packing=packing)
    model = span.load_model(context).eval()
    batch = span.collator(context)(make_features(span, context, corpus)[:4])
    sums = span.sum_losses(model, batch)
    head = model.span_boundary
    first, _, norm, second, _, last_norm = head.layers
    inputs = {name: values for name, values in batch.items() if name not in ("labels", "span_starts", "span_ends")}
    summed = 0.0
    with torch.no_grad():
        states = model.base_model(**inputs).last_hidden_state
        for row, column in (batch["labels"] != IGNORE_INDEX).nonzero().tolist():
            start, end = batch["span_starts"][row, column], batch["span_ends"][row, column]
            here = head.places.weight[column - start]
            inputs_of_head = torch.cat([states[row, start - 1], states[row, end], here])
            once = norm(functional.gelu(first.weight @ inputs_of_head + first.bias))
            twice = last_norm(functional.gelu(second.weight @ once + second.bias))
            logits = model.get_input_embeddings().weight @ twice + head.bias
            summed -= logits.log_softmax(-1)[batch["labels"][row, column]].item()
    assert sums["sbo"].item() == pytest.approx(summed, rel=1e-5)
    tokens = int((batch["labels"] != IGNORE_INDEX).sum())
    assert span.count(batch) == {"mlm": tokens, "sbo": tokens}
    with torch.inference_mode():
        scores = span.score(span.accumulate(model, batch))
    assert scores["loss"] == pytest.approx((sums["mlm"].item() + summed) / tokens, rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(sums["mlm"].item() / tokens), rel=1e-5)
    sums["sbo"].backward()
    touched = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert {"span_boundary.bias", "span_boundary.places.weight"} < touched
    assert any("word_embeddings" in name for name in touched)


def test_boundaries_can_be_left_out(corpus):
    context = make_setup("span", options={"boundary": False})
    model = span.load_model(context).eval()
    features = make_features(span, context, corpus)
    batch = span.collator(context)(features)
    assert not hasattr(model, "span_boundary") and "span_starts" not in batch
    assert set(span.sum_losses(model, batch)) == set(span.count(batch)) == {"mlm"}
    torch.testing.assert_close(span.sum_losses(model, batch)["mlm"], mlm.sum_losses(model, batch)["mlm"])
    with torch.inference_mode():
        assert span.score(span.accumulate(model, batch)) == mlm.score(mlm.accumulate(model, batch))


def test_a_batch_in_which_nothing_is_masked_has_a_loss_of_zero_with_a_gradient(corpus):
    context = make_setup("span")
    model = span.load_model(context)
    batch = span.collator(context)(make_features(span, context, corpus)[:2])
    batch["labels"].fill_(IGNORE_INDEX)
    sums = span.sum_losses(model, batch)
    sum(sums.values()).backward()
    assert {name: value.item() for name, value in sums.items()} == {"mlm": 0.0, "sbo": 0.0}


def test_the_saved_model_is_a_plain_masked_language_model(corpus, tmp_path):
    context = make_setup("span")
    model = span.load_model(context)
    span.encoder(model, context).save_pretrained(tmp_path)
    assert hasattr(model, "span_boundary")
    again = mlm.load_model(make_setup("mlm", model_folder=tmp_path))
    assert set(again.state_dict()) == {name for name in model.state_dict() if not name.startswith("span_boundary")}
    for name, weight in again.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name])
    assert get_loading_info(span.load_model(make_setup("span", model_folder=tmp_path))).new_weights == (
        "span_boundary",
    )
    assert load_objective(context.recipe) is span


@pytest.mark.slow
def test_toy_spans_are_learned():
    context = make_setup("span")
    model = train(span, context, make_corpus(), steps=220)
    held_out = make_corpus(30, seed=9)
    scores = measure(span, context, model, held_out)
    shares = np.bincount(held_out.tokens) / len(held_out.tokens)
    unigram = -(shares[shares > 0] * np.log(shares[shares > 0])).sum()
    assert math.log(scores["perplexity"]) < unigram - 0.5
    assert scores["loss"] < 2 * unigram - 1
