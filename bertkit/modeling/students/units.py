"""Heads and feed-forward neurons of a model, and masks over them.

Both kinds of units are inputs of a linear layer: heads of the output projection of attention, neurons of the second
layer of the feed-forward network. So masking these inputs works for every architecture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor, nn

from bertkit.errors import ModelError
from bertkit.modeling.info import Model

# Names of submodules of a layer: the projections to the neurons, and the projection back.
_FEED_FORWARD_NAMES = (
    (("intermediate.dense",), "output.dense"),
    (("ffn.lin1",), "ffn.lin2"),
    (("ffn",), "ffn_output"),
    (("mlp.Wi",), "mlp.Wo"),
    (("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj"),
    (("mlp.fc1",), "mlp.fc2"),
)
# Names of the output projection of attention.
_ATTENTION_OUTPUT_NAMES = (
    "attention.output.dense",
    "attention.out_lin",
    "attention.attn.o",
    "attn.Wo",
    "self_attn.o_proj",
    "attention.dense",
)


@dataclass(frozen=True)
class FeedForward:
    """Linear layers of a feed-forward network."""

    widen: tuple[nn.Linear, ...]
    """Projections to the neurons and, in gated layers, to the gates: two modules, or one that computes both."""
    narrow: nn.Linear
    """Projection back to the hidden size."""

    @property
    def width(self) -> int:
        """Number of neurons."""
        return self.narrow.in_features


def find_feed_forwards(model: Model) -> list[FeedForward]:
    """Return the feed-forward network of each layer, in order; layers that share their weights count as one layer.

    Raises:
        ModelError: If bertkit does not know the submodules of the layers.
    """
    forwards = []
    for layer in model.base_model.modules():
        for names, narrow in _FEED_FORWARD_NAMES:
            modules = [_get_submodule(layer, name) for name in (*names, narrow)]
            if all(isinstance(module, nn.Linear) for module in modules):
                forwards.append(FeedForward(tuple(modules[:-1]), modules[-1]))  # type: ignore[arg-type]
                break
    return forwards or _raise_unknown(model, "feed-forward")


def find_attention_outputs(model: Model) -> list[nn.Linear]:
    """Return the output projection of each layer's attention, in order; layers that share weights count as one.

    Raises:
        ModelError: If bertkit does not know the submodules of the layers.
    """
    outputs = []
    for layer in model.base_model.modules():
        modules = (_get_submodule(layer, name) for name in _ATTENTION_OUTPUT_NAMES)
        outputs += [module for module in modules if isinstance(module, nn.Linear)][:1]
    return outputs or _raise_unknown(model, "attention")


@contextmanager
def mask_units(layers: Sequence[nn.Linear], units: Sequence[int]) -> Iterator[dict[nn.Linear, list[Tensor]]]:
    """Multiply the inputs of linear layers by masks of ones, whose gradients measure the importance of units.

    Args:
        layers: Layers whose inputs are multiplied.
        units: Number of units of each layer; a unit is a slice of the layer's input.

    Yields:
        Layer -> its masks, one per call. Shape: (rows, 1, units).
    """
    masks: dict[nn.Linear, list[Tensor]] = {layer: [] for layer in layers}

    def multiply(count: int, layer: nn.Linear, inputs: tuple[Tensor]) -> tuple[Tensor]:
        (states,) = inputs
        shape = (len(states), *(1 for _ in states.shape[1:-1]), count)
        masks[layer].append(torch.ones(shape, dtype=states.dtype, device=states.device, requires_grad=True))
        return (_multiply_units(states, masks[layer][-1]),)

    with ExitStack() as hooks:
        for layer, count in zip(layers, units, strict=True):
            hooks.enter_context(layer.register_forward_pre_hook(partial(multiply, count)))
        yield masks


def _multiply_units(states: Tensor, mask: Tensor) -> Tensor:
    """Multiply states (..., units * width) by a mask (..., units)."""
    return (states.view(*states.shape[:-1], mask.shape[-1], -1) * mask[..., None]).flatten(-2)


def _get_submodule(layer: nn.Module, name: str) -> nn.Module | None:
    try:
        return layer.get_submodule(name)
    except AttributeError:
        return None


def _raise_unknown(model: Model, part: str) -> NoReturn:
    raise ModelError(f"the {part} of a {model.config.model_type} model is not known", "prune its layers or vocabulary")
