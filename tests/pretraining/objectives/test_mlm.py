"""Masked language modeling: what is masked, the loss of transformers, and models that are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bertkit.errors import RecipeError
from bertkit.modeling.info import get_loading_info
from bertkit.pretraining.objectives import mlm
from bertkit.tokens.features import IGNORE_INDEX
from tests.pretraining.objectives.texts import LENGTH, make_corpus, make_features, make_setup


@pytest.fixture(scope="module")
def corpus():
    return make_corpus()


def restore(feature):
    """Return the tokens of a feature before they were masked."""
    return np.where(feature["labels"] == IGNORE_INDEX, feature["input_ids"], feature["labels"])


def share_of_masked(features) -> float:
    return np.mean(np.concatenate([feature["labels"] for feature in features]) != IGNORE_INDEX)


@pytest.mark.parametrize("whole_words", [False, True])
def test_only_text_is_masked_and_labels_restore_it(corpus, whole_words):
    context = make_setup("mlm", options={"whole_words": whole_words})
    special = [context.tokenizer.cls_token_id, context.tokenizer.sep_token_id]
    blocks = mlm.examples(corpus, LENGTH, context, 0)
    for feature, block in zip(make_features(mlm, context, corpus), blocks, strict=True):
        whole = restore(feature)
        assert whole[~np.isin(whole, special)].tolist() == np.concatenate(block.tokens).tolist()
        assert not np.isin(feature["labels"], special).any()
        assert len(set(feature["segment_ids"])) == len(block.tokens)


def test_masks_are_keyed_and_differ_between_epochs(corpus):
    context = make_setup("mlm")
    masked = [make_features(mlm, context, corpus, epoch)[0]["labels"].tolist() for epoch in (0, 0, 1)]
    assert masked[0] == masked[1] != masked[2]


def test_the_rate_changes_in_the_course_of_training_but_not_on_held_out_text(corpus):
    context = make_setup("mlm", options={"mask_rate": 0.5, "last_mask_rate": 0.1})
    shares = [share_of_masked(make_features(mlm, context, corpus, progress=progress)) for progress in (0.0, 0.5, 1.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.4 and shares[2] < 0.12
    held_out = share_of_masked(make_features(mlm, context, corpus, progress=None))
    assert held_out == share_of_masked(make_features(mlm, make_setup("mlm"), corpus, progress=None))


@pytest.mark.parametrize(("packing", "dimensions"), [("documents", 4), ("joined", 2), ("none", 2)])
def test_attention_stays_within_documents_if_the_recipe_says_so(corpus, packing, dimensions):
    context = make_setup("mlm", packing=packing)
    batch = mlm.collator(context)(make_features(mlm, context, corpus))
    assert batch["attention_mask"].dim() == dimensions
    assert ("position_ids" in batch) == (packing == "documents")


def test_the_loss_is_that_of_transformers(corpus):
    context = make_setup("mlm", packing="none")
    model = mlm.load_model(context).eval()
    batch = mlm.collator(context)(make_features(mlm, context, corpus)[:8])
    sums, counts = mlm.sum_losses(model, batch), mlm.count(batch)
    outputs = model(**batch)
    torch.testing.assert_close(sums["mlm"] / counts["mlm"], outputs.loss)
    with torch.inference_mode():
        scores = mlm.score(mlm.accumulate(model, batch))
    masked = batch["labels"] != IGNORE_INDEX
    correct = (outputs.logits.argmax(-1) == batch["labels"])[masked]
    assert scores["loss"] == pytest.approx(outputs.loss.item(), rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(outputs.loss.item()), rel=1e-5)
    assert scores["masked_accuracy"] == pytest.approx(correct.float().mean().item())


def test_the_encoder_is_the_whole_model(tmp_path):
    context = make_setup("mlm")
    model = mlm.load_model(context)
    assert mlm.encoder(model, context) is model
    assert mlm.auxiliary_checkpoints(model, context) == {}
    model.save_pretrained(tmp_path)
    assert get_loading_info(mlm.load_model(make_setup("mlm", model_folder=tmp_path))).new_weights == ()


def test_a_model_that_cannot_read_packed_documents_is_refused():
    from transformers import DebertaV2Config

    context = make_setup("mlm")
    object.__setattr__(context, "config", DebertaV2Config())
    with pytest.raises(RecipeError, match=r"--set training\.packing=joined, or none"):
        mlm.check(context)
    joined = make_setup("mlm", packing="joined")
    object.__setattr__(joined, "config", DebertaV2Config())
    mlm.check(joined)
