"""One product in place of three: queries, keys and values are projections of the same hidden states.

Small products leave much of a CPU idle, and autocast would cast the same hidden states three times. The gradients of
the states are added up inside of the product, and no longer after three roundings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from bertkit.modeling.info import Model, info_of, patched_forward

# not those of DeBERTa, which project distances too
_NAMES = (("query", "key", "value"), ("q_lin", "k_lin", "v_lin"), ("q_proj", "k_proj", "v_proj"), ("q", "k", "v"))


class _Projections:
    """Computes all projections when the first is called, and hands the others out when they are called."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.layers = layers
        self.states: torch.Tensor | None = None
        self.projected: Sequence[torch.Tensor] = ()

    def project(self, number: int, states: torch.Tensor) -> torch.Tensor:
        """Return what layer `number` makes of the states, (..., width)."""
        if number == 0:
            self.states, self.projected = states, self._project_all(states)
        if states is not self.states:
            return functional.linear(states, self.layers[number].weight, self.layers[number].bias)
        projected = self.projected[number]
        if number == len(self.layers) - 1:
            self.states, self.projected = None, ()
        return projected

    def _project_all(self, states: torch.Tensor) -> Sequence[torch.Tensor]:
        weights: list[torch.Tensor] = [layer.weight for layer in self.layers]
        biases: list[torch.Tensor] = [layer.bias for layer in self.layers if layer.bias is not None]
        # cast before they are joined, which moves half the bytes
        if torch.is_autocast_enabled(states.device.type):
            dtype = torch.get_autocast_dtype(states.device.type)
            weights, biases = ([each.to(dtype) for each in parameters] for parameters in (weights, biases))
        merged = functional.linear(states, torch.cat(weights), torch.cat(biases) if biases else None)
        return torch.split(merged, [len(weight) for weight in weights], dim=-1)


@contextmanager
def merged_projections(model: Model) -> Iterator[None]:
    """Let attention compute queries, keys and values together, but for a last layer that reads one query only."""
    paths = info_of(model).speed_paths
    alone = set() if paths.cls_only_layer is None else set(paths.cls_only_layer.modules())
    with ExitStack() as patches:
        for module in model.base_model.modules():
            layers = [] if module in alone else _projections_of(module)
            projections = _Projections(layers)
            for number, layer in enumerate(layers):
                patches.enter_context(patched_forward(layer, partial(projections.project, number)))
            paths.merged_projections += bool(layers)
        patches.callback(setattr, paths, "merged_projections", 0)
        yield


def _projections_of(module: nn.Module) -> list[nn.Linear]:
    """Find the three projections of an attention, in the order in which it calls them; none in other modules."""
    for names in _NAMES:
        layers = [getattr(module, name, None) for name in names]
        if all(type(layer) is nn.Linear for layer in layers):
            biased = {layer.bias is not None for layer in layers}  # type: ignore[union-attr]
            return layers if len(biased) == 1 else []  # type: ignore[return-value]
    return []
