"""Speed paths together, in their order, and attention that is kept for a student."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from bertkit.errors import ModelError, RecipeError, UnavailableError
from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.attention import (
    attention_of,
    attention_weights,
    compiled_layers,
    kept_attention,
    masks_of_host,
    repeated_layers,
    speed_paths,
)
from bertkit.modeling.cls_only import cls_only_last_layer
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.info import SpeedPaths, info_of
from tests.modeling.tiny_models import LENGTHS, make_tiny, make_tiny_batch

pytestmark = pytest.mark.filterwarnings("ignore:.*non-leaf Tensor:UserWarning")  # of Dynamo itself
IDS = set(make_tiny_batch()["input_ids"].flatten().tolist())


def test_all_paths_together_say_what_they_did_and_undo_it():
    model, stream = make_tiny("bert", AutoModelForSequenceClassification), DropoutStream(0)
    cls_only_last_layer(model)
    first, last = model.bert.encoder.layer
    with speed_paths(model, stream, unpad=True, tokens=IDS, merge=True) as embeddings:
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
    with speed_paths(fast, DropoutStream(0), unpad=True, tokens=IDS, merge=True):
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
    with before(model), compiled_layers(model):
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
    assert_same("bert", make_tiny_batch(), before=masks_of_host)


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
        with compiled_layers(model):
            model.eval()(ids)
            assert traces == []
            model.train()(ids)
        assert (len(repeated_layers(model)), len(traces)) == (count, 2)
        traces.clear()


@pytest.mark.usefixtures("traced")
def test_a_machine_that_cannot_compile_is_told_so(monkeypatch):
    def refuse(*_):
        raise RuntimeError("No working C++ compiler found.\nMore of it.")

    monkeypatch.setattr(torch, "compile", partial(COMPILE, backend=refuse))
    model = make_tiny("bert", AutoModelForSequenceClassification)
    with pytest.raises(UnavailableError) as raised, compiled_layers(model):
        model(**make_tiny_batch())
    assert str(raised.value) == (
        "torch cannot compile the layers of this bert model: No working C++ compiler found - "
        "install what it lacks (on a CPU g++, on a GPU Triton and gcc), or leave out training.torch_compile"
    )


@pytest.mark.usefixtures("traced")
def test_attention_that_is_read_is_not_compiled():
    model = make_tiny("bert", AutoModelForSequenceClassification)
    with kept_attention(model, "student"), pytest.raises(RecipeError, match="match hidden states alone"):
        compiled_layers(model).__enter__()


QUICK = ("albert", "deberta")  # one of each sort: with an attention function, and with code of its own


@pytest.mark.parametrize(
    "model_type", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ARCHITECTURES]
)
def test_attention_weights_are_those_of_plain_transformers(model_type):
    model, batch = make_tiny(model_type, AutoModel).eval(), make_tiny_batch()
    before = model.config._attn_implementation
    found = attention_weights(model, batch)
    assert model.config._attn_implementation == before and len(found) == 2
    plain = make_tiny(model_type, AutoModel, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = plain(**batch, output_attentions=True).attentions
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        for row, tokens in enumerate(LENGTHS):
            own = one[row, :, :tokens]
            assert torch.allclose(own.sum(-1), torch.ones(()), atol=1e-6) and not own[..., tokens:].any()


@pytest.mark.parametrize("model_type", ["fnet", pytest.param("longformer", marks=pytest.mark.slow)])
def test_models_without_weights_between_all_tokens_are_refused(model_type):
    model = make_tiny(model_type, AutoModel).eval()
    with pytest.raises(ModelError, match=f"a {model_type} model returns no attention weights between all tokens"):
        attention_weights(model, make_tiny_batch())
