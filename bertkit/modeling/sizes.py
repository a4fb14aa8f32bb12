"""Named sizes of new models, and the configs that are made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bertkit.errors import RecipeError, closest
from bertkit.modeling.architectures import first_position
from bertkit.modeling.info import Config
from bertkit.recipe.options import check_names
from bertkit.tokens.features import Tokenizer


@dataclass(frozen=True)
class Size:
    """The shape of a new model as the literature has it."""

    model_type: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    """Tokens of the published model; a new model has those of its tokenizer."""
    parameters: int
    """Of the encoder with that vocabulary and its pooler; written down here so that listing sizes needs no torch."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the config that are neither of these nor transformers' default."""


def _bert(layers: int, hidden: int, parameters: int) -> Size:
    """Build the size of a BERT with heads of width 64 (Turc et al. 2019)."""
    return Size("bert", layers, hidden, hidden // 64, 30_522, parameters, {"intermediate_size": 4 * hidden})


def _ettin(layers: int, hidden: int, intermediate: int, heads: int, parameters: int) -> Size:
    """Build the size of an Ettin encoder, which has the layers of ModernBERT (Weller et al. 2025)."""
    return Size("modernbert", layers, hidden, heads, 50_368, parameters, {"intermediate_size": intermediate})


# 512 positions come after the padding token's id, which is 1 (fairseq's way)
_ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
_DEBERTA = {
    "intermediate_size": 3072,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}
_MMBERT = {  # rotary positions of one base in layers of both types
    "rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": 160_000.0} for kind in ("full_attention", "sliding_attention")
    }
}
_SIZES = {
    "tiny": _bert(2, 128, 4_385_920),
    "mini": _bert(4, 256, 11_170_560),
    "small": _bert(4, 512, 28_763_648),
    "medium": _bert(8, 512, 41_373_184),
    "base": _bert(12, 768, 109_482_240),
    "large": _bert(24, 1024, 335_141_888),
    "tinybert": Size("bert", 4, 312, 12, 30_522, 14_350_248, {"intermediate_size": 1200}),
    "distilbert": Size("distilbert", 6, 768, 12, 30_522, 66_362_880),
    "roberta-base": Size("roberta", 12, 768, 12, 50_265, 124_645_632, {**_ROBERTA, "intermediate_size": 3072}),
    "roberta-large": Size("roberta", 24, 1024, 16, 50_265, 355_359_744, {**_ROBERTA, "intermediate_size": 4096}),
    "albert-base": Size("albert", 12, 768, 12, 30_000, 11_683_584, {"intermediate_size": 3072}),
    "albert-large": Size("albert", 24, 1024, 16, 30_000, 17_683_968, {"intermediate_size": 4096}),
    "albert-xlarge": Size("albert", 24, 2048, 16, 30_000, 58_724_864, {"intermediate_size": 8192}),
    "albert-xxlarge": Size("albert", 12, 4096, 64, 30_000, 222_595_584, {"intermediate_size": 16_384}),
    "electra-small": Size("electra", 12, 256, 4, 30_522, 13_483_008),
    "electra-base": Size(
        "electra", 12, 768, 12, 30_522, 108_891_648, {"intermediate_size": 3072, "embedding_size": 768}
    ),
    "electra-large": Size(
        "electra", 24, 1024, 16, 30_522, 334_092_288, {"intermediate_size": 4096, "embedding_size": 1024}
    ),
    "modernbert-base": Size("modernbert", 22, 768, 12, 50_368, 149_014_272),
    "modernbert-large": Size("modernbert", 28, 1024, 16, 50_368, 394_781_696, {"intermediate_size": 2624}),
    "ettin-17m": _ettin(7, 256, 384, 4, 16_797_440),
    "ettin-32m": _ettin(10, 384, 576, 6, 31_883_136),
    "ettin-68m": _ettin(19, 512, 768, 8, 68_144_640),
    "ettin-150m": _ettin(22, 768, 1152, 12, 149_014_272),
    "ettin-400m": _ettin(28, 1024, 2624, 16, 394_781_696),
    "ettin-1b": _ettin(28, 1792, 3840, 28, 1_028_050_688),
    "mmbert-small": Size("modernbert", 22, 384, 6, 256_000, 140_493_696, {**_MMBERT, "intermediate_size": 1152}),
    "mmbert-base": Size("modernbert", 22, 768, 12, 256_000, 306_939_648, _MMBERT),
    "eurobert-210m": Size("eurobert", 12, 768, 12, 128_256, 211_766_016),
    "deberta-v3-small": Size("deberta-v2", 6, 768, 12, 128_100, 141_304_320, _DEBERTA),
    "deberta-v3-base": Size("deberta-v2", 12, 768, 12, 128_100, 183_831_552, _DEBERTA),
    "deberta-v3-large": Size("deberta-v2", 24, 1024, 16, 128_100, 434_012_160, {**_DEBERTA, "intermediate_size": 4096}),
}
_NOT_OPTIONS = {  # fields that follow from the tokenizer, from transformers, or from being an encoder
    *("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id"),
    *("is_decoder", "is_encoder_decoder", "add_cross_attention", "use_cache"),
    *("architectures", "transformers_version", "dtype", "return_dict", "output_hidden_states", "sparse_prediction"),
    *("id2label", "label2id", "problem_type"),
}
_AT_LEAST_ONE = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("embedding_size", "max_position_embeddings", "num_hidden_groups", "inner_group_num"),
)


def size_names() -> list[str]:
    """List the named sizes."""
    return list(_SIZES)


def find_size(name: str) -> Size:
    """Return the size of a name.

    Raises:
        RecipeError: no size has that name; the message has the closest ones.
    """
    if name not in _SIZES:
        raise RecipeError(f"no size is called {name!r}", closest(name, _SIZES))
    return _SIZES[name]


def make_config(size: str, tokenizer: Tokenizer, model_options: Mapping[str, Any]) -> Config:
    """Build the config of a new model from a size, its tokenizer's vocabulary, and options that set any field.

    Raises:
        RecipeError: no such size, no such field, a value out of its range, or fewer tokens than the tokenizer has.
    """
    config = _config(find_size(size), model_options, max(tokenizer.get_vocab().values()) + 1)
    for name in ("pad", "bos", "eos", "cls", "sep", "mask"):
        number = getattr(tokenizer, f"{name}_token_id")
        if number is None:  # BERT's tokenizer has cls and sep where RoBERTa's config has bos and eos
            number = getattr(tokenizer, {"bos": "cls_token_id", "eos": "sep_token_id"}.get(name, "pad_token_id"))
        if getattr(config, f"{name}_token_id", None) is not None:
            setattr(config, f"{name}_token_id", number)
    if first_position(config) and "max_position_embeddings" not in model_options:
        config.max_position_embeddings = max(config.max_position_embeddings, 512 + config.pad_token_id + 1)
    return config


def _config(size: Size, options: Mapping[str, Any], vocabulary: int) -> Config:
    """Build and check a config with a vocabulary of that size; ids of special tokens are transformers' defaults."""
    import dataclasses

    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[size.model_type]
    fields = {field.name for field in dataclasses.fields(config_class)}
    check_names("model_options", options, sorted((fields | set(config_class.attribute_map)) - _NOT_OPTIONS))
    shape = {"hidden_size": size.hidden, "num_hidden_layers": size.layers, "num_attention_heads": size.heads}
    values = {"vocab_size": vocabulary, **shape, **size.more}
    try:
        config = config_class(**_own_names(values, config_class) | _own_names(options, config_class))
    except (StrictDataclassError, ValueError, TypeError) as error:
        raise RecipeError(f"model_options: {str(error).splitlines()[-1].strip()}", "see the model's config") from None
    _check_values(config, options)
    if config.vocab_size < vocabulary:
        what = f"model_options.vocab_size is {config.vocab_size:,}"
        raise RecipeError(what, f"the tokenizer has {vocabulary:,} tokens")
    return config


def _own_names(values: Mapping[str, Any], config_class: Any) -> dict[str, Any]:
    """Rename fields as a config class names them: DistilBERT's hidden_size is dim."""
    return {config_class.attribute_map.get(name, name): value for name, value in values.items()}


def _check_values(config: Config, options: Mapping[str, Any]) -> None:
    """Raise RecipeError for values that transformers accepts and that break a model later, or silently."""
    from transformers.activations import ACT2FN

    for name in _AT_LEAST_ONE:
        if getattr(config, name, 1) < 1:
            raise RecipeError(f"model_options.{name} is {getattr(config, name)}", "give a whole number of at least 1")
    for name, value in options.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and ("dropout" in name or name.endswith("_prob")) and not 0 <= value < 1:
            raise RecipeError(f"model_options.{name} is {value}", "give a share of at least 0 and below 1")
        if number and not math.isfinite(value):
            raise RecipeError(f"model_options.{name} is {value}", "give a finite number")
        if ("activation" in name or name == "hidden_act") and isinstance(value, str) and value not in ACT2FN:
            raise RecipeError(f"model_options.{name} is {value!r}", closest(value, sorted(ACT2FN)))
    if config.hidden_size % config.num_attention_heads:
        what = f"hidden_size {config.hidden_size} cannot be shared by {config.num_attention_heads} heads"
        raise RecipeError(what, "set model_options.num_attention_heads to a divisor of it")
