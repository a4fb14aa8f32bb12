"""Properties of the model types that bertkit knows: one record per type, in one table.

To support another architecture, add its record to architectures.yaml. The test of this module then compares each of its
speed paths with the plain model. A type without a record is trained on the plain path.
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
class TextHead:
    """Head for texts: a layer over the first token, an activation, and a layer with the outputs."""

    layer: str
    activation: str
    """Name of a function of torch."""
    outputs: str = "classifier"


@dataclass(frozen=True)
class Architecture:
    """Properties of a model type; the defaults are safe for a type that is not in the table."""

    model_type: str
    layers: str | None = None
    """Path from the base model to the list of its layers, or None if it is not needed or layers share weights."""
    is_bert_like: bool = False
    """Layers have the submodules of BERT's, with the norm after the sum, and read no positions, so the last layer can
    be computed for one token."""
    is_rotary: bool = False
    """Layers get rotary positions as ``position_embeddings``, and project queries, keys and values by one layer or
    three, so the last layer can be computed for one token."""
    can_unpad: bool = False
    """Layers compute each token separately except for attention, which is sdpa or relative, so padding can be left out
    between the first and the last layer."""
    attends_relatively: bool = False
    """Layers compute attention with relative positions themselves: a bias as in MPNet, or products as in DeBERTa-v2."""
    separates_documents: bool = False
    """Masks of shape (rows, 1, tokens, tokens), boolean, and positions keep the documents of a packed block apart."""
    has_language_adapters: bool = False
    """Layers select the rows of each language for its adapter, which an exported graph computes wrongly."""
    reads_token_types: bool = True
    has_pair_head: bool = False
    """Its model for pretraining has a head over pairs of segments."""
    has_discriminator: bool = False
    """Its model for pretraining detects replaced tokens."""
    overflows_in_bf16: bool = False
    """Its attention mask adds a number that bf16 cannot represent."""
    has_plain_products: bool = False
    """A layer is four products of hidden by hidden, two of hidden by intermediate, and attention between all tokens."""
    first_layer_differs: bool = False
    """Its first layer has no norm before attention, so it can only be the first."""
    reads_weights: bool = False
    """Its attention reads the weights of a layer and does not call the layer, so an adapter there has no effect."""
    sets_head_size: bool = False
    """Its config stores the size of a head (``head_dim``), so a model can have fewer heads of the same size."""
    student_type: str | None = None
    """Model type of students that consist of its layers, or None if it cannot have students."""
    counts_from_padding: bool | None = None
    """Whether positions start after the id of the padding token, or None if that depends on the model."""
    prefix: str | None = None
    """Prefix of the names of the encoder's weights, or None if only transformers computes the type."""
    classes: str | None = None
    """Prefix of the names of transformers' classes, for types with a `prefix`."""
    config_fields: Sequence[str] | None = None
    """Fields of its config that a forward pass depends on, for types with a `prefix`: width, layers and heads first."""
    classifier: TextHead | None = None
    """The head of its model for texts."""
    chooser: TextHead | None = None
    """The head of its model for choices."""


def _as_architecture(model_type: str, fields: Mapping[str, Any]) -> Architecture:
    heads = {name: TextHead(**fields[name]) for name in ("classifier", "chooser") if name in fields}
    return Architecture(model_type, **{**fields, **heads})


class LayerNames(NamedTuple):
    """Names of the weights of a layer."""

    query: str
    key: str
    value: str
    attended: str
    attended_norm: str
    wide: str
    narrow: str
    norm: str


_TABLES: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
LAYER_NAMES = {path: LayerNames(**names) for path, names in _TABLES["layer_names"].items()}
"""Path of the layers -> names of the weights in each."""
ARCHITECTURES = {name: _as_architecture(name, fields) for name, fields in _TABLES["types"].items()}
"""Model type -> its properties."""
BIDIRECTIONAL = frozenset(_TABLES["bidirectional"])
"""Types without a record that are encoders, although transformers has no head for masked tokens for them."""


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
    """Return whether several layers have the same weights, as in ALBERT."""
    return hasattr(config, "num_hidden_groups")


def first_position(config: Config) -> int:
    """Return the first position of a text: RoBERTa and related models start after the id of the padding token.

    Their position embeddings have a padding index. For an unknown type, a model without memory for its weights is built
    to read it. A config that no encoder can be built from gets 0; loading its weights raises the error.
    """
    counts_from_padding, padding = get_architecture(config).counts_from_padding, config.pad_token_id
    if counts_from_padding is False:
        return 0
    if counts_from_padding and isinstance(padding, int) and 0 <= padding < config.max_position_embeddings:
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


def find_native_port(saved: Mapping[str, Any]) -> str | None:
    """Return transformers' own version of a checkpoint that brings its own code, or None if it has no version.

    Args:
        saved: Content of the checkpoint's ``config.json``.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    code = " ".join([str(saved.get("model_type")), *map(str, (saved.get("auto_map") or {}).values())])
    ports = (port for sign, port in _TABLES["ports"].items() if sign in code)
    return next((f"{port} ({name})" for port, name in ports if port in CONFIG_MAPPING_NAMES), None)


def detect_machine(
    precision: str, model_type: str, widths: tuple[int, int] | None = None, threads: int | None = None
) -> ComputeConfig:
    """Choose the device and the precision for a model type: ``auto`` is not bf16 if the type overflows in it."""
    overflows = find_architecture(model_type).overflows_in_bf16
    return detect_hardware(precision, avoid_bf16=overflows, widths=widths, threads=threads)


def list_types(feature: str) -> list[str]:
    """List the model types that have a feature, in alphabetical order.

    >>> "bert" in list_types("has_pair_head"), "roberta" in list_types("has_pair_head")
    (True, False)
    """
    return [architecture.model_type for architecture in ARCHITECTURES.values() if getattr(architecture, feature)]


def can_be_causal(config: Config) -> bool:
    """Return whether transformers has a left-to-right version of a model type, which the config can turn on."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return hasattr(config, "is_decoder") and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING


def is_causal(config: Config) -> bool:
    """Return whether tokens attend only to themselves and to earlier tokens."""
    return bool(getattr(config, "is_decoder", False))


def make_causal(config: Config) -> Config:
    """Return the config of the same model that reads from left to right."""
    causal = copy.deepcopy(config)
    causal.is_decoder, causal.use_cache = True, False
    return causal


def get_layers(model: Model) -> list[Any]:
    """Return the layers of a model's encoder, or an empty list if they are unknown or a decoder's."""
    path = None if is_causal(model.config) else get_architecture(model.config).layers
    if path is None:
        return []
    layers: Any = model.base_model
    for name in path.split("."):
        # A model that combines several encoders has no layers under this path.
        layers = getattr(layers, name, None)
    return list(layers or [])


def get_layer_sizes(config: Config) -> tuple[int, int, int] | None:
    """Return the number of layers, hidden size and intermediate size, or None if layers are not like BERT's.

    >>> from types import SimpleNamespace as Config
    >>> get_layer_sizes(Config(model_type="bert", num_hidden_layers=12, hidden_size=768, intermediate_size=3072))
    (12, 768, 3072)
    """
    if not get_architecture(config).has_plain_products:
        return None
    # DistilBERT calls the intermediate size `hidden_dim`.
    intermediate = getattr(config, "intermediate_size", None) or getattr(config, "hidden_dim", None)
    sizes = (getattr(config, "num_hidden_layers", None), getattr(config, "hidden_size", None), intermediate)
    return None if None in sizes else sizes  # type: ignore[return-value]
