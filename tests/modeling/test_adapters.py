"""Adapters in models of every architecture, beside the same weights merged and loaded by peft itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForSequenceClassification

from bertkit.errors import RecipeError, install_command
from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.cls_only import cls_only_last_layer
from bertkit.modeling.depths import ADAPTER, add_adapters, find_depths, find_target_modules, merge_adapters
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.speed_patches import apply_speed_patches
from bertkit.recipe import TrainingConfig
from bertkit.recipe.sections import LoraConfig
from tests.conftest import LEARN, finetune
from tests.kills import TRAINING_STEP, everything
from tests.modeling.tiny_models import CPU, make_tiny, make_tiny_batch

TEXTS = AutoModelForSequenceClassification


def test_targets_are_linear_layers_of_attention_all_or_those_of_a_name():
    model = make_tiny("bert", TEXTS, config={"num_hidden_layers": 1})
    attention = [f"bert.encoder.layer.0.attention.{name}" for name in ("self.query", "self.key", "self.value")]
    attention.append("bert.encoder.layer.0.attention.output.dense")
    assert find_target_modules(model, "attention") == attention
    others = [f"bert.encoder.layer.0.{name}.dense" for name in ("intermediate", "output")]
    assert find_target_modules(model, "all-linear") == attention + others
    assert find_target_modules(model, ["query", "value"]) == [attention[0], attention[2]]
    with pytest.raises(RecipeError) as error:
        find_target_modules(model, ["q_proj"])
    assert str(error.value) == (
        "training.lora.targets: no linear layer is called 'q_proj' - choose from dense, key, query, value"
    )


def test_an_attention_that_reads_weights_is_refused():
    with pytest.raises(RecipeError, match="the attention of a deberta model reads weights, not layers"):
        find_target_modules(make_tiny("deberta", TEXTS), "attention")


def test_without_peft_a_run_ends_at_once(run, tiny_model, toy_data, monkeypatch):
    monkeypatch.setattr("bertkit.workflows.finetune_data.find_spec", lambda name: None)
    ended = finetune(run, tiny_model, toy_data, "--set", "training.lora.rank=4")
    assert (ended.code, ended.err) == (
        5,
        f"error: training.lora needs the package peft - `{install_command('lora')}`\n",
    )


@pytest.fixture
def peft():
    return pytest.importorskip("peft")


def compute(model):
    model.zero_grad()
    logits = model(**make_tiny_batch()).logits
    logits.square().sum().backward()
    return logits.detach(), {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", sorted(ARCHITECTURES.keys() - {"deberta"}))
def test_adapters_work_on_every_architecture_and_speed_path(model_type, peft, tmp_path):
    model = make_tiny(model_type, TEXTS, config={"initializer_range": 0.2})
    without = model(**make_tiny_batch()).logits.detach()
    depths = find_depths(model)
    head = {id(weights) for weights in depths.select(depths.head)}
    add_adapters(model, LoraConfig(rank=2, dropout=0.0))
    for name, weights in model.named_parameters():
        assert weights.requires_grad == ("lora_" in name or id(weights) in head), name
        if "lora_B" in name:
            torch.nn.init.normal_(weights)
    plain, gradients = compute(model)
    assert set(gradients) == {name for name, weights in model.named_parameters() if weights.requires_grad}
    assert (plain - without).abs().max() > 1e-3
    cls_only_last_layer(model)
    with apply_speed_patches(model, TrainingConfig(fast_dropout=False), CPU, DropoutStream(0), None):
        fast, fast_gradients = compute(model)
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fast_gradients, gradients, rtol=1e-3, atol=1e-3)
    merge_adapters(model, tmp_path, "base")
    torch.testing.assert_close(model(**make_tiny_batch()).logits.detach(), plain, rtol=1e-4, atol=1e-5)
    assert not any("lora" in name or "base_layer" in name for name in model.state_dict())
    base = make_tiny(model_type, TEXTS, config={"initializer_range": 0.2})
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / ADAPTER).train()
    torch.testing.assert_close(loaded(**make_tiny_batch()).logits.detach(), plain, rtol=1e-4, atol=1e-5)


SETTINGS = ["--set", "training.lora={rank: 4}", "--set", "training.evaluate_every=4", "--set", "training.log_every=1"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", [3, 9])
def test_a_killed_run_with_adapters_goes_on_as_if_it_had_not_been(peft, zygote, tiny_model, toy_data, tmp_path, call):
    command = ["finetune", "classify", "--model", tiny_model, "--data", toy_data, *LEARN, "--epochs", "2", *SETTINGS]
    command += ["--output", "run"]
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    assert zygote.run(tmp_path / "whole", command)[0] == 0
    assert zygote.run(tmp_path / "broken", command, {"function": TRAINING_STEP, "call": call})[0] == -9
    code, text = zygote.run(tmp_path / "broken", command)
    assert code == 0, text
    ours, theirs = (everything(tmp_path / name / "run") for name in ("broken", "whole"))
    assert f"{ADAPTER}/adapter_model.safetensors" in ours
    for name in (theirs.keys() | ours.keys()) - {"predictions.jsonl"}:  # the best step may be scored anew
        assert ours[name] == theirs[name], name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_leaves_a_merged_model_and_adapters_apart(peft, run, tiny_model, toy_data):
    ended = finetune(run, tiny_model, toy_data, "--epochs", 2, *SETTINGS)
    assert ended.code == 0, ended.err
    assert "training adapters in all layers and the head: " in ended.err
    folder = Path("runs/classify")
    again = run("eval", folder / "recipe.yaml", "--model", folder, "--data", toy_data, "--json")
    assert again.code == 0, again.err
    expected = json.loads((folder / "eval_results.json").read_text())["eval_accuracy"]
    assert json.loads(again.out)["results"][0]["scores"]["accuracy"] == expected
    (checkpoint, *_) = folder.glob("checkpoint-*")
    for command in ("eval", "quantize", "predict"):
        more = {"eval": ["--data", toy_data, "--on-overlap", "mark"], "quantize": ["--output", "q"]}
        ended = run(command, checkpoint, *more.get(command, ["--text", "a"]))
        assert (ended.code, "the adapters of this checkpoint" in ended.last) == (4, True), ended.err
    merged = TEXTS.from_pretrained(folder)
    apart = peft.PeftModel.from_pretrained(TEXTS.from_pretrained(tiny_model, num_labels=2), folder / ADAPTER)
    batch = make_tiny_batch()
    torch.testing.assert_close(apart.eval()(**batch).logits, merged.eval()(**batch).logits, rtol=1e-4, atol=1e-5)
    encoder = load_file(folder / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    assert torch.equal(encoder, load_file(tiny_model / "model.safetensors")["embeddings.word_embeddings.weight"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_encoder_for_vectors_takes_adapters_too(peft, run, tiny_model):
    rows = ["--data", "demo", "--limit", 24, "--batch-size", 8, "--epochs", 1, "--set", "training.precision=fp32"]
    ended = run("finetune", "similarity", "--model", tiny_model, *rows, *SETTINGS)
    assert ended.code == 0, ended.err
    folder = Path("runs/similarity")
    apart = peft.PeftModel.from_pretrained(AutoModel.from_pretrained(tiny_model), folder / ADAPTER).eval()
    merged, batch = AutoModel.from_pretrained(folder).eval(), make_tiny_batch()
    expected = merged(**batch).last_hidden_state
    torch.testing.assert_close(apart(**batch).last_hidden_state, expected, rtol=1e-4, atol=1e-5)
