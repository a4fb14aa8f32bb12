"""Speed patches: changes with which a model computes the same result faster in training.

A patch that does not fit a model, or the patches before it, does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bertkit.errors import RecipeError, UnavailableError
from bertkit.hardware.device import Device
from bertkit.hardware.precision import ComputeConfig
from bertkit.hardware.tensors import host_copy
from bertkit.modeling.cls_only import is_cls_only
from bertkit.modeling.dropout import DropoutStream, fast_dropout
from bertkit.modeling.embeddings import UsedEmbeddings, train_used_embeddings
from bertkit.modeling.info import (
    Forward,
    LayerOutput,
    Model,
    get_tagger_head,
    has_patched_attention,
    patch_attention,
    patch_forward,
)
from bertkit.modeling.unpadding.attend import find_varlen_problem
from bertkit.modeling.unpadding.hooks import unpad_layers
from bertkit.recipe.sections import BaseTrainingConfig

# Name under which transformers registers the attention function.
_HOST_MASK_ATTENTION = "bertkit-masks-of-host"

# Names of the query, key and value projections by model type, except DeBERTa, which projects distances too.
_QKV_NAMES = [names.split() for names in ("query key value", "q_lin k_lin v_lin", "q_proj k_proj v_proj", "q k v")]


class _Projections:
    """Query, key and value projections of an attention module, computed by one product when the first is called."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.layers = layers
        self.states: Tensor | None = None
        self.outputs: Sequence[Tensor] = ()

    def project(self, index: int, states: Tensor) -> Tensor:
        """Return the output of projection `index` for states (..., width)."""
        # In evaluation, compute the products separately, as after training: the last bits of a merged product can
        # differ, and a resumed run scores its best step again.
        if index == 0 and self.layers[0].training:
            weights: list[Tensor] = [layer.weight for layer in self.layers]
            biases: list[Tensor] = [layer.bias for layer in self.layers if layer.bias is not None]
            # Cast before joining, which then moves half the bytes.
            if torch.is_autocast_enabled(states.device.type):
                dtype = torch.get_autocast_dtype(states.device.type)
                weights, biases = ([tensor.to(dtype) for tensor in parameters] for parameters in (weights, biases))
            products = functional.linear(states, torch.cat(weights), torch.cat(biases) if biases else None)
            # Longformer divides its queries in place, which torch forbids for the views that `split` returns.
            sizes = [len(weight) for weight in weights]
            self.states, self.outputs = states, torch.unsafe_split_with_sizes(products, sizes, dim=-1)
        if states is not self.states:
            return functional.linear(states, self.layers[index].weight, self.layers[index].bias)
        output = self.outputs[index]
        if index == len(self.layers) - 1:
            self.states, self.outputs = None, ()
        return output


@contextmanager
def merge_projections(model: Model) -> Iterator[int]:
    """Compute queries, keys and values by one product inside the `with` block.

    A last layer for the first token only computes one query per row, so it is excluded.

    Yields:
        the number of attention modules with merged projections.
    """
    modules = list(model.base_model.modules())
    excluded = {submodule for module in modules if is_cls_only(module) for submodule in module.modules()}
    count = 0
    with ExitStack() as patches:
        for module in modules:
            layers = [] if module in excluded else _find_projections(module)
            projections = _Projections(layers)
            for index, layer in enumerate(layers):
                patches.enter_context(patch_forward(layer, partial(projections.project, index)))
            count += bool(layers)
        yield count


def _find_projections(module: nn.Module) -> list[nn.Linear]:
    """Return the query, key and value projections of a module in the order of their calls, or an empty list."""
    for names in _QKV_NAMES:
        layers = [getattr(module, name, None) for name in names]
        if all(type(layer) is nn.Linear for layer in layers):
            has_bias = {layer.bias is not None for layer in layers}  # type: ignore[union-attr]
            return layers if len(has_bias) == 1 else []  # type: ignore[return-value]
    return []


@dataclass(frozen=True)
class AppliedPatches:
    """Result of `apply_speed_patches`."""

    embeddings: UsedEmbeddings | None = None
    """Replacement of the word embeddings, or None if all of them are trained."""
    unpadded_layers: tuple[nn.Module, ...] = ()
    """Layers that compute no padding."""
    padding_reason: str | None = None
    """Reason why layers compute padding, or None if they do not."""


@contextmanager
def apply_speed_patches(
    model: Model,
    training: BaseTrainingConfig,
    machine: ComputeConfig,
    dropout: DropoutStream,
    token_ids: Iterable[int] | None,
) -> Iterator[AppliedPatches]:
    """Apply the speed patches that the recipe and the machine allow, inside the `with` block.

    The order matters. Dropout comes first, because it replaces the attention function. Unpadding then wraps the current
    attention function and calls it for groups of rows, so dropout draws nothing for padding. Compiling comes last,
    because it compiles the patched layers. All patches exclude a last layer that computes the first token only.

    Args:
        model: Model on its device.
        training: Section of the recipe.
        machine: Machine that the model is trained on.
        dropout: Stream that dropout draws from if `training.fast_dropout` is true.
        token_ids: Ids whose embeddings are trained, or None for all.

    Raises:
        RecipeError: If layers are compiled although their attention is read.
        UnavailableError: If torch cannot compile on this machine.
    """
    device = Device(model.device.type)
    runs_once_on_cpu = machine.device == "cpu" and not _find_rerun_setting(training)
    reason = _find_padding_reason(model, training, machine)
    layers: tuple[nn.Module, ...] = ()
    embeddings = None
    with ExitStack() as patches:
        # 1. On a CPU, replace dropout, and merge the projections of attention.
        if training.fast_dropout and runs_once_on_cpu:
            patches.enter_context(fast_dropout(model, dropout))
        if runs_once_on_cpu:
            patches.enter_context(merge_projections(model))
        # 2. On a GPU, read masks on the CPU. CUDA graphs cannot, because they are replayed without Python.
        runs_python = not training.cuda_graphs and not device.is_cpu and device.shapes_may_change
        if runs_python and model.config._attn_implementation == "sdpa":
            patches.enter_context(read_masks_on_host(model))
        # 3. Leave out padding, train only the used embeddings, and compile the layers.
        if reason is None:
            layers = patches.enter_context(unpad_layers(model))
        if token_ids is not None:
            embeddings = patches.enter_context(train_used_embeddings(model, token_ids))
        if training.torch_compile:
            patches.enter_context(compile_layers(model))
        # 4. Report why padding is computed, except for a frozen encoder, which computes its states before training.
        if layers or get_tagger_head(model.config) is not None:
            reason = None
        elif reason is None:
            reason = f"padding is computed in this {model.config.model_type} model"
        yield AppliedPatches(embeddings, layers, reason)


def _find_padding_reason(model: Model, training: BaseTrainingConfig, machine: ComputeConfig) -> str | None:
    """Return why the recipe or the machine requires that layers compute padding, or None if they do not."""
    setting = _find_rerun_setting(training) or (None if training.unpad else "unpad: false")
    if setting:
        return f"padding is computed with {setting}"
    if machine.device == "cpu":
        return None
    return "a GPU computes padding" if training.unpad == "auto" else find_varlen_problem(model, machine)


def _find_rerun_setting(training: BaseTrainingConfig) -> str | None:
    """Return the setting that rules out the dropout stream and unpadding, or None if no setting does.

    With gradient checkpointing, layers run again in the backward pass. The dropout stream would then draw other
    numbers, and the packed layout would no longer exist. Compiled layers can use neither.
    """
    names = ("gradient_checkpointing", "torch_compile", "fsdp")
    return next((f"{name}: true" for name in names if getattr(training, name)), None)


@contextmanager
def read_masks_on_host(model: Model) -> Iterator[None]:
    """Check on the CPU whether a batch has padding; transformers checks on the device, and waits for the answer."""
    # None if the CPU has no copy of the mask.
    is_full: bool | None = None

    def check_mask(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal is_full
        mask = kwargs.get("attention_mask")
        copy = None if mask is None else host_copy(mask)
        is_full = None if copy is None else bool(copy.all())

    def make_mask(
        *args: object,
        attention_mask: Tensor | None = None,
        allow_is_bidirectional_skip: bool = False,
        **kwargs: object,
    ) -> Tensor | None:
        mask = None if is_full else attention_mask
        may_skip = allow_is_bidirectional_skip and is_full is not False
        return sdpa_mask(*args, attention_mask=mask, allow_is_bidirectional_skip=may_skip, **kwargs)  # type: ignore[no-any-return]

    with ExitStack() as patches:
        name = _HOST_MASK_ATTENTION
        patches.enter_context(patch_attention(model, name, sdpa_attention_forward, can_split_rows=True, mask=make_mask))
        patches.callback(model.base_model.register_forward_pre_hook(check_mask, with_kwargs=True).remove)
        yield


@contextmanager
def compile_layers(model: Model) -> Iterator[None]:
    """Compile the layers of a model for training, inside the `with` block; evaluations run them uncompiled.

    All layers have the same code, so most of them reuse the code that was compiled for the first layer. Embeddings,
    heads and the hooks between them depend on the task, and are not compiled.

    Raises:
        RecipeError: If attention is read. Compiled layers could leave the attention of an earlier batch in Python.
        UnavailableError: If torch finds no compiler, or no Triton.
    """
    from torch._dynamo.exc import ShortenTraceback  # base class of all errors of the compiler

    if has_patched_attention(model) and model.config._attn_implementation != _HOST_MASK_ATTENTION:
        message = "training.torch_compile: the attention of compiled layers cannot be read"
        raise RecipeError(message, "leave it out, or match hidden states only")
    with ExitStack() as patches:
        for layer in find_repeated_layers(model) or [model.base_model]:
            run = partial(_run_compiled, layer, layer.forward, torch.compile(layer.forward))
            patches.enter_context(patch_forward(layer, run))
        try:
            yield
        except ShortenTraceback as error:
            reason = str(getattr(error, "inner_exception", error)).strip().splitlines()[0].removesuffix(".")
            message = f"torch cannot compile the layers of this {model.config.model_type} model: {reason}"
            remedy = "install g++ (for a CPU), or gcc and Triton (for a GPU)"
            raise UnavailableError(message, f"{remedy}, or leave out training.torch_compile") from None


def find_repeated_layers(module: nn.Module) -> list[nn.Module]:
    """List the layers of all encoders in a module: the elements of its outermost module lists."""
    layers: list[nn.Module] = []
    for child in module.children():
        is_layer = isinstance(module, nn.ModuleList) and not isinstance(child, nn.ModuleList)
        layers += [child] if is_layer else find_repeated_layers(child)
    return layers


def _run_compiled(
    layer: nn.Module, run: Forward, run_compiled: Forward, *states: Tensor, **kwargs: object
) -> LayerOutput:
    return (run_compiled if layer.training else run)(*states, **kwargs)
