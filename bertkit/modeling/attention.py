"""The speed paths of a model in training, in the order in which they build on each other, and what layers can keep.

A path that does not fit a model, or what is patched already, leaves it as it is. `SpeedPaths` tells what was done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bertkit.errors import ModelError, RecipeError, UnavailableError
from bertkit.hardware.device import Device
from bertkit.hardware.memory import host_copy
from bertkit.modeling.architectures import layers_of
from bertkit.modeling.dropout import DropoutStream, fast_dropout
from bertkit.modeling.embeddings import OccurringEmbeddings, occurring_embeddings
from bertkit.modeling.info import Forward, LayerOutput, Model, info_of, patched_attention, patched_forward
from bertkit.modeling.unpadding.hooks import unpadded
from bertkit.tokens.features import Batch

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
            weights: list[torch.Tensor] = [layer.weight for layer in self.layers]
            biases: list[torch.Tensor] = [layer.bias for layer in self.layers if layer.bias is not None]
            # cast before they are joined, which moves half the bytes
            if torch.is_autocast_enabled(states.device.type):
                dtype = torch.get_autocast_dtype(states.device.type)
                weights, biases = ([each.to(dtype) for each in parameters] for parameters in (weights, biases))
            merged = functional.linear(states, torch.cat(weights), torch.cat(biases) if biases else None)
            self.states, self.projected = states, torch.split(merged, [len(weight) for weight in weights], dim=-1)
        if states is not self.states:
            return functional.linear(states, self.layers[number].weight, self.layers[number].bias)
        projected = self.projected[number]
        if number == len(self.layers) - 1:
            self.states, self.projected = None, ()
        return projected


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


_KEEPING, _OF_HOST = "bertkit-keeping", "bertkit-masks-of-host"

_LEAST_SUM = 0.999  # of the weights of a token, whose sum is 1 but for rounding

AttentionMaps = dict[nn.Module, torch.Tensor]
"""Attention module -> log-probabilities or scores of its last forward pass: (texts, heads, tokens, tokens)."""


@contextmanager
def speed_paths(
    model: Model,
    dropout: DropoutStream | None,
    *,
    unpad: bool,
    tokens: Iterable[int] | None,
    merge: bool = False,
    compiled: bool = False,
    host_masks: bool = True,
) -> Iterator[OccurringEmbeddings | None]:
    """Train a model on its speed paths; afterwards it is as before, but for what was trained.

    Yields what stands in for the word embeddings, if anything does. `SpeedPaths` tells the rest.

    Dropout comes first, since it replaces attention. Unpadding wraps the attention that is then in force and calls it
    for groups of rows, so that dropout draws nothing for padding. All leave alone a last layer that computes the first
    token only, which a model has from loading on. The embeddings touch nothing of the others. Compiling comes last,
    since it takes the layers as they then are.

    Args:
        model: on its device.
        dropout: the stream that dropout draws from; None for torch's.
        unpad: whether layers may leave out padding.
        tokens: ids whose embeddings are trained; None for all.
        merge: whether queries, keys and values are computed by one product.
        compiled: whether layers are compiled by torch.compile.
        host_masks: whether the CPU may tell of each batch on a device if it has padding.
    """
    with ExitStack() as patches:
        if dropout is not None:
            patches.enter_context(fast_dropout(model, dropout))
        if merge:
            patches.enter_context(merged_projections(model))
        device = Device(model.device.type)
        looks = host_masks and not device.is_cpu and device.shapes_may_change
        if looks and model.config._attn_implementation == "sdpa":
            patches.enter_context(masks_of_host(model))
        if unpad:
            patches.enter_context(unpadded(model))
        embeddings = None if tokens is None else patches.enter_context(occurring_embeddings(model, tokens))
        if compiled:
            patches.enter_context(compiled_layers(model))
        yield embeddings


@contextmanager
def masks_of_host(model: Model) -> Iterator[None]:
    """Let the CPU tell whether a batch on a device has padding; transformers asks the device, and waits for it."""
    is_full: bool | None = None  # of the batch at hand; None where the CPU does not know it

    def note_mask(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        nonlocal is_full
        mask = named.get("attention_mask")
        copy = None if mask is None else host_copy(mask)
        is_full = None if copy is None else bool(copy.all())

    def make_mask(
        *arguments: object,
        attention_mask: torch.Tensor | None = None,
        allow_is_bidirectional_skip: bool = False,
        **named: object,
    ) -> torch.Tensor | None:
        mask = None if is_full else attention_mask
        may_skip = allow_is_bidirectional_skip and is_full is not False
        return sdpa_mask(*arguments, attention_mask=mask, allow_is_bidirectional_skip=may_skip, **named)  # type: ignore[no-any-return]

    with ExitStack() as patches:
        attend = patched_attention(model, _OF_HOST, sdpa_attention_forward, splits_rows=True, mask=make_mask)
        patches.enter_context(attend)
        patches.callback(model.base_model.register_forward_pre_hook(note_mask, with_kwargs=True).remove)
        yield


@contextmanager
def compiled_layers(model: Model) -> Iterator[None]:
    """Let a model in training run its layers compiled by torch; evaluations run them as they are.

    All layers share their code, so most of them take what was compiled for the first. Embeddings, heads, and the hooks
    between them depend on the task and stay as they are, and so do the names of weights.

    Raises:
        RecipeError: its attention is read. What compiled layers leave in Python may be that of an earlier batch.
        UnavailableError: torch cannot compile here, for lack of a compiler or of Triton.
    """
    from torch._dynamo.exc import ShortenTraceback  # of all errors that a compiler raises

    if any(patch.name != _OF_HOST for patch in info_of(model).speed_paths.attention):
        what = "training.torch_compile: the attention of compiled layers cannot be read"
        raise RecipeError(what, "leave it out, or match hidden states alone")
    with ExitStack() as patches:
        for layer in repeated_layers(model) or [model.base_model]:
            run = partial(_run_compiled, layer, layer.forward, torch.compile(layer.forward))
            patches.enter_context(patched_forward(layer, run))
        try:
            yield
        except ShortenTraceback as error:
            reason = str(getattr(error, "inner_exception", error)).strip().splitlines()[0].removesuffix(".")
            what = f"torch cannot compile the layers of this {model.config.model_type} model: {reason}"
            remedy = "install what it lacks (on a CPU g++, on a GPU Triton and gcc)"
            raise UnavailableError(what, f"{remedy}, or leave out training.torch_compile") from None


def repeated_layers(module: nn.Module) -> list[nn.Module]:
    """List the layers of all encoders in a module: the items of its outermost lists."""
    layers: list[nn.Module] = []
    for child in module.children():
        is_layer = isinstance(module, nn.ModuleList) and not isinstance(child, nn.ModuleList)
        layers += [child] if is_layer else repeated_layers(child)
    return layers


@contextmanager
def kept_attention(
    model: Model, role: Literal["student", "teacher"], *, in_training_only: bool = False, scores: bool = False
) -> Iterator[AttentionMaps]:
    """Let each attention of a model keep its log-probabilities.

    Args:
        model: of which attention is read.
        role: names the patch. transformers registers attention functions for the whole process, and a student and its
            teacher are patched at once.
        in_training_only: whether evaluations leave nothing, and stay as they are.
        scores: whether the scores before the softmax are kept in place of log-probabilities; -1e9 where masked.

    Raises:
        ModelError: the model computes attention in a way of its own.
    """
    maps: AttentionMaps = {}

    def attend(module: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        if in_training_only and not module.training:
            return sdpa_attention_forward(module, *arguments, **keywords)
        kept_scores, logs, outputs = _attend(*arguments, **keywords)
        maps[module] = kept_scores if scores else logs
        return outputs, None

    name = f"{_KEEPING}-{role}"
    # Unpadding calls attention for groups of rows, but a map has to be that of the whole batch. So unpadding has to
    # leave this model as it is.
    with patched_attention(model, name, attend, splits_rows=False):
        if model.config._attn_implementation != name:
            what = f"the attention of a {model.config.model_type} model cannot be read"
            raise ModelError(what, "match hidden states alone")
        yield maps


@contextmanager
def kept_outputs(layers: Iterable[nn.Module], states: dict[nn.Module, torch.Tensor]) -> Iterator[None]:
    """Let layers write the hidden states that they compute into a dictionary: (texts, tokens, width)."""

    def keep(layer: nn.Module, _: object, output: LayerOutput) -> None:
        states[layer] = output[0] if isinstance(output, tuple) else output

    with ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_hook(keep).remove)
        yield


def keep_windows(model: Model) -> None:
    """Let layers with a sliding window keep it where tokens may attend to some others of their row only.

    transformers takes a mask of shape (rows, 1, tokens, tokens) as it is for layers of every type.
    """
    types: list[str] = getattr(model.config, "layer_types", None) or []
    narrowed: list[torch.Tensor] = []  # the mask of the batch at hand

    def narrow_mask(encoder: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        mask = named.get("attention_mask")
        narrowed.clear()
        if isinstance(mask, torch.Tensor) and mask.dim() == 4:
            positions = torch.arange(mask.shape[-1], device=mask.device)
            narrowed.append(mask & ((positions[:, None] - positions).abs() <= model.config.sliding_window))

    def use_mask(layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[object, ...] | None:
        return (arguments, {**named, "attention_mask": narrowed[0]}) if narrowed else None

    if "sliding_attention" in types:
        model.base_model.register_forward_pre_hook(narrow_mask, with_kwargs=True)
        for layer, kind in zip(layers_of(model), types, strict=False):
            if kind == "sliding_attention":
                layer.register_forward_pre_hook(use_mask, with_kwargs=True)


def attention_weights(model: Model, batch: Batch) -> list[torch.Tensor]:
    """Compute the attention weights of each layer by the model's own code: (rows, heads, tokens, tokens), rows first.

    The last axis is what is attended to: there the weights of each token add up to 1. Attention is computed eagerly,
    since the fused kernels return no weights.

    Args:
        model: in evaluation mode; its attention is the one before again in the end.
        batch: ``input_ids``, ``attention_mask`` and the like.

    Raises:
        ModelError: the model returns none, or weights that are not between all tokens of a row.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            weights = list(model(**batch, output_attentions=True).attentions or ())
    finally:
        model.set_attn_implementation(before)
    rows, tokens = batch["input_ids"].shape
    if not weights or any(one is None or one.shape != (rows, one.shape[1], tokens, tokens) for one in weights):
        what = f"a {model.config.model_type} model returns no attention weights between all tokens of a text"
        raise ModelError(what, "name an encoder such as BERT, RoBERTa, DeBERTa or ModernBERT")
    is_token = batch["attention_mask"].bool()
    if min(float(one.sum(-1).transpose(1, 2)[is_token].min()) for one in weights) < _LEAST_SUM:
        raise ModelError(f"the attention weights of a {model.config.model_type} model do not add up to 1")
    return weights


def attention_of(layer: nn.Module, maps: AttentionMaps) -> torch.Tensor:
    """Return what the attention of a layer has left: (texts, heads, tokens, tokens)."""
    return next(maps[module] for module in layer.modules() if module in maps)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute scores and log-probabilities (rows, heads, tokens, tokens), and values (rows, tokens, heads, width)."""
    scores = torch.matmul(query * (scaling or query.size(-1) ** -0.5), key.transpose(2, 3)).float()
    # not -inf: the logarithms of two models are subtracted later, and -inf minus -inf is NaN
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, -1e9)
    logs = scores.log_softmax(dim=-1)
    weights = functional.dropout(logs.exp().to(value.dtype), dropout)
    return scores, logs, torch.matmul(weights, value).transpose(1, 2).contiguous()


def _run_compiled(
    layer: nn.Module, plain: Forward, compiled: Forward, *states: torch.Tensor, **named: object
) -> LayerOutput:
    return (compiled if layer.training else plain)(*states, **named)
