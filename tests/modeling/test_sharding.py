"""Weights that are split among processes: they learn what whole ones do; tests/workflows/test_resume.py kills them."""

from __future__ import annotations

import json

import pytest
import torch

from bertkit.modeling.info import is_sharded
from bertkit.modeling.sharding import gather, scatter_like
from bertkit.storage.hub import find_model
from tests.kills import losses_of, weights_of


def test_what_is_not_split_stays_as_it_is():
    weights = torch.ones(2)
    assert gather(weights) is weights and gather("text") == "text"
    assert scatter_like(weights, torch.zeros(2)) is weights
    assert not is_sharded(torch.nn.Linear(1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mlm", "albert", "electra"])
def test_pretraining_learns_the_same(objective, zygote, tmp_path):
    """Embeddings that the head has too, layers that are one, and two models that share their embeddings."""
    command = ["pretrain", objective, "--data", "demo", "--tokenizer", find_model("demo"), "--limit", "200"]
    command += ["--steps", "4", "--batch-size", "8", "--max-length", "32", "--set", "training.log_every=1"]
    size = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    size |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    command += ["--set", f"model_options={json.dumps(size)}", "--set", "training.precision=fp32"]
    command += ["--set", "training.fast_dropout=false"]  # heads may have some, which is drawn otherwise
    for name in ("whole", "split"):
        arguments = [*command, "--set", f"training.fsdp={name == 'split'}", "--output", name]
        codes, _, err = zygote.launch(tmp_path, arguments, 2)
        assert codes == [0, 0], err
    whole, split = losses_of(tmp_path / "whole"), losses_of(tmp_path / "split")
    for entry, other in zip(whole, split, strict=True):
        assert entry == pytest.approx(other, abs=1e-4)
    ours, theirs = weights_of(tmp_path / "whole"), weights_of(tmp_path / "split")
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(torch.tensor(ours[name]), torch.tensor(theirs[name]), atol=2e-4, rtol=1e-3)
    assert (tmp_path / "whole" / "config.json").read_text() == (tmp_path / "split" / "config.json").read_text()
