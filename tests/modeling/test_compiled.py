"""Compiled layers: the same logits and gradients, in training only, and the model left as it was.

Dynamo traces the layers; what its backend makes of them is torch's own (one slow test has the real one compile).
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from bertkit.errors import UnavailableError
from bertkit.modeling import compiled
from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.cls_only import cls_only_last_layer
from tests.modeling.tiny_models import make_tiny, make_tiny_batch

COMPILE = torch.compile
pytestmark = pytest.mark.filterwarnings("ignore:.*non-leaf Tensor:UserWarning")  # of Dynamo itself


@pytest.fixture(autouse=True)
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


def assert_same(model_type: str, *batches) -> None:
    model = make_tiny(model_type, AutoModelForSequenceClassification)
    cls_only_last_layer(model)
    names, forwards = list(model.state_dict()), [vars(module).get("forward") for module in model.modules()]
    expected = [run(model, batch) for batch in batches]
    with compiled.compiled_layers(model):
        found = [run(model, batch) for batch in batches]
        assert list(model.state_dict()) == names
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert [vars(module).get("forward") for module in model.modules()] == forwards


def test_logits_and_gradients_are_those_of_plain_layers():
    assert_same("bert", make_tiny_batch())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", sorted(ARCHITECTURES))
def test_every_architecture_is_compiled(model_type):
    assert_same(model_type, make_tiny_batch(), make_tiny_batch((6, 7)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_real_compiler_changes_nothing(monkeypatch):
    monkeypatch.setattr(torch, "compile", COMPILE)
    assert_same("bert", make_tiny_batch(), make_tiny_batch((6, 7)))


def test_layers_are_traced_in_training_only_and_found_in_any_model(monkeypatch):
    traces = []
    monkeypatch.setattr(
        torch, "compile", lambda forward: lambda *states, **named: traces.append(1) or forward(*states, **named)
    )
    for model_type, count in (("bert", 2), ("albert", 1), ("fnet", 2)):
        model = make_tiny(model_type, AutoModelForSequenceClassification)
        ids = make_tiny_batch()["input_ids"]
        with compiled.compiled_layers(model):
            model.eval()(ids)
            assert traces == []
            model.train()(ids)
        assert (len(compiled.repeated_layers(model)), len(traces)) == (count, 2)
        traces.clear()


def test_a_machine_that_cannot_compile_is_told_so(monkeypatch):
    def refuse(*_):
        raise RuntimeError("No working C++ compiler found.\nMore of it.")

    monkeypatch.setattr(torch, "compile", partial(COMPILE, backend=refuse))
    model = make_tiny("bert", AutoModelForSequenceClassification)
    with pytest.raises(UnavailableError) as raised, compiled.compiled_layers(model):
        model(**make_tiny_batch())
    assert str(raised.value) == (
        "torch cannot compile the layers of this bert model: No working C++ compiler found - "
        "install what it lacks (on a CPU g++, on a GPU Triton and gcc), or leave out training.torch_compile"
    )
