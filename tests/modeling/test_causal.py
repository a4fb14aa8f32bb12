"""Left-to-right encoders: heads for whole texts read the last token."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, ElectraConfig, RobertaConfig

from bertkit.modeling.causal import make_causal
from bertkit.modeling.load import load_model
from bertkit.objectives import clm
from tests.conftest import make_tokenizer
from tests.objectives.texts import make_setup


@pytest.mark.parametrize("model_type", ["bert", "roberta", "electra"])
@pytest.mark.parametrize("cls_only", [False, True])
def test_a_text_is_read_to_its_last_token_whatever_the_padding(tmp_path, model_type, cls_only):
    setup = make_setup("clm", model_type)
    clm.load_model(setup).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    model = load_model(
        "AutoModelForSequenceClassification", tmp_path, ["a", "b"], new_head=True, cls_only=cls_only
    ).eval()
    ids = torch.tensor([[2, 7, 8, 9, 3, 0, 0], [2, 7, 8, 9, 10, 11, 3]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1] * 7])
    other = ids.clone()
    other[:, 3] = 12
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=mask).logits
        alone = model(input_ids=ids[:1, :5]).logits
        changed = model(input_ids=other, attention_mask=mask).logits
        hidden = model.base_model(input_ids=ids[:1, :5]).last_hidden_state
    torch.testing.assert_close(logits[:1], alone)
    assert not torch.isclose(logits, changed).any()
    assert hidden.shape[1] == 1


def test_taggers_read_every_token(tmp_path):
    clm.load_model(make_setup("clm")).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    model = load_model("AutoModelForTokenClassification", tmp_path, ["a", "b"], new_head=True).eval()
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    with torch.inference_mode():
        logits, others = (model(input_ids=one).logits for one in (ids, torch.tensor([[2, 7, 8, 12, 3]])))
    assert logits.shape == (1, 5, 2)
    torch.testing.assert_close(logits[:, :3], others[:, :3])
    assert not torch.isclose(logits[:, 3:], others[:, 3:]).any()


@pytest.mark.parametrize("config", [BertConfig(), RobertaConfig(), ElectraConfig()])
def test_a_causal_config_is_a_copy(config):
    causal = make_causal(config)
    assert (causal.is_decoder, causal.use_cache) == (True, False)
    assert not config.is_decoder
