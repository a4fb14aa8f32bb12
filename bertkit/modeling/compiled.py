"""Layers that torch.compile has compiled, while a model is trained.

A model is compiled layer by layer. All layers share their code, so most of them take what was compiled for the first.
Embeddings, heads, and the hooks between them depend on the task and stay as they are, and so do the names of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bertkit.errors import UnavailableError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def compiled_layers(model: PreTrainedModel) -> Iterator[None]:
    """Let a model in training run its layers compiled; evaluations run them as they are.

    Raises:
        UnavailableError: torch cannot compile here, for lack of a compiler or of Triton.
    """
    from torch._dynamo.exc import ShortenTraceback  # of all errors that a compiler raises

    with ExitStack() as patches:
        for layer in repeated_layers(model) or [model.base_model]:
            own, run = vars(layer).get("forward"), partial(_run, layer, layer.forward, torch.compile(layer.forward))
            layer.forward = run  # type: ignore[method-assign]
            patches.callback(_restore, layer, own)
        try:
            yield
        except ShortenTraceback as error:
            reason = str(getattr(error, "inner_exception", error)).strip().splitlines()[0].removesuffix(".")
            raise UnavailableError(
                f"torch cannot compile the layers of this {model.config.model_type} model: {reason}",
                "install what it lacks (on a CPU g++, on a GPU Triton and gcc), or leave out training.torch_compile",
            ) from None


def repeated_layers(module: nn.Module) -> list[nn.Module]:
    """List the layers of all encoders in a module: the items of its outermost lists."""
    layers: list[nn.Module] = []
    for child in module.children():
        is_layer = isinstance(module, nn.ModuleList) and not isinstance(child, nn.ModuleList)
        layers += [child] if is_layer else repeated_layers(child)
    return layers


def _run(layer: nn.Module, plain: Callable[..., Any], compiled: Callable[..., Any], *states: Any, **named: Any) -> Any:
    return (compiled if layer.training else plain)(*states, **named)


def _restore(layer: nn.Module, forward: Any) -> None:
    """Put back the ``forward`` that an instance had, or let it have that of its class again."""
    if forward is None:
        del layer.forward
    else:
        layer.forward = forward
