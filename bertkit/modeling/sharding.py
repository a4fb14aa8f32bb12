"""FSDP2: each process of a launch holds a share of the weights, of their gradients, and of the optimizer's states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from bertkit.modeling.info import Model

_HOOKS = (
    *("_forward_pre_hooks", "_forward_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
"""Attributes of a module in which `fully_shard` leaves something."""


@contextmanager
def sharded_weights(model: Model, layers: Iterable[nn.Module]) -> Iterator[None]:
    """Split the weights of a model among processes meanwhile; afterwards each process has all of them again.

    The weights of each of the `layers` are gathered when it runs, and dropped behind it. So all processes must run the
    model equally often.
    """
    mesh = init_device_mesh(model.device.type, (distributed.get_world_size(),))
    before = [(module, type(module), [dict(getattr(module, name)) for name in _HOOKS]) for module in model.modules()]
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)  # what is in no layer, such as embeddings and head
    yield
    # Weights that are shared by two modules stay one; what torch has added to the modules is taken off.
    gathered: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weights in module._parameters.items():
            if isinstance(weights, DTensor):
                if id(weights) not in gathered:
                    gathered[id(weights)] = nn.Parameter(weights.full_tensor(), weights.requires_grad)
                module._parameters[name] = gathered[id(weights)]
    for module, cls, hooks in before:
        module.__class__ = cls
        for name, of_before in zip(_HOOKS, hooks, strict=True):
            getattr(module, name).clear()
            getattr(module, name).update(of_before)


def gather(value: Any) -> Any:
    """Return a tensor with the shares of all processes, which call this together; anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def gather_states(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state of an optimizer with the shares of all processes, which call this together."""
    states: dict[str, Any] = tree_map(gather, optimizer.state_dict())
    return states


def scatter_like(value: Any, weights: torch.Tensor) -> Any:
    """Return a tensor with this process's share of it, if weights of the same shape are so split; else as it is."""
    if isinstance(weights, DTensor) and not isinstance(value, DTensor) and value.shape == weights.shape:
        return distribute_tensor(value.to(weights.device), weights.device_mesh, weights.placements)
    return value
