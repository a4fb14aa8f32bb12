"""Types of models, results of loading, and context managers that patch ``forward`` or attention."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel
    from transformers.modeling_layers import GradientCheckpointingLayer
    from transformers.utils import ModelOutput

Model: TypeAlias = "PreTrainedModel"
Config: TypeAlias = "PretrainedConfig"
Output: TypeAlias = "ModelOutput"
Layer: TypeAlias = "GradientCheckpointingLayer"
LayerOutput: TypeAlias = "torch.Tensor | tuple[torch.Tensor, ...]"
Forward: TypeAlias = Callable[..., LayerOutput]

# Attribute of a config, and key in config.json. Published checkpoints have it.
_HEAD_KEY = "bertkit_head"

_can_split_rows: dict[str, bool] = {}
"""Registered name of a patched attention function -> whether it can be called for some rows of a batch."""


@dataclass(frozen=True)
class LoadingInfo:
    """Result of loading a model: whether its head is the trained head of the checkpoint."""

    new_weights: tuple[str, ...] = ()
    """Names of head weights that the checkpoint lacks."""
    head: Literal["kept", "new"] | None = None
    """Whether training starts from the checkpoint's trained head or from a new head; None if not for training."""
    other_labels: tuple[str, ...] = ()
    """Labels of the checkpoint's trained head, if it was replaced because they differ."""


class ModelAttributes:
    """Base of heads and mixins, for type checkers: the class that they are added to has all other attributes."""

    if TYPE_CHECKING:
        forward: Any
        train: Any
        save_pretrained: Any
        _init_weights: Any

        def __getattr__(self, name: str) -> Any: ...


def is_sharded(model: nn.Module) -> bool:
    """Return whether the weights of a model are split among processes, without importing FSDP."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(model, fsdp.FSDPModule)


def unwrap(model: Model) -> Model:
    """Return the model inside a distributed wrapper, or the model itself."""
    unwrapped: Model = getattr(model, "module", model)
    return unwrapped


def get_loading_info(model: Model) -> LoadingInfo:
    """Return the ``loading_info`` of a model or of the model inside a distributed wrapper."""
    return getattr(unwrap(model), "loading_info", LoadingInfo())


def get_tagger_head(config: Config | Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings of a tagger over a frozen encoder from a config, or None if it has none."""
    return config.get(_HEAD_KEY) if isinstance(config, Mapping) else getattr(config, _HEAD_KEY, None)


def set_tagger_head(config: Config, head: dict[str, Any] | None) -> None:
    """Write the settings of a tagger over a frozen encoder into a config; with None, remove them."""
    vars(config).pop(_HEAD_KEY, None)
    if head is not None:
        setattr(config, _HEAD_KEY, head)


@contextmanager
def patch_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace the ``forward`` of a module inside the `with` block.

    An attribute of the instance hides the method of its class, so deleting the attribute restores the method.
    """
    outer_patch = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if outer_patch is not None:
            module.forward = outer_patch


@contextmanager
def patch_attention(
    model: Model, name: str, attend: Callable[..., Any], *, can_split_rows: bool, mask: Callable[..., Any] | None = None
) -> Iterator[None]:
    """Replace the attention function of a model inside the `with` block.

    The function gets sdpa's masks: boolean, or None if all tokens are attended to. Shape: (rows, 1, tokens, tokens).

    Args:
        model: Model whose attention is replaced.
        name: Name to register the function under; patches that are active at the same time need different names.
        attend: Function with the arguments of transformers' attention functions.
        can_split_rows: Whether the function can be called for some rows of a batch at a time.
        mask: Function that replaces transformers' `sdpa_mask`, with the same arguments.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

    implementation = model.config._attn_implementation
    AttentionInterface.register(name, attend)
    current_mask = ALL_MASK_ATTENTION_FUNCTIONS[implementation] if has_patched_attention(model) else sdpa_mask
    AttentionMaskInterface.register(name, mask or current_mask)
    _can_split_rows[name] = can_split_rows
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)


def has_patched_attention(model: Model) -> bool:
    """Return whether `patch_attention` has replaced a model's attention function."""
    return model.config._attn_implementation in _can_split_rows


def attention_can_split_rows(model: Model) -> bool:
    """Return whether a model's attention function can be called for some rows of a batch at a time."""
    implementation: str = model.config._attn_implementation
    return _can_split_rows.get(implementation, implementation == "sdpa")
