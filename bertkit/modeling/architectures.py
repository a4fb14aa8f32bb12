"""Properties of the model types that bertkit knows, one record per type.

To support another architecture, add a record to architectures.yaml. The test of this module then compares the model
with each speed patch to the model without patches. A type without a record is trained without speed patches.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bertkit.hardware.precision import ComputeConfig, detect_hardware
from bertkit.modeling.info import Config, Model


@dataclass(frozen=True)
class HeadLayers:
    """Names of the layers of a head: a dense layer over the first token, an activation, and the output layer."""

    dense: str | None = None
    """Name of the dense layer, or None if the output layer reads each token."""
    activation: str = ""
    """Name of a function of torch."""
    output: str = "classifier"


@dataclass(frozen=True)
class Architecture:
    """Properties of a model type; the defaults are safe for a type that is not in the table."""

    model_type: str
    layers_path: str | None = None
    """Path from the base model to the list of its layers, or None if it is not needed or layers share weights."""
    is_bert_like: bool = False
    """Whether layers have BERT's submodules: the norm follows the residual sum, and layers read no positions. The last
    layer can then be computed for one token."""
    is_rotary: bool = False
    """Whether layers take rotary positions as ``position_embeddings``, and project queries, keys and values by one
    linear layer or three. The last layer can then be computed for one token."""
    can_unpad: bool = False
    """Whether layers compute each token separately, except in attention (sdpa or relative). Padding can then be left
    out between the first and the last layer."""
    has_relative_attention: bool = False
    """Whether layers add relative positions to attention themselves: a bias in MPNet, products in DeBERTa-v2."""
    separates_documents: bool = False
    """Whether position ids and a boolean mask (rows, 1, tokens, tokens) keep the documents of a packed block apart."""
    has_language_adapters: bool = False
    """Whether layers select each language's rows for its adapter, which an exported graph computes wrongly."""
    reads_token_types: bool = True
    has_pair_head: bool = False
    """Whether the pretraining model has a head over pairs of segments."""
    has_discriminator: bool = False
    """Whether the pretraining model detects replaced tokens."""
    overflows_in_bf16: bool = False
    """Whether the attention mask adds a number that bf16 cannot represent."""
    has_bert_products: bool = False
    """Whether a layer has BERT's matrix products: four hidden by hidden, two hidden by intermediate, full attention."""
    first_layer_differs: bool = False
    """Whether only the first layer lacks the norm before attention; it cannot move to another position."""
    ignores_adapters: bool = False
    """Whether attention uses a linear layer's weights without calling the layer: its adapter would have no effect."""
    stores_head_size: bool = False
    """Whether the config stores the size of a head (``head_dim``), so a model can have fewer heads of this size."""
    student_type: str | None = None
    """Model type of students that copy layers of this type, or None if it cannot have students."""
    positions_follow_padding_id: bool | None = None
    """Whether the first position is the padding id + 1 and not 0, or None if that depends on the model."""
    weight_prefix: str | None = None
    """Prefix of the names of the encoder's weights, or None if `bertkit.modeling.inference` cannot run the type."""
    class_prefix: str | None = None
    """Prefix of the names of transformers' classes, for types with a `weight_prefix`."""
    config_fields: Sequence[str] | None = None
    """Config fields that a forward pass reads, for types with a `weight_prefix`: width, layers and heads first."""
    text_head: HeadLayers | None = None
    """Head for text classification."""
    choice_head: HeadLayers | None = None
    """Head for multiple choice."""


def _make_architecture(model_type: str, fields: Mapping[str, Any]) -> Architecture:
    heads = {name: HeadLayers(**fields[name]) for name in ("text_head", "choice_head") if name in fields}
    return Architecture(model_type, **{**fields, **heads})


class LayerNames(NamedTuple):
    """Names of the submodules of a layer that have weights."""

    query: str
    key: str
    value: str
    attention_output: str
    attention_norm: str
    intermediate: str
    output: str
    output_norm: str


_TABLES: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
LAYER_NAMES = {path: LayerNames(**names) for path, names in _TABLES["layer_names"].items()}
"""Path of the layers -> names of the submodules in each."""
ARCHITECTURES = {name: _make_architecture(name, fields) for name, fields in _TABLES["types"].items()}
"""Model type -> its properties."""
BIDIRECTIONAL = frozenset(_TABLES["bidirectional"])
"""Types without a record that are encoders, although transformers has no masked language model of them."""


def get_architecture(config: Config) -> Architecture:
    """Return the properties of a config's model type; an unknown type gets the defaults."""
    return find_architecture(config.model_type)


def find_architecture(model_type: str) -> Architecture:
    """Return the properties of a model type; an unknown type gets the defaults.

    >>> find_architecture("roberta").student_type, find_architecture("brand-new").student_type
    ('roberta', None)
    """
    return ARCHITECTURES.get(model_type) or Architecture(model_type)


def shares_layers(config: Config) -> bool:
    """Return whether layers share their weights, as in ALBERT."""
    return hasattr(config, "num_hidden_groups")


def first_position(config: Config) -> int:
    """Return the position id of a text's first token: 0, or the padding id + 1 in RoBERTa and related models.

    If the type is unknown, build a model without weights (on the meta device), and read the padding index of its
    position embeddings. If no model can be built, return 0; loading the weights then reports the error.
    """
    follows_padding, padding = get_architecture(config).positions_follow_padding_id, config.pad_token_id
    if follows_padding is False:
        return 0
    if follows_padding and isinstance(padding, int) and 0 <= padding < config.max_position_embeddings:
        return padding + 1

    import torch
    from transformers import AutoModel

    try:
        with torch.device("meta"):
            model = AutoModel.from_config(copy.deepcopy(config))
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError, RuntimeError, ImportError):
        return 0
    tables = [module for name, module in model.named_modules() if name.endswith("embeddings.position_embeddings")]
    indices = [table.padding_idx for table in tables if getattr(table, "padding_idx", None) is not None]
    return indices[0] + 1 if indices else 0


def find_native_port(config: Mapping[str, Any]) -> str | None:
    """Return the model of transformers that replaces a checkpoint with custom code, or None if no model does.

    Args:
        config: Content of the checkpoint's ``config.json``.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    code = " ".join([str(config.get("model_type")), *map(str, (config.get("auto_map") or {}).values())])
    ports = (port for code_name, port in _TABLES["ports"].items() if code_name in code)
    return next((f"{model_type} ({name})" for model_type, name in ports if model_type in CONFIG_MAPPING_NAMES), None)


def detect_machine(
    precision: str, model_type: str, widths: tuple[int, int] | None = None, threads: int | None = None
) -> ComputeConfig:
    """Choose the device and the precision for a model type; ``auto`` avoids bf16 if the type overflows in it."""
    overflows = find_architecture(model_type).overflows_in_bf16
    return detect_hardware(precision, avoid_bf16=overflows, widths=widths, threads=threads)


def list_types(feature: str) -> list[str]:
    """List the model types that have a feature, in alphabetical order.

    >>> "bert" in list_types("has_pair_head"), "roberta" in list_types("has_pair_head")
    (True, False)
    """
    return [architecture.model_type for architecture in ARCHITECTURES.values() if getattr(architecture, feature)]


def can_be_causal(config: Config) -> bool:
    """Return whether a config can turn on a left-to-right version of its model type."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return hasattr(config, "is_decoder") and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING


def is_causal(config: Config) -> bool:
    """Return whether tokens attend only to themselves and to earlier tokens."""
    return bool(getattr(config, "is_decoder", False))


def make_causal(config: Config) -> Config:
    """Return a copy of a config for a model that reads from left to right."""
    causal = copy.deepcopy(config)
    causal.is_decoder, causal.use_cache = True, False
    return causal


def get_layers(model: Model) -> list[Any]:
    """Return the layers of a model's encoder, or an empty list if they are unknown or a decoder's."""
    path = None if is_causal(model.config) else get_architecture(model.config).layers_path
    if path is None:
        return []
    layers: Any = model.base_model
    for name in path.split("."):
        # A model that combines several encoders has no layers under this path.
        layers = getattr(layers, name, None)
    return list(layers or [])


def get_layer_sizes(config: Config) -> tuple[int, int, int] | None:
    """Return the number of layers, hidden size and intermediate size, or None without `has_bert_products`.

    >>> from types import SimpleNamespace as Config
    >>> get_layer_sizes(Config(model_type="bert", num_hidden_layers=12, hidden_size=768, intermediate_size=3072))
    (12, 768, 3072)
    """
    if not get_architecture(config).has_bert_products:
        return None
    # DistilBERT calls the intermediate size `hidden_dim`.
    intermediate = getattr(config, "intermediate_size", None) or getattr(config, "hidden_dim", None)
    sizes = (getattr(config, "num_hidden_layers", None), getattr(config, "hidden_size", None), intermediate)
    return None if None in sizes else sizes  # type: ignore[return-value]
