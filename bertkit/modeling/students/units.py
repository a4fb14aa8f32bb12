"""The units of a model's layers, heads of attention and neurons of feed-forwards, and masks over them.

Both kinds of units are the inputs of a linear layer: attention joins its heads in the input of its output projection,
and a feed-forward its neurons in the input of its second product. So one mask before that layer serves every
architecture, whatever computes what comes before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import torch
from torch import nn

from bertkit.errors import ModelError
from bertkit.modeling.info import Model

# Names inside of a layer. Those of a feed-forward: what widens, and what narrows again.
_FEED_FORWARD = (
    (("intermediate.dense",), "output.dense"),
    (("ffn.lin1",), "ffn.lin2"),
    (("ffn",), "ffn_output"),
    (("mlp.Wi",), "mlp.Wo"),
    (("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj"),
    (("mlp.fc1",), "mlp.fc2"),
)
_ATTENTION_OUTPUT = (
    "attention.output.dense",
    "attention.out_lin",
    "attention.attn.o",
    "attn.Wo",
    "self_attn.o_proj",
    "attention.dense",
)


@dataclass(frozen=True)
class FeedForward:
    """The products of one layer's feed-forward."""

    widen: tuple[nn.Linear, ...]
    """One, or two with a gate, or one whose outputs are both of these."""
    narrow: nn.Linear

    @property
    def width(self) -> int:
        """The number of neurons."""
        return self.narrow.in_features


def feed_forwards_of(model: Model) -> list[FeedForward]:
    """Find the feed-forward of each layer of a model's encoder, in order; of layers that share weights, only one.

    Raises:
        ModelError: its layers have other submodules than those that are known.
    """
    forwards = []
    for layer in model.base_model.modules():
        for names, narrow in _FEED_FORWARD:
            modules = [_submodule(layer, name) for name in (*names, narrow)]
            if all(isinstance(module, nn.Linear) for module in modules):
                forwards.append(FeedForward(tuple(modules[:-1]), modules[-1]))  # type: ignore[arg-type]
                break
    return forwards or _refuse_model(model, "feed-forward")


def attention_outputs_of(model: Model) -> list[nn.Linear]:
    """Find the output projection of each layer's attention, in order; of layers that share weights, only one.

    Raises:
        ModelError: its layers have other submodules than those that are known.
    """
    outputs = []
    for layer in model.base_model.modules():
        modules = (_submodule(layer, name) for name in _ATTENTION_OUTPUT)
        outputs += [module for module in modules if isinstance(module, nn.Linear)][:1]
    return outputs or _refuse_model(model, "attention")


@contextmanager
def unit_masks(layers: Sequence[nn.Linear], units: Sequence[int]) -> Iterator[dict[nn.Linear, list[torch.Tensor]]]:
    """Multiply the inputs of linear layers by masks of ones that get gradients, one number per row and unit.

    Args:
        layers: what the masks are put before.
        units: how many of them the input of each layer holds, one after the other.

    Yields:
        the masks of each layer, (rows, 1, units), one per call.
    """
    masks: dict[nn.Linear, list[torch.Tensor]] = {layer: [] for layer in layers}

    def multiply(count: int, layer: nn.Linear, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        (states,) = inputs
        shape = (len(states), *(1 for _ in states.shape[1:-1]), count)
        masks[layer].append(torch.ones(shape, dtype=states.dtype, device=states.device, requires_grad=True))
        return (_multiply_units(states, masks[layer][-1]),)

    with ExitStack() as hooks:
        for layer, count in zip(layers, units, strict=True):
            hooks.enter_context(layer.register_forward_pre_hook(partial(multiply, count)))
        yield masks


def _multiply_units(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Multiply states (..., units * width) by a mask whose last axis is units."""
    units = states.view(*states.shape[:-1], mask.shape[-1], -1)
    return (units * mask[..., None]).flatten(-2)


def _submodule(layer: nn.Module, name: str) -> nn.Module | None:
    module: object = layer
    for part in name.split("."):
        module = getattr(module, part, None)
        if module is None:
            return None
    return module if isinstance(module, nn.Module) else None


def _refuse_model(model: Model, what: str) -> NoReturn:
    raise ModelError(f"the {what} of a {model.config.model_type} model is not known", "prune its layers or vocabulary")
