"""Causal language modeling: what is predicted from what, the loss of a plain loop, and models that are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bertkit.errors import ModelError, RecipeError
from bertkit.pretraining.objectives import clm, mlm
from bertkit.tokens.features import IGNORE_INDEX
from tests.pretraining.objectives.texts import make_corpus, make_features, make_setup


@pytest.fixture(scope="module")
def corpus():
    return make_corpus(20)


def test_each_token_is_to_predict_the_next_of_its_document(corpus):
    context = make_setup("clm")
    special = {context.tokenizer.cls_token_id, context.tokenizer.sep_token_id}
    for feature in make_features(clm, context, corpus):
        ids, labels = feature["input_ids"].tolist(), feature["labels"].tolist()
        wanted = [following if following not in special else IGNORE_INDEX for following in ids[1:]] + [IGNORE_INDEX]
        assert labels == wanted


@pytest.mark.parametrize("model_type", ["bert", "roberta", "electra"])
@pytest.mark.parametrize("packing", ["documents", "joined"])
def test_no_token_sees_a_later_one(corpus, packing, model_type):
    context = make_setup("clm", model_type, packing=packing)
    torch.manual_seed(0)
    model = clm.load_model(context).eval()
    batch = clm.collator(context)(make_features(clm, context, corpus)[:4])
    changed = batch["input_ids"].clone()
    changed[:, 12:] = changed[:, 12:].flip(dims=[1])
    with torch.inference_mode():
        logits, others = (
            model(**{**batch, "input_ids": ids, "labels": None}).logits for ids in (batch["input_ids"], changed)
        )
    torch.testing.assert_close(logits[:, :12], others[:, :12])
    assert not torch.allclose(logits[:, 12:], others[:, 12:])


def test_a_packed_document_is_computed_as_if_it_were_alone(corpus):
    context = make_setup("clm")
    model = clm.load_model(context).eval()
    feature = next(one for one in make_features(clm, context, corpus) if one["segment_ids"].max() > 0)
    is_last = feature["segment_ids"] == feature["segment_ids"].max()
    last = {name: values[is_last] for name, values in feature.items()} | {"segment_ids": np.zeros(is_last.sum(), int)}
    with torch.inference_mode():
        packed, alone = (model(**{**clm.collator(context)([one]), "labels": None}).logits[0] for one in (feature, last))
    torch.testing.assert_close(packed[-len(alone) :], alone)


def test_the_loss_is_that_of_a_plain_loop(corpus):
    context = make_setup("clm", packing="none")
    model = clm.load_model(context).eval()
    features = make_features(clm, context, corpus)[:3]
    batch = clm.collator(context)(features)
    losses = []
    with torch.inference_mode():
        for feature in features:  # without padding, and with transformers' own mask
            ids = torch.from_numpy(feature["input_ids"])[None]
            logs = model(input_ids=ids).logits[0].log_softmax(dim=-1)
            losses += [-logs[i, ids[0, i + 1]].item() for i in range(ids.shape[1] - 2)]  # [SEP] is not predicted
        sums, counts, scores = clm.sum_losses(model, batch), clm.count(batch), clm.score(clm.accumulate(model, batch))
    assert counts["clm"] == len(losses)
    assert sums["clm"].item() == pytest.approx(sum(losses), rel=1e-5)
    assert scores["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)


def test_models_that_cannot_be_read_from_left_to_right_are_refused():
    with pytest.raises(RecipeError, match="a model of type 'albert' has no left-to-right version"):
        clm.check(make_setup("clm", "albert"))


def test_the_checkpoint_keeps_its_direction(tmp_path):
    clm.load_model(make_setup("clm")).save_pretrained(tmp_path)
    from transformers import AutoConfig

    assert AutoConfig.from_pretrained(tmp_path).is_decoder
    context = make_setup("mlm", model_folder=tmp_path)
    object.__setattr__(context, "config", AutoConfig.from_pretrained(tmp_path))
    with pytest.raises(ModelError, match=r"causal \(left-to-right\) models are not supported"):
        mlm.load_model(context)
