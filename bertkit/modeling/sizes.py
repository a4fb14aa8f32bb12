"""Named sizes of new models, and configs built from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from bertkit.errors import RecipeError, did_you_mean
from bertkit.modeling.architectures import first_position
from bertkit.modeling.info import Config
from bertkit.recipe.records import check_names
from bertkit.tokens.features import Tokenizer


@dataclass(frozen=True)
class Size:
    """Published size of a model."""

    model_type: str
    layers: int
    hidden: int
    heads: int
    vocab_size: int
    """Vocabulary size of the published model; a new model has the vocabulary of its tokenizer."""
    parameters: int
    """Number of parameters of the published encoder with a pooler, stored so that listing sizes needs no torch."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Other config fields that differ from transformers' defaults."""


# Fields that the tokenizer or transformers sets, or that would make the model a decoder.
_NOT_OPTIONS = {
    *("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id"),
    *("is_decoder", "is_encoder_decoder", "add_cross_attention", "use_cache"),
    *("architectures", "transformers_version", "dtype", "return_dict", "output_hidden_states", "sparse_prediction"),
    *("id2label", "label2id", "problem_type"),
}
_POSITIVE_FIELDS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("embedding_size", "max_position_embeddings", "num_hidden_groups", "inner_group_num"),
)


@cache
def read_sizes() -> dict[str, Size]:
    """Read the sizes by name."""
    sizes = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))["sizes"]
    return {name: Size(**fields) for name, fields in sizes.items()}


def find_size(name: str) -> Size:
    """Return the size called `name`.

    Raises:
        RecipeError: If no size has this name; the message lists similar names.
    """
    sizes = read_sizes()
    if name not in sizes:
        raise RecipeError(f"no size is called {name!r}", did_you_mean(name, sizes))
    return sizes[name]


def make_config(size: str, tokenizer: Tokenizer, model_options: Mapping[str, Any]) -> Config:
    """Build the config of a new model from a size, its tokenizer, and values for other config fields.

    Raises:
        RecipeError: If the size or a field is unknown, a value is out of range, or the model has fewer tokens than the
            tokenizer.
    """
    config = _build_config(find_size(size), model_options, max(tokenizer.get_vocab().values()) + 1)
    for name in ("pad", "bos", "eos", "cls", "sep", "mask"):
        token_id = getattr(tokenizer, f"{name}_token_id")
        # RoBERTa's config requires bos and eos; a BERT tokenizer has cls and sep instead.
        if token_id is None:
            token_id = getattr(tokenizer, {"bos": "cls_token_id", "eos": "sep_token_id"}.get(name, "pad_token_id"))
        if getattr(config, f"{name}_token_id", None) is not None:
            setattr(config, f"{name}_token_id", token_id)
    if first_position(config) and "max_position_embeddings" not in model_options:
        config.max_position_embeddings = max(config.max_position_embeddings, 512 + config.pad_token_id + 1)
    return config


def _build_config(size: Size, options: Mapping[str, Any], vocab_size: int) -> Config:
    """Build and check a config with a vocabulary of the given size; special tokens keep transformers' default ids."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[size.model_type]
    fields = {field.name for field in dataclasses.fields(config_class)}
    check_names("model_options", options, sorted((fields | set(config_class.attribute_map)) - _NOT_OPTIONS))
    shape = {"hidden_size": size.hidden, "num_hidden_layers": size.layers, "num_attention_heads": size.heads}
    values = {"vocab_size": vocab_size, **shape, **size.config}
    try:
        config = config_class(**_rename_fields(values, config_class) | _rename_fields(options, config_class))
    except (StrictDataclassError, ValueError, TypeError) as error:
        raise RecipeError(f"model_options: {str(error).splitlines()[-1].strip()}", "see the model's config") from None
    _check_values(config, options)
    if config.vocab_size < vocab_size:
        message = f"model_options.vocab_size is {config.vocab_size:,}"
        raise RecipeError(message, f"the tokenizer has {vocab_size:,} tokens")
    return config


def _rename_fields(values: Mapping[str, Any], config_class: type[Config]) -> dict[str, Any]:
    """Replace the usual names of fields by a config class's names, e.g. hidden_size by dim for DistilBERT."""
    return {config_class.attribute_map.get(name, name): value for name, value in values.items()}


def _check_values(config: Config, options: Mapping[str, Any]) -> None:
    """Raise RecipeError for a value that transformers accepts but that breaks the model later."""
    from transformers.activations import ACT2FN

    for name in _POSITIVE_FIELDS:
        if getattr(config, name, 1) < 1:
            raise RecipeError(f"model_options.{name} is {getattr(config, name)}", "give an integer of at least 1")
    for name, value in options.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and ("dropout" in name or name.endswith("_prob")) and not 0 <= value < 1:
            raise RecipeError(f"model_options.{name} is {value}", "give a fraction of at least 0 and below 1")
        if is_number and not math.isfinite(value):
            raise RecipeError(f"model_options.{name} is {value}", "give a finite number")
        if ("activation" in name or name == "hidden_act") and isinstance(value, str) and value not in ACT2FN:
            raise RecipeError(f"model_options.{name} is {value!r}", did_you_mean(value, sorted(ACT2FN)))
    if config.hidden_size % config.num_attention_heads:
        message = f"hidden_size {config.hidden_size} cannot be divided among {config.num_attention_heads} heads"
        raise RecipeError(message, "set model_options.num_attention_heads to a divisor of it")
