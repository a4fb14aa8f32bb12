"""Types of models, how a model was loaded, and patches of a forward and of attention that are undone."""

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

_LOADING = "bertkit_loading"  # attribute of a model
# attribute of a config, and its name in the config.json of published checkpoints
_HEAD = "bertkit_head"

_splits_rows: dict[str, bool] = {}
"""Name of a patched attention, as transformers registers it -> whether it can be called for some rows of a batch."""


@dataclass(frozen=True)
class LoadingInfo:
    """How a model was loaded: whether its head is the trained head of the checkpoint."""

    new_weights: tuple[str, ...] = ()
    """Names of the weights of its heads that the checkpoint lacks."""
    head: Literal["kept", "new"] | None = None
    """Whether training starts from the trained head of the checkpoint or from a new one; None if neither."""
    other_labels: tuple[str, ...] = ()
    """Labels of the trained head of the checkpoint, if they are the reason why it is not kept."""


def is_sharded(model: nn.Module) -> bool:
    """Tell whether the weights of a model are split among processes; what splits them is not imported to tell."""
    splitting = sys.modules.get("torch.distributed.fsdp")
    return splitting is not None and isinstance(model, splitting.FSDPModule)


def unwrap(model: Model) -> Model:
    """Return the model inside a wrapper for several processes, or the model itself."""
    inner: Model = getattr(model, "module", model)
    return inner


def get_loading_info(model: Model) -> LoadingInfo:
    """Return how a model was loaded, or the model inside a wrapper for several processes."""
    return getattr(unwrap(model), _LOADING, LoadingInfo())


def set_loading_info(model: Model, info: LoadingInfo) -> None:
    """Note on a model how it was loaded."""
    setattr(model, _LOADING, info)


def tagger_head(config: Config | Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a config, or the content of a config.json, says of a tagger over a frozen encoder; None without."""
    return config.get(_HEAD) if isinstance(config, Mapping) else getattr(config, _HEAD, None)


def set_tagger_head(config: Config, head: dict[str, Any] | None) -> None:
    """Write the layers, tagger and size of a head over a frozen encoder into a config; None removes them."""
    vars(config).pop(_HEAD, None)
    if head is not None:
        setattr(config, _HEAD, head)


@contextmanager
def patched_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a module run a function in place of its ``forward``, which is the one before again in the end.

    An attribute of the instance comes before the method of its class, so deleting it restores that.
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
def patched_attention(
    model: Model, name: str, attend: Callable[..., Any], *, splits_rows: bool, mask: Callable[..., Any] | None = None
) -> Iterator[None]:
    """Let a model attend with a function, which gets the masks of sdpa: boolean, (rows, 1, tokens, tokens) or None.

    Args:
        model: its attention is the one before again in the end.
        name: to register the function under; two patches that are in force at once need two names.
        attend: takes the arguments of transformers' attention functions.
        splits_rows: whether the function may be called for some rows of a batch at a time.
        mask: takes the arguments of transformers' `sdpa_mask` in its place.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

    before = model.config._attn_implementation
    AttentionInterface.register(name, attend)
    mask_in_force = ALL_MASK_ATTENTION_FUNCTIONS[before] if has_patched_attention(model) else sdpa_mask
    AttentionMaskInterface.register(name, mask or mask_in_force)
    _splits_rows[name] = splits_rows
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def has_patched_attention(model: Model) -> bool:
    """Return whether a model attends with a function of `patched_attention`."""
    return model.config._attn_implementation in _splits_rows


def attention_splits_rows(model: Model) -> bool:
    """Return whether the attention of a model can be called for some rows of a batch at a time."""
    implementation: str = model.config._attn_implementation
    return _splits_rows.get(implementation, implementation == "sdpa")
