"""An encoder that only computes: weights are cast to bf16 once, and it can leave out padding.

With padding, it runs the operations of transformers in the same order, so states are equal, in fp32 to the last bit.
Without, on a CPU, the tokens of all texts are packed into a single row (`bertkit.modeling.unpadding`), and states are
equal up to rounding. Accelerators run few large operations faster than many small ones, so there batches stay padded.
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
from torch import nn
from torch.nn import functional

from bertkit.hardware.device import Device
from bertkit.modeling.architectures import LAYER_NAMES, LayerNames, first_position, get_architecture
from bertkit.modeling.info import Config
from bertkit.modeling.unpadding.attend import EqualLengthAttention, attend_equal_lengths
from bertkit.tokens.features import Batch

Weights = Batch
Shapes = dict[str, tuple[int, ...]]
"""Name of a weight -> its shape."""

_USUAL_TOKENS = 1024  # tokens of a batch that weights are reordered for
_PREPARING = Lock()
onednn = torch.ops.mkldnn


def load_encoder(folder: Path, config: Config, dtype: torch.dtype) -> InferenceEncoder | None:
    """Load an encoder whose products are computed in `dtype`, or return None if only transformers can load it."""
    if not has_known_encoder(config):
        return None
    prefix, shapes = f"{get_architecture(config).prefix}.", get_encoder_shapes(config)
    parts = {name.split(".")[0] for name in shapes}
    weights = {name.removeprefix(prefix): weight for name, weight in read_weights(folder).items()}
    # A head, the pooler and the buffer of position ids are not needed.
    weights = {name: weight for name, weight in weights.items() if name.split(".")[0] in parts and "_ids" not in name}
    return InferenceEncoder(config, weights, dtype) if are_complete(weights, shapes) else None


def has_known_encoder(config: Config) -> bool:
    """Return whether an encoder belongs to the BERT family, and all settings that change its outputs are usual."""
    usual = {
        "hidden_act": "gelu",
        "activation": "gelu",
        "chunk_size_feed_forward": 0,
        "return_dict": True,
        "_attn_implementation": "sdpa",
        **dict.fromkeys(("is_decoder", "add_cross_attention", "output_attentions", "output_hidden_states"), False),
    }
    return (
        get_architecture(config).prefix is not None
        and all(getattr(config, name, None) in (value, None) for name, value in usual.items())
        and config.hidden_size % config.num_attention_heads == 0
    )


def get_encoder_shapes(config: Config) -> Shapes:
    """Return the shape of each weight of a known encoder, by its name without the encoder's prefix."""
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
    # in the order of the fields of LayerNames
    layer_shapes = (square, square, square, square, vector, (intermediate, width), (width, intermediate), vector)
    for layer in range(config.num_hidden_layers):
        modules.update(zip(_layer_names(config, layer), layer_shapes, strict=True))
    shapes = {f"embeddings.{name}_embeddings.weight": (size, embedding_width) for name, size in tables.items()}
    return shapes | add_bias_shapes(modules)


def add_bias_shapes(modules: Mapping[str, tuple[int, ...]]) -> Shapes:
    """Return the shapes of the weights and biases of layers, given the shapes of their weights."""
    # A bias has only the first dimension of its weight.
    parts = {"weight": None, "bias": 1}
    return {f"{name}.{part}": size[:axes] for name, size in modules.items() for part, axes in parts.items()}


def read_weights(folder: Path) -> Weights:
    """Memory-map the weights of a model folder, or return none if the file is missing or damaged."""
    try:
        return load_file(folder / "model.safetensors")
    except (OSError, SafetensorError):
        return {}


def are_complete(weights: Weights, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether weights have exactly these names and shapes, and are finite numbers."""
    if {name: tuple(weight.shape) for name, weight in weights.items()} != shapes:
        return False
    # A sum is not finite if any of its values is not.
    return all(weight.is_floating_point() and weight.sum(dtype=torch.float32).isfinite() for weight in weights.values())


class InferenceEncoder(nn.Module):
    """Encoder that computes the states of padded texts as transformers does, and cannot be trained.

    Products and attention are computed in `dtype`, or in the dtype of autocast; sums of states, and norms, in float32.
    Weights are copied from `weights`, a mapped file that can be overwritten later.
    """

    is_reentrant: bool = True
    """Whether several threads can run it at once."""
    packs: bool = True
    """Whether it leaves out padding on a CPU."""

    def __init__(self, config: Config, weights: Weights, dtype: torch.dtype) -> None:
        super().__init__()
        architecture, epsilon = get_architecture(config), getattr(config, "layer_norm_eps", 1e-12)
        self.config, self.first_position = config, first_position(config)
        tables = ["word", "position", *(["token_type"] if architecture.reads_token_types else [])]
        self.tables = nn.ParameterDict(
            {name: _frozen(weights[f"embeddings.{name}_embeddings.weight"].clone()) for name in tables}
        )
        self.norm = _norm(weights, "embeddings.LayerNorm", epsilon)
        has_project = "embeddings_project.weight" in weights
        self.project = FusedLinear(weights, dtype, "embeddings_project") if has_project else None
        names = [_layer_names(config, layer) for layer in range(config.num_hidden_layers)]
        heads = config.num_attention_heads
        self.layers = nn.ModuleList(_Layer(weights, dtype, layer_names, heads, epsilon) for layer_names in names)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        output_hidden_states: bool = False,
        first_only: bool = False,
    ) -> dict[str, Any]:
        """Compute the states of texts that are padded on the right: (texts, tokens, width).

        With `first_only`, the last layer computes the first token of each text, and its states are (texts, 1, width).
        """
        # 1. Leave out padding: values (texts, tokens, ...) become (packed tokens, ...).
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
            states = self.project(states)  # in bf16, transformers continues with less exact sums
            states = states.float() if packs else states

        # 3. Run the layers, and put the padding back.
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
    """A layer over the tokens of a batch: (packed tokens, width), or (texts, tokens, width) with padding."""

    def __init__(self, weights: Weights, dtype: torch.dtype, names: LayerNames, heads: int, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        self.queries = FusedLinear(weights, dtype, names.query)
        self.keys_values = FusedLinear(weights, dtype, names.key, names.value)
        self.attended = FusedLinear(weights, dtype, names.attended)
        self.attended_norm = _norm(weights, names.attended_norm, epsilon)
        self.wide, self.narrow = FusedLinear(weights, dtype, names.wide), FusedLinear(weights, dtype, names.narrow)
        self.norm = _norm(weights, names.norm, epsilon)

    def forward(self, states: torch.Tensor, attention: _Attention, *, first_only: bool = False) -> torch.Tensor:
        """Compute the next states; with `first_only`, of the first tokens, (texts, width). Overwrites `states`."""
        keys_values = self.keys_values(states).unflatten(-1, (2, self.heads, -1))
        states = attention.take_first(states) if first_only else states
        queries = self.queries(states).unflatten(-1, (self.heads, -1))
        attended = attention.attend(queries, keys_values, first_only=first_only)
        states = self.attended_norm(states.add_(self.attended(attended)))
        # With padding, outputs are rounded before the GELU, as in transformers.
        is_packed = isinstance(attention, EqualLengthAttention)
        wide = self.wide(states, gelu=True) if is_packed else functional.gelu(self.wide(states))
        return self.norm(states.add_(self.narrow(wide)))  # type: ignore[no-any-return]


class _PaddedAttention:
    """Counterpart of `EqualLengthAttention` for texts that stay padded: states are (texts, tokens, width)."""

    # Nothing is packed, and states are copied because layers overwrite them.
    packed = SimpleNamespace(unpad=lambda values: values, pad=torch.clone)

    def __init__(self, mask: torch.Tensor) -> None:
        # (texts, 1, queries, keys), as in transformers; None if nothing is padding
        self.mask = None if mask.all() else mask.bool()[:, None, None].expand(-1, 1, mask.shape[1], -1)

    def take_first(self, states: torch.Tensor) -> torch.Tensor:
        return states[:, 0].contiguous()

    def attend(self, queries: torch.Tensor, keys_values: torch.Tensor, *, first_only: bool) -> torch.Tensor:
        queries = queries[:, None] if first_only else queries
        attended = attend_equal_lengths(queries, keys_values, self.mask)
        return attended if first_only else attended.view(*queries.shape[:2], -1)


_Attention = EqualLengthAttention | _PaddedAttention


def _layer_names(config: Config, layer: int) -> LayerNames:
    """Return the names of the weights of a known encoder's layer, without the encoder's prefix."""
    path = str(get_architecture(config).layers)
    return LayerNames(*(f"{path}.{layer}.{name}" for name in LAYER_NAMES[path]))


def _frozen(weight: torch.Tensor, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(weight.to(dtype), requires_grad=False)


class FusedLinear(nn.Module):
    """A linear layer, or several that read the same states, with their outputs side by side.

    It computes in the dtype of its weights. Under autocast, it casts them once and keeps no copy in float32.
    """

    def __init__(self, weights: Weights, dtype: torch.dtype, *names: str) -> None:
        super().__init__()
        weight, bias = (torch.cat([weights[f"{name}.{part}"] for name in names]) for part in ("weight", "bias"))
        self.weight, self.bias = _frozen(weight, dtype), _frozen(bias, dtype)
        self.prepared: torch.dtype | None = None
        """Dtype that the weights were cast to, and reordered for."""

    def forward(self, values: torch.Tensor, *, gelu: bool = False) -> torch.Tensor:
        """Compute the outputs, (..., outputs), or their GELU, which oneDNN applies before it rounds the outputs."""
        device = values.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.bias.dtype
        if self.prepared != dtype:
            self._prepare(device, dtype)
        values = values.to(dtype)
        if self.weight.is_mkldnn:
            name, algorithm = ("gelu", "none") if gelu else ("none", "")
            return onednn._linear_pointwise(values, self.weight, self.bias, name, [], algorithm)  # type: ignore[no-any-return]
        outputs = functional.linear(values, self.weight, self.bias)
        return functional.gelu(outputs) if gelu else outputs

    def _prepare(self, device: str, dtype: torch.dtype) -> None:
        """Cast the weights and, in bf16 on a CPU, reorder them as its matrix products read them.

        Otherwise autocast would cast them, and oneDNN reorder them, in each forward pass.
        """
        # If several threads run the model, only one of them prepares the weights.
        with _PREPARING:
            if self.prepared == dtype:
                return
            weight = self.weight.to(dtype)
            by_onednn = device == "cpu" and dtype == torch.bfloat16 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
            if by_onednn and onednn._is_mkldnn_bf16_supported():
                weight = onednn._reorder_linear_weight(weight, _USUAL_TOKENS)
            self.weight, self.bias = _frozen(weight, dtype), _frozen(self.bias, dtype)
            self.prepared = dtype


def _norm(weights: Weights, name: str, epsilon: float) -> nn.LayerNorm:
    weight, bias = (weights[f"{name}.{part}"].clone() for part in ("weight", "bias"))
    norm = nn.LayerNorm(len(weight), eps=epsilon, device="meta")
    norm.weight, norm.bias = _frozen(weight), _frozen(bias)
    return norm
