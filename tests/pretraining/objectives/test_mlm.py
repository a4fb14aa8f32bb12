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
    setup = make_setup("mlm", options={"whole_words": whole_words})
    special = [setup.tokenizer.cls_token_id, setup.tokenizer.sep_token_id]
    blocks = mlm.examples(corpus, LENGTH, setup, 0)
    for feature, block in zip(make_features(mlm, setup, corpus), blocks, strict=True):
        whole = restore(feature)
        assert whole[~np.isin(whole, special)].tolist() == np.concatenate(block.tokens).tolist()
        assert not np.isin(feature["labels"], special).any()
        assert len(set(feature["segment_ids"])) == len(block.tokens)


def test_masks_are_keyed_and_differ_between_epochs(corpus):
    setup = make_setup("mlm")
    masked = [make_features(mlm, setup, corpus, epoch)[0]["labels"].tolist() for epoch in (0, 0, 1)]
    assert masked[0] == masked[1] != masked[2]


def test_the_rate_changes_in_the_course_of_training_but_not_on_held_out_text(corpus):
    setup = make_setup("mlm", options={"mask_rate": 0.5, "last_mask_rate": 0.1})
    shares = [share_of_masked(make_features(mlm, setup, corpus, progress=progress)) for progress in (0.0, 0.5, 1.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.4 and shares[2] < 0.12
    held_out = share_of_masked(make_features(mlm, setup, corpus, progress=None))
    assert held_out == share_of_masked(make_features(mlm, make_setup("mlm"), corpus, progress=None))


@pytest.mark.parametrize(("packing", "dimensions"), [("documents", 4), ("joined", 2), ("none", 2)])
def test_attention_stays_within_documents_if_the_recipe_says_so(corpus, packing, dimensions):
    setup = make_setup("mlm", packing=packing)
    batch = mlm.collator(setup)(make_features(mlm, setup, corpus))
    assert batch["attention_mask"].dim() == dimensions
    assert ("position_ids" in batch) == (packing == "documents")


def test_the_loss_is_that_of_transformers(corpus):
    setup = make_setup("mlm", packing="none")
    model = mlm.load_model(setup).eval()
    batch = mlm.collator(setup)(make_features(mlm, setup, corpus)[:8])
    sums, counts = mlm.losses(model, batch), mlm.count(batch)
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
    setup = make_setup("mlm")
    model = mlm.load_model(setup)
    assert mlm.encoder(model, setup) is model
    assert mlm.auxiliary_checkpoints(model, setup) == {}
    model.save_pretrained(tmp_path)
    assert get_loading_info(mlm.load_model(make_setup("mlm", model_folder=tmp_path))).new_weights == ()


def test_a_model_that_cannot_read_packed_documents_is_refused():
    from transformers import DebertaV2Config

    setup = make_setup("mlm")
    object.__setattr__(setup, "config", DebertaV2Config())
    with pytest.raises(RecipeError, match=r"--set training\.packing=joined, or none"):
        mlm.check(setup)
    joined = make_setup("mlm", packing="joined")
    object.__setattr__(joined, "config", DebertaV2Config())
    mlm.check(joined)
