"""Encoders of BERT's kin that are known well enough for plain torch: names and shapes of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from bertkit.modeling.architectures import LAYER_NAMES, LayerNames, architecture_of, find_architecture
from bertkit.modeling.checkpoint import check_config, read_json_object
from bertkit.modeling.info import Config
from bertkit.tokens.features import Batch

_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads")  # the first of `Architecture.config_fields`


def read_known_config(folder: Path) -> Config | None:
    """Read the config of a known encoder without transformers; None where that is needed, or knows the error.

    transformers fills in what a config lacks, so all that a forward pass depends on must be there.

    Raises:
        ModelError: If `bertkit.modeling.checkpoint.check_config` raises it.
    """
    file = folder / "config.json"
    content = read_json_object(file)
    check_config(content, file)
    fields = find_architecture(content["model_type"]).config_fields or ()
    right = all(type(content.get(name)) is (float if name == "layer_norm_eps" else int) for name in fields)
    if not fields or not right or "auto_map" in content or content.get("is_encoder_decoder"):
        return None
    sizes = {name: content[written] for name, written in zip(_SIZES, fields, strict=False)}
    return cast("Config", SimpleNamespace(**{"problem_type": None, "architectures": None, **content, **sizes}))


def has_known_encoder(config: Config) -> bool:
    """Tell whether an encoder is of BERT's kin, and no setting changes how it computes or what it returns."""
    usual = {
        "hidden_act": "gelu",
        "activation": "gelu",
        "chunk_size_feed_forward": 0,
        "return_dict": True,
        "_attn_implementation": "sdpa",
        **dict.fromkeys(("is_decoder", "add_cross_attention", "output_attentions", "output_hidden_states"), False),
    }
    return (
        architecture_of(config).prefix is not None
        and all(getattr(config, name, None) in (value, None) for name, value in usual.items())
        and config.hidden_size % config.num_attention_heads == 0
    )


def layer_names(config: Config, layer: int) -> LayerNames:
    """Return the names of the weights of a known encoder's layer, without the encoder's prefix."""
    path = str(architecture_of(config).layers)
    return LayerNames(*(f"{path}.{layer}.{name}" for name in LAYER_NAMES[path]))


def encoder_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight of a known encoder, by its name without the encoder's prefix."""
    architecture, width = architecture_of(config), config.hidden_size
    inner = getattr(config, "intermediate_size", None) or config.hidden_dim
    narrow = getattr(config, "embedding_size", width)
    tables = {"word": config.vocab_size, "position": config.max_position_embeddings}
    if architecture.reads_token_types:
        tables["token_type"] = config.type_vocab_size
    modules: dict[str, tuple[int, ...]] = {"embeddings.LayerNorm": (narrow,)}
    if narrow != width:
        modules["embeddings_project"] = (width, narrow)
    square, vector = (width, width), (width,)
    of_layer = (square, square, square, square, vector, (inner, width), (width, inner), vector)
    for layer in range(config.num_hidden_layers):
        modules.update(zip(layer_names(config, layer), of_layer, strict=True))
    shapes = {f"embeddings.{name}_embeddings.weight": (size, narrow) for name, size in tables.items()}
    return shapes | with_biases(modules)


def with_biases(modules: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights and biases of layers whose weights have the shapes given."""
    parts = {"weight": None, "bias": 1}  # -> dimensions of the weight that it has
    return {f"{name}.{part}": size[:axes] for name, size in modules.items() for part, axes in parts.items()}


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Read the file of a model's weights, which stay in the mapped file; none where it is missing or damaged."""
    try:
        return load_file(folder / "model.safetensors")
    except (OSError, SafetensorError):
        return {}


def are_whole(weights: Batch, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Tell whether weights have these names and shapes, and all are finite numbers."""
    if {name: tuple(weight.shape) for name, weight in weights.items()} != shapes:
        return False
    # a sum is not finite if any of its values is not
    return all(weight.is_floating_point() and weight.sum(dtype=torch.float32).isfinite() for weight in weights.values())
