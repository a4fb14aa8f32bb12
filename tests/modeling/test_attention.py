"""Speed paths together, in their order, and attention that is kept for a student."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from bertkit.errors import ModelError
from bertkit.modeling.attention import attention_of, kept_attention, speed_paths
from bertkit.modeling.cls_only import cls_only_last_layer
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.info import SpeedPaths, info_of
from tests.modeling.tiny_models import make_tiny, make_tiny_batch

IDS = set(make_tiny_batch()["input_ids"].flatten().tolist())


def test_all_paths_together_say_what_they_did_and_undo_it():
    model, stream = make_tiny("bert", AutoModelForSequenceClassification), DropoutStream(0)
    cls_only_last_layer(model)
    first, last = model.bert.encoder.layer
    with speed_paths(model, stream, unpad=True, tokens=IDS) as embeddings:
        paths = info_of(model).speed_paths
        assert [patch.name for patch in paths.attention] == ["bertkit-dropout", "bertkit-unpadded"]
        assert paths.attention[-1].wraps == "bertkit-dropout"
        assert (paths.dropout, paths.unpadded_layers, paths.cls_only_layer) == (stream, (first,), last)
        assert paths.merged_projections == 1
        assert model.get_input_embeddings() is paths.embeddings is embeddings
    assert info_of(model).speed_paths == SpeedPaths(cls_only_layer=last)
    assert model.config._attn_implementation == "sdpa"


def test_all_paths_together_compute_what_the_plain_model_does():
    plain, fast = (make_tiny("bert", AutoModelForSequenceClassification, dropout=1e-9) for _ in range(2))
    cls_only_last_layer(fast)
    expected = plain(**make_tiny_batch()).logits
    with speed_paths(fast, DropoutStream(0), unpad=True, tokens=IDS):
        torch.testing.assert_close(fast(**make_tiny_batch()).logits, expected, rtol=0, atol=1e-6)


def test_no_path_is_taken_that_is_not_asked_for():
    model = make_tiny("bert", AutoModel)
    with speed_paths(model, None, unpad=False, tokens=None) as embeddings:
        assert embeddings is None
        assert info_of(model).speed_paths == SpeedPaths()


def test_attention_that_is_kept_is_neither_unpadded_nor_replaced():
    model = make_tiny("bert", AutoModel)
    with (
        kept_attention(model, "student", in_training_only=True) as maps,
        speed_paths(model, DropoutStream(0), unpad=True, tokens=None),
    ):
        paths = info_of(model).speed_paths
        assert [patch.name for patch in paths.attention] == ["bertkit-keeping-student"]
        assert not paths.unpadded_layers
        model(**make_tiny_batch())
        assert attention_of(model.encoder.layer[0], maps).shape == (4, 2, 9, 9)


def test_kept_attention_is_a_distribution_over_real_tokens():
    model, batch = make_tiny("bert", AutoModel), make_tiny_batch()
    expected = model(**batch)[0]
    with kept_attention(model, "teacher") as maps:
        torch.testing.assert_close(model(**batch)[0], expected, rtol=0, atol=1e-6)
    shares = attention_of(model.encoder.layer[1], maps).exp()
    torch.testing.assert_close(shares.sum(dim=-1), torch.ones(4, 2, 9))
    assert not shares[0, :, :, 3:].any()


def test_evaluations_keep_nothing_where_training_only_is_asked_for():
    model = make_tiny("bert", AutoModel).eval()
    expected = model(**make_tiny_batch())[0]
    with kept_attention(model, "student", in_training_only=True) as maps:
        assert torch.equal(model(**make_tiny_batch())[0], expected)
    assert not maps


def test_an_attention_of_its_own_cannot_be_read():
    model = make_tiny("deberta", AutoModel)
    with pytest.raises((ModelError, ValueError)), kept_attention(model, "teacher"):
        pass
    assert model.config._attn_implementation == "eager"
