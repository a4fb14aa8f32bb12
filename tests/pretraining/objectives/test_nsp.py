"""Next-sentence prediction, and what sentence-order prediction (sop) shares with it."""

import math

import numpy as np
import pytest

from bertkit.errors import RecipeError
from bertkit.modeling.info import get_loading_info
from bertkit.pretraining.objectives import load_objective, nsp, sop
from bertkit.tokens.features import IGNORE_INDEX
from tests.pretraining.objectives.texts import (
    LENGTH,
    assert_toy_pairs_are_learned,
    make_corpus,
    make_features,
    make_setup,
)

BOTH = [nsp, sop]
MODELS = ["bert", "albert"]


def name_of(objective):
    return objective.__name__.rpartition(".")[2]


@pytest.fixture(scope="module")
def corpus():
    return make_corpus()


@pytest.mark.parametrize("objective", BOTH, ids=name_of)
def test_a_feature_is_two_segments_with_special_tokens_and_masks(objective, corpus):
    context = make_setup(name_of(objective))
    cls, sep, pad = (context.tokenizer.cls_token_id, context.tokenizer.sep_token_id, context.tokenizer.pad_token_id)
    features = make_features(objective, context, corpus)
    pairs = objective.examples(corpus, LENGTH, context, 0)
    for feature, pair in zip(features, pairs, strict=True):
        whole = np.where(feature["labels"] == IGNORE_INDEX, feature["input_ids"], feature["labels"])
        assert whole.tolist() == [cls, *pair.first, sep, *pair.second, sep]
        assert feature["token_type_ids"].tolist() == [0] * (len(pair.first) + 2) + [1] * (len(pair.second) + 1)
        assert (feature["labels"] != IGNORE_INDEX).sum() == max(1, round(0.15 * (len(whole) - 3)))
        assert feature["pair_labels"] == pair.label
    batch = objective.collator(context)(features)
    assert batch["input_ids"].shape == batch["labels"].shape == batch["token_type_ids"].shape
    padding = batch["input_ids"] == pad
    assert (batch["attention_mask"] == ~padding).all() and (batch["labels"][padding] == IGNORE_INDEX).all()
    counts = objective.count(batch)
    assert counts == {"mlm": int((batch["labels"] != IGNORE_INDEX).sum()), name_of(objective): len(features)}


@pytest.mark.parametrize("objective", BOTH, ids=name_of)
def test_the_more_frequent_label_and_the_lengths_are_baselines(objective, corpus):
    features = make_features(objective, make_setup(name_of(objective)), corpus, progress=None)
    share = np.mean([feature["pair_labels"] for feature in features])
    found = objective.baselines(features, {})
    assert found["more frequent label"] == {"pair_accuracy": pytest.approx(max(share, 1 - share))}
    assert 0.3 < found["segment lengths"]["pair_accuracy"] < 0.7
    for number, feature in enumerate(features):  # as if the first segment were longer where the label is 1
        feature["token_type_ids"] = np.repeat([0, 1], [10 + 20 * feature["pair_labels"] + number % 7, 9 + number % 5])
    assert objective.baselines(features, {})["segment lengths"] == {"pair_accuracy": 1.0}
    assert list(objective.baselines(features[:9], {})) == ["more frequent label"]


@pytest.mark.parametrize("objective", BOTH, ids=name_of)
def test_pairs_and_masks_are_keyed_and_repeat_with_a_dupe_factor(objective, corpus):
    context, repeated = make_setup(name_of(objective)), make_setup(name_of(objective), dupe_factor=2)
    bounds = [objective.examples(corpus, LENGTH, context, epoch).bounds.tolist() for epoch in (0, 0, 1, 2)]
    assert bounds[0] == bounds[1]
    assert bounds[0] != bounds[2] != bounds[3] != bounds[0]
    again = [objective.examples(corpus, LENGTH, repeated, epoch).bounds.tolist() for epoch in (0, 1, 2, 3)]
    assert again[0] == again[2] == bounds[0] and again[1] == again[3] == bounds[2]
    masked = [make_features(objective, context, corpus, epoch)[0]["input_ids"].tolist() for epoch in (0, 0, 1)]
    assert masked[0] == masked[1] != masked[2]


@pytest.mark.parametrize("objective", BOTH, ids=name_of)
def test_held_out_text_is_masked_at_15_percent_whatever_the_recipe_says(objective, corpus):
    context = make_setup(name_of(objective), options={"mask_rate": 0.5})
    shares = {}
    for progress in (0.0, None):
        labels = np.concatenate([f["labels"] for f in make_features(objective, context, corpus, progress=progress)])
        shares[progress] = (labels != IGNORE_INDEX).mean()
    assert shares[0.0] > 0.4 and shares[None] < 0.16


@pytest.mark.parametrize("objective", BOTH, ids=name_of)
def test_the_seed_changes_what_is_trained_on_but_not_what_is_scored(objective, corpus):
    from bertkit.evaluation.held_out import make_held_out_features

    setups = [make_setup(name_of(objective), seed=seed) for seed in (1, 2)]
    trained = [objective.examples(corpus, LENGTH, context, 0).bounds.tolist() for context in setups]
    scored = [make_held_out_features(corpus, objective, context) for context in setups]
    assert trained[0] != trained[1]
    for first, second in zip(*scored, strict=True):
        assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("objective", BOTH, ids=name_of)
def test_the_loss_is_the_sum_of_both_and_that_of_transformers(objective, model_type, corpus):
    import torch

    context = make_setup(name_of(objective), model_type)
    model = objective.load_model(context).eval()
    batch = objective.collator(context)(make_features(objective, context, corpus)[:8])
    sums, counts = objective.sum_losses(model, batch), objective.count(batch)
    ours = sum(weight * sums[name] / counts[name] for name, weight in objective.LOSS_TERMS.items())
    names = {"bert": "next_sentence_label", "albert": "sentence_order_label"}
    inputs = dict(batch)
    theirs = model(**{names[model_type]: inputs.pop("pair_labels")}, **inputs)
    assert set(sums) == set(counts) == set(objective.LOSS_TERMS) == {"mlm", name_of(objective)}
    torch.testing.assert_close(ours, theirs.loss)
    with torch.inference_mode():
        scores = objective.score(objective.accumulate(model, batch))
    assert scores["loss"] == pytest.approx(ours.item(), rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(sums["mlm"].item() / counts["mlm"]), rel=1e-5)
    pair_logits = theirs.seq_relationship_logits if model_type == "bert" else theirs.sop_logits
    assert scores["pair_accuracy"] == (pair_logits.argmax(-1) == batch["pair_labels"]).float().mean().item()
    masked = batch["labels"] != IGNORE_INDEX
    correct = theirs.prediction_logits[masked].argmax(-1) == batch["labels"][masked]
    assert scores["masked_accuracy"] == pytest.approx(correct.float().mean().item())


@pytest.mark.parametrize(("sat", "nats"), [(4.0, 0.2744), (1.0, 1.9935)])
def test_the_cross_entropy_of_a_worked_example(sat, nats):
    import torch

    words = ["the", "cat", "sat", "on", "mat", "dog"]
    context = make_setup("nsp")
    context.config.vocab_size = len(words)
    context.config.pad_token_id = None
    model = nsp.load_model(context).eval()
    with torch.no_grad():  # so the heads' biases are the logits
        model.get_input_embeddings().weight.zero_()
        model.cls.predictions.bias.copy_(torch.tensor([1, 0.5, sat, 2, 0, 1.5]))
        model.cls.seq_relationship.weight.zero_()
        model.cls.seq_relationship.bias.copy_(torch.tensor([2.0, 0.0]))
    ids = torch.tensor([[0, 1, 2, 3, 4]])
    batch = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.tensor([[0, 0, 0, 1, 1]]),
        "labels": torch.tensor([[IGNORE_INDEX, IGNORE_INDEX, words.index("sat"), IGNORE_INDEX, IGNORE_INDEX]]),
        "pair_labels": torch.tensor([1]),
    }
    with torch.inference_mode():
        sums, totals = nsp.sum_losses(model, batch), nsp.accumulate(model, batch)
    assert sums["mlm"].item() == pytest.approx(nats, abs=5e-5)
    assert sums["nsp"].item() == pytest.approx(math.log(1 + math.exp(2)), abs=1e-5)
    assert nsp.score(totals)["loss"] == pytest.approx(nats + math.log(1 + math.exp(2)), abs=1e-4)


@pytest.mark.slow
def test_toy_pairs_are_learned():
    assert_toy_pairs_are_learned(nsp, vocabulary="documents")


@pytest.mark.parametrize("objective", BOTH, ids=name_of)
def test_a_model_without_a_head_over_pairs_is_refused(objective):
    from transformers import RobertaConfig

    context = make_setup(name_of(objective))
    object.__setattr__(context, "config", RobertaConfig())
    with pytest.raises(RecipeError, match="no head over pairs"):
        objective.check(context)


@pytest.mark.parametrize("objective", BOTH, ids=name_of)
def test_pretraining_continues_from_a_checkpoint_with_both_heads(objective, tmp_path):
    import torch

    context = make_setup(name_of(objective))
    first = objective.load_model(context)
    objective.encoder(first, context).save_pretrained(tmp_path)
    again = objective.load_model(make_setup(name_of(objective), model_folder=tmp_path))
    assert get_loading_info(again).new_weights == ()
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    assert load_objective(context.recipe) is objective
