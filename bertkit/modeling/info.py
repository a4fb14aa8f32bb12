"""Types of models, how a model was loaded, and context managers that patch a forward or attention."""

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

# Attribute of a config, and its key in the config.json of published checkpoints.
_HEAD = "bertkit_head"

_splits_rows: dict[str, bool] = {}
"""Name of a patched attention, as transformers registers it -> whether it can be called for some rows of a batch."""


@dataclass(frozen=True)
class LoadingInfo:
    """Result of loading a model: whether its head is the trained head of the checkpoint."""

    new_weights: tuple[str, ...] = ()
    """Names of the weights of its heads that the checkpoint lacks."""
    head: Literal["kept", "new"] | None = None
    """Whether training starts from the trained head of the checkpoint or from a new one; None if neither."""
    other_labels: tuple[str, ...] = ()
    """Labels of the trained head of the checkpoint, if they are the reason why it is not kept."""


def is_sharded(model: nn.Module) -> bool:
    """Return whether the weights of a model are split among processes, without importing FSDP for this check."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(model, fsdp.FSDPModule)


def unwrap(model: Model) -> Model:
    """Return the model inside a distributed wrapper, or the model itself."""
    inner: Model = getattr(model, "module", model)
    return inner


def get_loading_info(model: Model) -> LoadingInfo:
    """Return the ``loading_info`` of a model, which may be in a distributed wrapper."""
    return getattr(unwrap(model), "loading_info", LoadingInfo())


def get_tagger_head(config: Config | Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings of a tagger over a frozen encoder from a config or a config.json, or None if it has none."""
    return config.get(_HEAD) if isinstance(config, Mapping) else getattr(config, _HEAD, None)


def set_tagger_head(config: Config, head: dict[str, Any] | None) -> None:
    """Write the layers, tagger and size of a head over a frozen encoder into a config; None removes them."""
    vars(config).pop(_HEAD, None)
    if head is not None:
        setattr(config, _HEAD, head)


@contextmanager
def patch_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace the ``forward`` of a module inside the `with` block.

    An attribute of the instance hides the method of its class, so deleting the attribute restores the method.
    """
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


@contextmanager
def patch_attention(
    model: Model, name: str, attend: Callable[..., Any], *, can_split_rows: bool, mask: Callable[..., Any] | None = None
) -> Iterator[None]:
    """Replace the attention function of a model inside the `with` block.

    The function gets the masks of sdpa: boolean, (rows, 1, tokens, tokens), or None.

    Args:
        model: Model whose attention is replaced.
        name: Name that the function is registered under; two patches that are active at once need two names.
        attend: Function with the arguments of transformers' attention functions.
        can_split_rows: Whether the function can be called for some rows of a batch at a time.
        mask: Function that replaces transformers' `sdpa_mask`, with the same arguments.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

    before = model.config._attn_implementation
    AttentionInterface.register(name, attend)
    current_mask = ALL_MASK_ATTENTION_FUNCTIONS[before] if has_patched_attention(model) else sdpa_mask
    AttentionMaskInterface.register(name, mask or current_mask)
    _splits_rows[name] = can_split_rows
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def has_patched_attention(model: Model) -> bool:
    """Return whether a model attends with a function of `patch_attention`."""
    return model.config._attn_implementation in _splits_rows


def attention_can_split_rows(model: Model) -> bool:
    """Return whether the attention of a model can be called for some rows of a batch at a time."""
    implementation: str = model.config._attn_implementation
    return _splits_rows.get(implementation, implementation == "sdpa")
