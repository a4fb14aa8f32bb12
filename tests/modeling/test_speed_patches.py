"""Speed paths together, in their order: what they compute, what they report, and that they are undone."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from bertkit.errors import RecipeError, UnavailableError
from bertkit.hardware.precision import ComputeConfig
from bertkit.modeling.architectures import ARCHITECTURES, get_layers
from bertkit.modeling.attention import capture_attention, get_attention_map
from bertkit.modeling.cls_only import cls_only_last_layer, is_cls_only
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.info import has_patched_attention, set_tagger_head
from bertkit.modeling.speed_patches import (
    AppliedPatches,
    apply_speed_patches,
    compile_layers,
    find_repeated_layers,
    merge_projections,
    read_masks_on_host,
)
from bertkit.recipe import TrainingConfig
from tests.modeling.tiny_models import CPU, make_tiny, make_tiny_batch

pytestmark = pytest.mark.filterwarnings("ignore:.*non-leaf Tensor:UserWarning")  # of Dynamo itself
IDS = set(make_tiny_batch()["input_ids"].flatten().tolist())


def test_all_paths_together_are_reported_and_undone():
    model = make_tiny("bert", AutoModelForSequenceClassification)
    cls_only_last_layer(model)
    first, last = model.bert.encoder.layer
    embeddings, names = model.get_input_embeddings(), list(model.state_dict())
    forwards = [vars(module).get("forward") for module in model.modules()]
    with apply_speed_patches(model, TrainingConfig(), CPU, DropoutStream(0), IDS) as paths:
        assert model.config._attn_implementation == "bertkit-unpadded"
        assert (paths.unpadded_layers, paths.padding_reason) == ((first,), None)
        assert "forward" in vars(first.attention.self.query)
        assert model.get_input_embeddings() is paths.embeddings
        assert is_cls_only(last) and not is_cls_only(first)
    assert model.config._attn_implementation == "sdpa"
    assert model.get_input_embeddings() is embeddings and list(model.state_dict()) == names
    assert [vars(module).get("forward") for module in model.modules()] == forwards
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_all_paths_together_compute_what_the_plain_model_does():
    plain, fast = (make_tiny("bert", AutoModelForSequenceClassification, dropout=1e-9) for _ in range(2))
    cls_only_last_layer(fast)
    expected = plain(**make_tiny_batch()).logits
    with apply_speed_patches(fast, TrainingConfig(), CPU, DropoutStream(0), IDS):
        torch.testing.assert_close(fast(**make_tiny_batch()).logits, expected, rtol=0, atol=1e-6)


def test_layers_that_run_twice_are_on_no_path():
    model = make_tiny("bert", AutoModel)
    with apply_speed_patches(model, TrainingConfig(gradient_checkpointing=True), CPU, DropoutStream(0), None) as paths:
        assert paths == AppliedPatches(padding_reason="padding is computed with gradient_checkpointing: true")
        assert not has_patched_attention(model)


def test_attention_that_is_kept_is_neither_unpadded_nor_replaced():
    model = make_tiny("bert", AutoModel)
    with (
        capture_attention(model, "student", in_training_only=True) as maps,
        apply_speed_patches(model, TrainingConfig(), CPU, DropoutStream(0), None) as paths,
    ):
        assert model.config._attn_implementation == "bertkit-keeping-student"
        assert not paths.unpadded_layers
        model(**make_tiny_batch())
        assert get_attention_map(model.encoder.layer[0], maps).shape == (4, 2, 9, 9)


@pytest.fixture
def tagger():
    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 1}
    return AutoModelForTokenClassification.from_config(AutoConfig.for_model("bert", **sizes, **layers))


@pytest.mark.parametrize(
    ("device", "settings", "why"),
    [
        ("cpu", {}, None),
        ("cuda", {}, "a GPU computes padding"),
        ("cuda", {"unpad": True}, "variable-length attention is not computed in fp32"),
        (
            "cuda",
            {"unpad": True, "gradient_checkpointing": True},
            "padding is computed with gradient_checkpointing: true",
        ),
        ("cpu", {"unpad": False}, "padding is computed with unpad: false"),
        ("cpu", {"unpad": True}, None),
        ("cpu", {"gradient_checkpointing": True}, "padding is computed with gradient_checkpointing: true"),
        ("cpu", {"torch_compile": True}, "padding is computed with torch_compile: true"),
    ],
)
def test_the_reason_for_padding(tagger, monkeypatch, device, settings, why):
    monkeypatch.setattr("torch.compile", lambda forward: forward)
    training, machine = TrainingConfig(**settings), ComputeConfig(device, "fp32", 1, "")
    with apply_speed_patches(tagger, training, machine, DropoutStream(1), None) as paths:
        assert paths.padding_reason == why


def test_padding_is_computed_where_the_layers_of_a_model_are_read(tagger):
    get_layers(tagger)[0].register_forward_hook(lambda *_: None)
    with apply_speed_patches(tagger, TrainingConfig(), CPU, DropoutStream(1), None) as paths:
        assert paths.padding_reason == "padding is computed in this bert model"


def test_a_frozen_encoder_computes_no_padding_while_its_tagger_is_trained(tagger):
    set_tagger_head(tagger.config, {"layers": "last", "tagger": "linear", "size": 0})
    with apply_speed_patches(tagger, TrainingConfig(unpad=False), CPU, DropoutStream(1), None) as paths:
        assert paths.padding_reason is None


# --- merged projections


def count_products(model, monkeypatch) -> int:
    """Count the linear products of a forward pass."""
    sizes = []
    linear = functional.linear

    def counted(states, weight, bias=None):
        sizes.append(len(weight))
        return linear(states, weight, bias)

    monkeypatch.setattr(functional, "linear", counted)
    model(**make_tiny_batch())
    monkeypatch.undo()
    return len(sizes)


def test_three_products_become_one_and_three_again(monkeypatch):
    model = make_tiny("bert", AutoModel)
    before = count_products(model, monkeypatch)
    with merge_projections(model) as count:
        assert count == 2
        assert count_products(model, monkeypatch) == before - 2 * 2
    assert count_products(model, monkeypatch) == before


def test_evaluation_during_training_computes_the_same_products_as_later(monkeypatch):
    model = make_tiny("bert", AutoModel).eval()
    before = count_products(model, monkeypatch)
    with merge_projections(model):
        assert count_products(model, monkeypatch) == before


def test_a_last_layer_for_one_token_keeps_its_own_query():
    model = make_tiny("bert", AutoModelForSequenceClassification)
    cls_only_last_layer(model)
    expected = model(**make_tiny_batch()).logits
    with merge_projections(model) as count:
        assert count == 1
        torch.testing.assert_close(model(**make_tiny_batch()).logits, expected, rtol=0, atol=1e-6)


def test_other_states_are_projected_alone():
    model = make_tiny("bert", AutoModel)
    attention = model.encoder.layer[0].attention.self
    states, others = torch.randn(2, 1, 3, 16)
    expected = [attention.query(states), attention.key(others), attention.value(states)]
    with merge_projections(model):
        projected = [attention.query(states), attention.key(others), attention.value(states)]
    for ours, plain in zip(projected, expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-6)


def test_in_bf16_states_are_projected_as_autocast_does():
    model = make_tiny("bert", AutoModel)
    attention, states = model.encoder.layer[0].attention.self, torch.randn(1, 3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        expected = attention.value(states)
        with merge_projections(model):
            projected = [layer(states) for layer in (attention.query, attention.key, attention.value)]
    assert projected[2].dtype == torch.bfloat16
    torch.testing.assert_close(projected[2], expected, rtol=0.01, atol=0.001)


# --- compiled layers


COMPILE = torch.compile


@pytest.fixture
def traced(monkeypatch):
    """Trace as for any backend, and run what was traced without compiling it."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(COMPILE, backend="eager"))
    yield
    torch._dynamo.reset()


def run(model, batch) -> list[torch.Tensor]:
    logits = model(**batch).logits
    (logits * torch.linspace(-1, 1, logits.numel()).view(logits.shape)).sum().backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    model.zero_grad()
    return [logits.detach(), *gradients]


def assert_same(model_type: str, *batches, before=lambda model: nullcontext()) -> None:
    model = make_tiny(model_type, AutoModelForSequenceClassification)
    cls_only_last_layer(model)
    names, forwards = list(model.state_dict()), [vars(module).get("forward") for module in model.modules()]
    expected = [run(model, batch) for batch in batches]
    with before(model), compile_layers(model):
        found = [run(model, batch) for batch in batches]
        assert list(model.state_dict()) == names
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert [vars(module).get("forward") for module in model.modules()] == forwards


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_logits_and_gradients_are_those_of_plain_layers():
    assert_same("bert", make_tiny_batch())


@pytest.mark.usefixtures("traced")
def test_layers_are_compiled_with_the_masks_of_an_accelerator():
    assert_same("bert", make_tiny_batch(), before=read_masks_on_host)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", sorted(ARCHITECTURES))
@pytest.mark.usefixtures("traced")
def test_every_architecture_is_compiled(model_type):
    assert_same(model_type, make_tiny_batch(), make_tiny_batch((6, 7)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("traced")
def test_the_real_compiler_changes_nothing(monkeypatch):
    monkeypatch.setattr(torch, "compile", COMPILE)
    assert_same("bert", make_tiny_batch(), make_tiny_batch((6, 7)))


@pytest.mark.usefixtures("traced")
def test_layers_are_traced_in_training_only_and_found_in_any_model(monkeypatch):
    traces = []
    monkeypatch.setattr(
        torch, "compile", lambda forward: lambda *states, **named: traces.append(1) or forward(*states, **named)
    )
    for model_type, count in (("bert", 2), ("albert", 1), ("fnet", 2)):
        model = make_tiny(model_type, AutoModelForSequenceClassification)
        ids = make_tiny_batch()["input_ids"]
        with compile_layers(model):
            model.eval()(ids)
            assert traces == []
            model.train()(ids)
        assert (len(find_repeated_layers(model)), len(traces)) == (count, 2)
        traces.clear()


@pytest.mark.usefixtures("traced")
def test_a_machine_that_cannot_compile_is_told_so(monkeypatch):
    def refuse(*_):
        raise RuntimeError("No working C++ compiler found.\nMore of it.")

    monkeypatch.setattr(torch, "compile", partial(COMPILE, backend=refuse))
    model = make_tiny("bert", AutoModelForSequenceClassification)
    with pytest.raises(UnavailableError) as raised, compile_layers(model):
        model(**make_tiny_batch())
    assert str(raised.value) == (
        "torch cannot compile the layers of this bert model: No working C++ compiler found - "
        "install g++ (for a CPU), or gcc and Triton (for a GPU), or leave out training.torch_compile"
    )


@pytest.mark.usefixtures("traced")
def test_attention_that_is_read_is_not_compiled():
    model = make_tiny("bert", AutoModelForSequenceClassification)
    with capture_attention(model, "student"), pytest.raises(RecipeError, match="match hidden states only"):
        compile_layers(model).__enter__()
