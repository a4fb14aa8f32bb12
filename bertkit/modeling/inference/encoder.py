"""Encoder for inference only: weights are cast to bf16 once, and padding can be left out.

On padded batches, the encoder runs the operations of transformers in the same order, so states are equal, in fp32 to
the last bit. On a CPU, it can pack the tokens of all texts into a single row (`bertkit.modeling.unpadding`); states are
then equal up to rounding. On an accelerator, batches stay padded, because few large operations are faster than many
small ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from bertkit.hardware.device import Device
from bertkit.modeling.architectures import LAYER_NAMES, LayerNames, first_position, get_architecture
from bertkit.modeling.info import Config
from bertkit.modeling.unpadding.attend import EqualLengthAttention, attend_equal_lengths
from bertkit.tokens.features import Batch

Weights = Batch
Shapes = dict[str, tuple[int, ...]]
"""Name of a weight -> its shape."""

# Batch size in tokens that oneDNN reorders weights for.
_TOKENS_HINT = 1024
_PREPARE_LOCK = Lock()
onednn = torch.ops.mkldnn


def load_encoder(folder: Path, config: Config, dtype: torch.dtype) -> InferenceEncoder | None:
    """Load an encoder whose products are computed in `dtype`, or return None if only transformers can load it."""
    if not has_known_encoder(config):
        return None
    prefix, shapes = f"{get_architecture(config).weight_prefix}.", get_encoder_shapes(config)
    parts = {name.split(".")[0] for name in shapes}
    weights = {name.removeprefix(prefix): weight for name, weight in read_weights(folder).items()}
    # Drop heads, the pooler and the buffer of position ids.
    weights = {name: weight for name, weight in weights.items() if name.split(".")[0] in parts and "_ids" not in name}
    return InferenceEncoder(config, weights, dtype) if are_complete(weights, shapes) else None


def has_known_encoder(config: Config) -> bool:
    """Return whether an encoder of the BERT family has the usual value of each setting that changes outputs."""
    usual_values = {
        "hidden_act": "gelu",
        "activation": "gelu",
        "chunk_size_feed_forward": 0,
        "return_dict": True,
        "_attn_implementation": "sdpa",
        **dict.fromkeys(("is_decoder", "add_cross_attention", "output_attentions", "output_hidden_states"), False),
    }
    return (
        get_architecture(config).weight_prefix is not None
        and all(getattr(config, name, None) in (value, None) for name, value in usual_values.items())
        and config.hidden_size % config.num_attention_heads == 0
    )


def get_encoder_shapes(config: Config) -> Shapes:
    """Return the shapes of a known encoder's weights, by their names without the encoder's prefix."""
    architecture, width = get_architecture(config), config.hidden_size
    intermediate = getattr(config, "intermediate_size", None) or config.hidden_dim
    embedding_width = getattr(config, "embedding_size", width)
    tables = {"word": config.vocab_size, "position": config.max_position_embeddings}
    if architecture.reads_token_types:
        tables["token_type"] = config.type_vocab_size
    modules: Shapes = {"embeddings.LayerNorm": (embedding_width,)}
    if embedding_width != width:
        modules["embeddings_project"] = (width, embedding_width)
    square, vector = (width, width), (width,)
    # In the order of the fields of `LayerNames`.
    layer_shapes = (square, square, square, square, vector, (intermediate, width), (width, intermediate), vector)
    for layer in range(config.num_hidden_layers):
        modules.update(zip(_get_layer_names(config, layer), layer_shapes, strict=True))
    shapes = {f"embeddings.{name}_embeddings.weight": (size, embedding_width) for name, size in tables.items()}
    return shapes | add_bias_shapes(modules)


def add_bias_shapes(modules: Mapping[str, tuple[int, ...]]) -> Shapes:
    """Return the shapes of weights and biases, given the shapes of the weights.

    >>> add_bias_shapes({"dense": (3072, 768)})
    {'dense.weight': (3072, 768), 'dense.bias': (3072,)}
    """
    axes_by_part = {"weight": None, "bias": 1}
    return {f"{name}.{part}": size[:axes] for name, size in modules.items() for part, axes in axes_by_part.items()}


def read_weights(folder: Path) -> Weights:
    """Memory-map the weights of a model folder, or return an empty dict if the file is missing or damaged."""
    try:
        return load_file(folder / "model.safetensors")
    except (OSError, SafetensorError):
        return {}


def are_complete(weights: Weights, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether weights have exactly these names and shapes, and only finite values."""
    if {name: tuple(weight.shape) for name, weight in weights.items()} != shapes:
        return False
    # A sum is not finite if one of its values is not.
    return all(weight.is_floating_point() and weight.sum(dtype=torch.float32).isfinite() for weight in weights.values())


class InferenceEncoder(nn.Module):
    """Encoder that computes the states of padded texts as transformers does, and cannot be trained.

    Products and attention are computed in `dtype`, or in the dtype of autocast; residual sums and norms in float32.
    `weights` is memory-mapped, so it is copied: the file can be overwritten later.
    """

    is_reentrant: bool = True
    """Whether several threads can run the encoder at once."""
    packs: bool = True
    """Whether the encoder leaves out padding on a CPU."""

    def __init__(self, config: Config, weights: Weights, dtype: torch.dtype) -> None:
        super().__init__()
        architecture, epsilon = get_architecture(config), getattr(config, "layer_norm_eps", 1e-12)
        self.config, self.first_position = config, first_position(config)
        tables = ["word", "position", *(["token_type"] if architecture.reads_token_types else [])]
        self.tables = nn.ParameterDict(
            {name: _freeze(weights[f"embeddings.{name}_embeddings.weight"].clone()) for name in tables}
        )
        self.norm = _load_norm(weights, "embeddings.LayerNorm", epsilon)
        has_project = "embeddings_project.weight" in weights
        self.project = FusedLinear(weights, dtype, "embeddings_project") if has_project else None
        names = [_get_layer_names(config, layer) for layer in range(config.num_hidden_layers)]
        heads = config.num_attention_heads
        self.layers = nn.ModuleList(_Layer(weights, dtype, layer_names, heads, epsilon) for layer_names in names)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        first_only: bool = False,
    ) -> dict[str, Any]:
        """Compute the states of texts that are padded on the right. Shape: (texts, tokens, width).

        With `first_only`, the last layer computes the first token of each text only. Shape: (texts, 1, width).
        """
        # 1. Remove padding: (texts, tokens, ...) to (packed tokens, ...).
        packs = self.packs and Device(attention_mask.device.type).is_cpu
        attention: _Attention = EqualLengthAttention(attention_mask) if packs else _PaddedAttention(attention_mask)
        unpad, pad = attention.packed.unpad, attention.packed.pad

        # 2. Add up the embeddings of each token.
        positions = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids) + self.first_position
        states = functional.embedding(unpad(input_ids), self.tables["word"])
        if "token_type" in self.tables:
            types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            states += functional.embedding(unpad(types), self.tables["token_type"])
        states += functional.embedding(unpad(positions), self.tables["position"])
        states = self.norm(states)
        if self.project is not None:
            # In bf16, transformers continues with the rounded product; packed states continue in fp32.
            states = self.project(states)
            states = states.float() if packs else states

        # 3. Run the layers, and restore padding.
        hidden_states = [pad(states)] if output_hidden_states else []
        for index, layer in enumerate(self.layers, start=1):
            if first_only and index == len(self.layers):
                return {"last_hidden_state": layer(states, attention, first_only=True)[:, None]}
            states = layer(states, attention)
            hidden_states += [pad(states)] if output_hidden_states else []
        if hidden_states:
            return {"last_hidden_state": hidden_states[-1], "hidden_states": tuple(hidden_states)}
        return {"last_hidden_state": pad(states)}


class _Layer(nn.Module):
    """Layer over states (packed tokens, width), or (texts, tokens, width) with padding."""

    def __init__(self, weights: Weights, dtype: torch.dtype, names: LayerNames, heads: int, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = FusedLinear(weights, dtype, names.query)
        self.key_value = FusedLinear(weights, dtype, names.key, names.value)
        self.attention_output = FusedLinear(weights, dtype, names.attention_output)
        self.attention_norm = _load_norm(weights, names.attention_norm, epsilon)
        self.intermediate = FusedLinear(weights, dtype, names.intermediate)
        self.output = FusedLinear(weights, dtype, names.output)
        self.output_norm = _load_norm(weights, names.output_norm, epsilon)

    def forward(self, states: Tensor, attention: _Attention, *, first_only: bool = False) -> Tensor:
        """Compute the next states, and overwrite `states`.

        With `first_only`, compute the states of the first tokens only. Shape: (texts, width).
        """
        keys_values = self.key_value(states).unflatten(-1, (2, self.heads, -1))
        states = attention.take_first(states) if first_only else states
        queries = self.query(states).unflatten(-1, (self.heads, -1))
        context = attention.attend(queries, keys_values, first_only=first_only)
        states = self.attention_norm(states.add_(self.attention_output(context)))
        # In padded batches, round the product before the GELU, as transformers does.
        is_packed = isinstance(attention, EqualLengthAttention)
        neurons = self.intermediate(states, gelu=True) if is_packed else functional.gelu(self.intermediate(states))
        return self.output_norm(states.add_(self.output(neurons)))  # type: ignore[no-any-return]


class _PaddedAttention:
    """Counterpart of `EqualLengthAttention` for padded texts, with states (texts, tokens, width)."""

    # Copy states, because layers overwrite them.
    packed = SimpleNamespace(unpad=lambda values: values, pad=torch.clone)

    def __init__(self, mask: Tensor) -> None:
        # (texts, 1, queries, keys), as in transformers, or None without padding
        self.mask = None if mask.all() else mask.bool()[:, None, None].expand(-1, 1, mask.shape[1], -1)

    def take_first(self, states: Tensor) -> Tensor:
        return states[:, 0].contiguous()

    def attend(self, queries: Tensor, keys_values: Tensor, *, first_only: bool) -> Tensor:
        queries = queries[:, None] if first_only else queries
        context = attend_equal_lengths(queries, keys_values, self.mask)
        return context if first_only else context.view(*queries.shape[:2], -1)


_Attention = EqualLengthAttention | _PaddedAttention


def _get_layer_names(config: Config, layer: int) -> LayerNames:
    """Return the names of a layer's submodules, without the encoder's prefix."""
    path = str(get_architecture(config).layers_path)
    return LayerNames(*(f"{path}.{layer}.{name}" for name in LAYER_NAMES[path]))


def _freeze(weight: Tensor, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(weight.to(dtype), requires_grad=False)


class FusedLinear(nn.Module):
    """One linear layer, or several over the same inputs with their outputs concatenated.

    The product is computed in the dtype of the weights. Under autocast, the weights are cast once, and no float32 copy
    is kept.
    """

    def __init__(self, weights: Weights, dtype: torch.dtype, *names: str) -> None:
        super().__init__()
        weight, bias = (torch.cat([weights[f"{name}.{part}"] for name in names]) for part in ("weight", "bias"))
        self.weight, self.bias = _freeze(weight, dtype), _freeze(bias, dtype)
        self.prepared_dtype: torch.dtype | None = None
        """Dtype that the weights were cast to and reordered for, or None before the first call."""

    def forward(self, values: Tensor, *, gelu: bool = False) -> Tensor:
        """Apply the linear layer and, if `gelu`, the activation; oneDNN fuses both, so only the result is rounded."""
        device = values.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.bias.dtype
        if self.prepared_dtype != dtype:
            self._prepare(device, dtype)
        values = values.to(dtype)
        if self.weight.is_mkldnn:
            name, algorithm = ("gelu", "none") if gelu else ("none", "")
            return onednn._linear_pointwise(values, self.weight, self.bias, name, [], algorithm)  # type: ignore[no-any-return]
        outputs = functional.linear(values, self.weight, self.bias)
        return functional.gelu(outputs) if gelu else outputs

    def _prepare(self, device: str, dtype: torch.dtype) -> None:
        """Cast the weights and, in bf16 on a CPU, reorder them for oneDNN's matrix products.

        Otherwise each forward pass would cast and reorder them again.
        """
        # Several threads can run the model; one of them prepares the weights.
        with _PREPARE_LOCK:
            if self.prepared_dtype == dtype:
                return
            weight = self.weight.to(dtype)
            uses_onednn = device == "cpu" and dtype == torch.bfloat16 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
            if uses_onednn and onednn._is_mkldnn_bf16_supported():
                weight = onednn._reorder_linear_weight(weight, _TOKENS_HINT)
            self.weight, self.bias = _freeze(weight, dtype), _freeze(self.bias, dtype)
            self.prepared_dtype = dtype


def _load_norm(weights: Weights, name: str, epsilon: float) -> nn.LayerNorm:
    weight, bias = (weights[f"{name}.{part}"].clone() for part in ("weight", "bias"))
    norm = nn.LayerNorm(len(weight), eps=epsilon, device="meta")
    norm.weight, norm.bias = _freeze(weight), _freeze(bias)
    return norm
