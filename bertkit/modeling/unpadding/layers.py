"""Layers that compute nothing on padding, by hooks before and after them and an attention that takes groups of rows.

Embeddings and heads see padded batches as before, and logits and gradients are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import ModelOutput

from bertkit.hardware.memory import on_host
from bertkit.modeling.architectures import architecture_of, layers_of, shares_layers
from bertkit.modeling.info import LayerOutput, Model, info_of, patched_attention
from bertkit.modeling.unpadding.layout import Attend, Layout
from bertkit.modeling.unpadding.relative import relative_attention
from bertkit.modeling.unpadding.varlen import VarlenAttention, VarlenLayout

_NAME = "bertkit-unpadded"  # of the attention, as transformers registers it
_WORTHWHILE = 0.85  # share of real tokens above which a batch stays padded
_READERS = ("output_hidden_states", "output_attentions")


class _Unpadding:
    """What a model's hooks and its attention share about the batch that it reads."""

    def __init__(self, attend: Attend, make_layout: Callable[[torch.Tensor], Layout | VarlenLayout]) -> None:
        self.attend_padded, self.make_layout = attend, make_layout
        self.mask: torch.Tensor | None = None
        self.layout: Any = None

    def note_mask(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Keep the mask of a batch with enough padding, as a hook before the encoder."""
        mask = named.get("attention_mask")
        self.mask = self.layout = None
        is_read = any(named.get(name) or getattr(module.config, name, False) for name in _READERS)
        # Evaluations sort all rows by length and have little padding. In training, gathers and scatters have to cost
        # less than the padding that they save.
        if module.training and not is_read and mask is not None and mask.dim() == 2:
            mask = on_host(mask)
            self.mask = mask if mask.float().mean() < _WORTHWHILE else None

    def unpad(
        self, layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Turn (rows, tokens, width) into (1, real tokens, width), as a hook before the first layer."""
        if self.mask is None:
            return None
        self.layout = self.make_layout(self.mask)
        states, *others = arguments
        return (self.layout.unpad(states), *others), named

    def unpad_positions(
        self, layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Let rotary positions, which each layer gets of the whole batch, follow the tokens, as a hook before it."""
        positions = named.get("position_embeddings")
        if self.layout is None or positions is None:
            return None
        return arguments, {**named, "position_embeddings": tuple(map(self.layout.unpad_positions, positions))}

    def pad(self, layer: nn.Module, arguments: object, outputs: ModelOutput | LayerOutput) -> ModelOutput | None:
        """Put the padding back as zeros, as a hook after the last layer: (rows, tokens, width)."""
        if self.layout is None:
            return None
        # a last layer for the first token only runs after this and reads a padded batch, so the layout ends here
        layout, self.layout = self.layout, None
        if isinstance(outputs, torch.Tensor):
            return layout.pad(outputs)
        if isinstance(outputs, tuple):
            return layout.pad(outputs[0]), *outputs[1:]
        outputs["last_hidden_state"] = layout.pad(outputs["last_hidden_state"])
        return outputs

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **named: object,
    ) -> tuple[torch.Tensor, Any]:
        """Attend as transformers' own functions do, or as the layout does where padding is left out."""
        if self.layout is None or attention_mask is None:
            return self.attend_padded(module, query, key, value, attention_mask, **named)
        return self.layout.attend(self.attend_padded, module, (query, key, value), attention_mask, **named), None


@contextmanager
def unpadded(model: Model, varlen: VarlenAttention | None = None) -> Iterator[None]:
    """Let a model in training compute nothing on padding, where its layers are known and nobody reads their outputs.

    The attention in force is called for groups of rows, so it must be sdpa or a patch that allows that, or one with
    relative positions that is known.

    Args:
        model: on its device.
        varlen: attends to the tokens of all rows at once in its place; see `why_no_varlen`.
    """
    layers = _layers_without_padding(model)
    if not layers:
        yield
        return
    paths, implementation = info_of(model).speed_paths, model.config._attn_implementation
    make_layout = Layout if varlen is None else partial(VarlenLayout, attend=varlen, device=model.device)
    unpadding = _Unpadding(ALL_ATTENTION_FUNCTIONS.get(implementation), make_layout)
    paths.unpadded_layers = tuple(layers)
    with ExitStack() as patches:
        patches.callback(setattr, paths, "unpadded_layers", ())
        if architecture_of(model.config).attends_relatively:
            patches.enter_context(relative_attention(layers, unpadding))
        else:
            patches.enter_context(patched_attention(model, _NAME, unpadding.attend, splits_rows=False))
        before = partial(nn.Module.register_forward_pre_hook, with_kwargs=True)
        for hook in (
            before(model.base_model, unpadding.note_mask),
            before(layers[0], unpadding.unpad),
            *(before(layer, unpadding.unpad_positions) for layer in layers),
            layers[-1].register_forward_hook(unpadding.pad),
        ):
            patches.callback(hook.remove)
        yield


def _layers_without_padding(model: Model) -> list[nn.Module]:
    """List the layers that compute all tokens: not a last one for CLS only, and none where hooks read layers.

    Layers that share their weights run several times, so the encoder around them stands for all.
    """
    architecture, paths = architecture_of(model.config), info_of(model).speed_paths
    splits_rows = architecture.attends_relatively or paths.attention_splits_rows(model.config._attn_implementation)
    if not (architecture.can_unpad and splits_rows) or getattr(model.config, "conv_kernel_size", None):
        return []  # a convolution would read across rows
    layers = [model.base_model.encoder] if shares_layers(model.config) else layers_of(model)
    if any(layer._forward_hooks for layer in layers):
        return []
    return [layer for layer in layers if layer is not paths.cls_only_layer]
