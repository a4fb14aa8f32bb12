"""FSDP2: each process of a launch holds a shard of the weights, of their gradients and of the optimizer's states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from bertkit.modeling.info import Model

_HOOKS = (
    *("_forward_pre_hooks", "_forward_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
"""Attributes of a module that `fully_shard` adds hooks to."""


@contextmanager
def shard_weights(model: Model, layers: Iterable[nn.Module]) -> Iterator[None]:
    """Split the weights of a model among processes inside the `with` block; afterwards each process has all weights.

    When one of the `layers` runs, all processes gather its weights, and drop them afterwards. So all processes must run
    the model the same number of times.
    """
    mesh = init_device_mesh(model.device.type, (distributed.get_world_size(),))
    original_modules = [
        (module, type(module), [dict(getattr(module, name)) for name in _HOOKS]) for module in model.modules()
    ]
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    # Shard the weights outside the layers, such as embeddings and head.
    fully_shard(model, mesh=mesh)
    yield
    # Gather each weight once, so that weights shared by two modules stay shared. Then undo torch's classes and hooks.
    gathered: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weights in module._parameters.items():
            if isinstance(weights, DTensor):
                if id(weights) not in gathered:
                    gathered[id(weights)] = nn.Parameter(weights.full_tensor(), weights.requires_grad)
                module._parameters[name] = gathered[id(weights)]
    for module, module_class, hooks in original_modules:
        module.__class__ = module_class
        for name, saved_hooks in zip(_HOOKS, hooks, strict=True):
            getattr(module, name).clear()
            getattr(module, name).update(saved_hooks)


def gather(value: Any) -> Any:
    """Gather a tensor from the shards of all processes, which call this together; return other values unchanged."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def gather_states(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Gather the state of an optimizer from the shards of all processes, which call this together."""
    states: dict[str, Any] = tree_map(gather, optimizer.state_dict())
    return states


def scatter_like(value: Any, weights: Tensor) -> Any:
    """Return this process's shard of a tensor if weights of the same shape are sharded, else the tensor unchanged."""
    if isinstance(weights, DTensor) and not isinstance(value, DTensor) and value.shape == weights.shape:
        return distribute_tensor(value.to(weights.device), weights.device_mesh, weights.placements)
    return value
