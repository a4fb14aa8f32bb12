"""Several heads on one encoder, against the models that they come from."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from bertkit.errors import ModelError
from bertkit.modeling.depths import find_depths
from bertkit.modeling.heads.several import check_encoders, join_heads

BATCH = {
    "input_ids": torch.tensor([[2, 9, 11, 3], [2, 8, 3, 0]]),
    "attention_mask": torch.tensor([[1] * 4, [1, 1, 1, 0]]),
}


def load(folder):
    torch.manual_seed(0)
    return {
        "words": AutoModelForTokenClassification.from_pretrained(folder, num_labels=5).eval(),
        "topic": AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3).eval(),
    }


@pytest.fixture
def models(tiny_model):
    return load(tiny_model)


def test_each_head_computes_what_its_model_does(tiny_model, models):
    joined = join_heads(models).eval()
    with torch.no_grad():
        for name, alone in load(tiny_model).items():
            assert torch.equal(joined(name, **BATCH).logits, alone(**BATCH).logits)


def test_all_heads_read_one_pass_of_the_encoder(tiny_model, models):
    joined, passes = join_heads(models).eval(), []
    joined.base_model.encoder.register_forward_hook(lambda *_: passes.append(1))
    with torch.no_grad():
        outputs = joined(**BATCH)
        alone = {name: model(**BATCH).logits for name, model in load(tiny_model).items()}
    assert len(passes) == 1
    assert outputs.keys() == {"words.logits", "topic.logits"}
    assert all(torch.equal(outputs[f"{name}.logits"], logits) for name, logits in alone.items())


def test_the_encoder_is_trained_by_all_and_counted_once(models):
    own = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    words = models["words"]
    head = sum(p.numel() for p in words.classifier.parameters())
    joined = join_heads(models)
    assert sum(p.numel() for p in joined.parameters()) == own["topic"] + head
    assert len(find_depths(joined).select(0, 2)) == len(list(words.bert.embeddings.parameters())) + len(
        list(words.bert.encoder.parameters())
    )
    joined("words", **BATCH, labels=torch.ones(2, 4, dtype=torch.long)).loss.backward()
    assert models["topic"].bert.embeddings.word_embeddings.weight.grad is not None
    assert models["topic"].classifier.weight.grad is None


def test_the_mode_is_that_of_all_models(models):
    joined = join_heads(models).train()
    assert all(module.training for model in models.values() for module in model.modules())
    joined.eval()
    assert not any(module.training for model in models.values() for module in model.modules())


def test_separate_models_have_the_trained_weights_and_their_own_names(tiny_model, models):
    names = {name: list(model.state_dict()) for name, model in load(tiny_model).items()}
    joined = join_heads(models)
    with torch.no_grad():
        joined.base_model.embeddings.word_embeddings.weight.add_(1.0)
    joined.separate()
    assert {name: list(model.state_dict()) for name, model in models.items()} == names
    one, other = (model.bert.embeddings.word_embeddings.weight for model in models.values())
    assert torch.equal(one, other)


def test_encoders_that_differ_are_refused(models):
    check_encoders(models)
    with torch.no_grad():
        models["topic"].bert.encoder.layer[1].output.dense.bias[0] += 1
    with pytest.raises(ModelError, match=r"the encoders of words and topic differ in encoder\.layer\.1"):
        check_encoders(models)
