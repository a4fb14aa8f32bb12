"""What bertkit remembers of a model object: how it was loaded, its teacher, and what was patched for speed.

Apart from submodules with weights, models and configs carry only the attributes of bertkit that are named here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bertkit.tokens.features import Batch

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

# attributes of a model
_INFO, _LOADING = "bertkit_info", "bertkit_loading"
# attribute of a config, and its name in the config.json of published checkpoints
_HEAD = "bertkit_head"


@dataclass(frozen=True)
class AttentionPatch:
    """An attention function that was put in place of a model's own."""

    name: str
    """As transformers registers it."""
    wraps: str
    """The implementation that was in force before, and will be again."""
    splits_rows: bool
    """Whether it may be called for some rows of a batch at a time."""


@dataclass
class SpeedPaths:
    """What each patch has changed about one model, so that patches need not look for each other's traces."""

    cls_only_layer: nn.Module | None = None
    """The last layer, where it computes the first token only."""
    dropout: object | None = None
    """Where its dropout draws from, where that is not torch's generator."""
    attention: list[AttentionPatch] = field(default_factory=list)
    """Patches of its attention, the one in force last."""
    unpadded_layers: tuple[nn.Module, ...] = ()
    """Layers that compute no padding in training."""
    merged_projections: int = 0
    """Attentions that compute queries, keys and values by one product."""
    embeddings: nn.Module | None = None
    """What stands in for its word embeddings."""

    def attention_splits_rows(self, implementation: str) -> bool:
        """Tell whether the implementation in force may be called for some rows of a batch at a time."""
        return self.attention[-1].splits_rows if self.attention else implementation == "sdpa"


@dataclass(frozen=True)
class LoadingInfo:
    """How a model was loaded: whether its head is the trained head of the checkpoint."""

    new_weights: tuple[str, ...] = ()
    """Names of the weights of its heads that the checkpoint lacks."""
    head: Literal["kept", "new"] | None = None
    """Whether training starts from the trained head of the checkpoint or from a new one; None if neither."""
    other_labels: tuple[str, ...] = ()
    """Labels of the trained head of the checkpoint, if they are the reason why it is not kept."""


@dataclass
class ModelInfo:
    """What is known of one model object beside its config and weights.

    It is no module: nothing trains the teacher, counts it or saves it, and a wrapper for several processes ignores it.
    """

    reads: str = "text"
    """What a row is to it: one text, which may be read in windows, or its ``choices``, ``passages`` or ``texts``."""
    teacher: Model | None = None
    """The model whose predictions it learns from."""
    temperature: float = 1.0
    """Divides the logits of both before they are compared."""
    compare: Callable[[torch.Tensor], Batch] | None = None
    """Compares its inside with its teacher's at the tokens of a mask, after both have run: sums of terms."""
    fit_head: Callable[[], None] | None = None
    """Fits the head that training leaves as it is to the vectors of the training rows, before the model is scored."""
    compares_rows: bool = False
    """Whether its loss compares the rows of a batch with one another, so that no batch may be split."""
    takes_row_mask: bool = False
    """Whether its ``forward`` takes a ``row_mask``, and its loss leaves out the rows that only fill a batch."""
    tokens_at_once: int | None = None
    """The tokens, padding included, that fit into memory of a batch that may not be split; None where all do."""
    input_gradients: bool = False
    """Whether gradients of its embeddings are asked for, even if its encoder is not trained."""
    static_widths: tuple[int, ...] = ()
    """The widths of its batches, where a device compiles a graph per shape; none before its first batch."""
    static_texts: int = 1
    """The texts of each of their rows there, where it has several."""
    progress: float = 1.0
    """The share of training that is done, for losses that change with it."""
    while_training: ExitStack = field(default_factory=ExitStack)
    """Takes off it, once it is closed, what it carries while it is trained and evaluated only."""
    speed_paths: SpeedPaths = field(default_factory=SpeedPaths)


def is_sharded(model: nn.Module) -> bool:
    """Tell whether the weights of a model are split among processes; what splits them is not imported to tell."""
    splitting = sys.modules.get("torch.distributed.fsdp")
    return splitting is not None and isinstance(model, splitting.FSDPModule)


def info_of(model: Model) -> ModelInfo:
    """Return the record of a model, or of the model inside a wrapper for several processes; new where it has none."""
    model = getattr(model, "module", model)
    if not hasattr(model, _INFO):
        setattr(model, _INFO, ModelInfo())
    info: ModelInfo = getattr(model, _INFO)
    return info


def loading_info_of(model: Model) -> LoadingInfo:
    """Return how a model was loaded, or the model inside a wrapper for several processes."""
    return getattr(getattr(model, "module", model), _LOADING, LoadingInfo())


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

    patches = info_of(model).speed_paths.attention
    patch = AttentionPatch(name, model.config._attn_implementation, splits_rows)
    AttentionInterface.register(name, attend)
    in_force = ALL_MASK_ATTENTION_FUNCTIONS[patch.wraps] if patches else sdpa_mask
    AttentionMaskInterface.register(name, mask or in_force)
    model.set_attn_implementation(name)
    patches.append(patch)
    try:
        yield
    finally:
        patches.remove(patch)
        model.set_attn_implementation(patch.wraps)
