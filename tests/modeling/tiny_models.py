"""Random models of every architecture in the table, small enough to be made in each test, and batches for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedModel

from bertkit.hardware.precision import ComputeConfig
from bertkit.modeling.load import load_pretrained
from bertkit.recipe import load_recipe
from bertkit.tokens.features import TaskContext

VOCABULARY = 60
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
SPECIAL = {"pad_token_id": 1, "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
OWN_FIELDS: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 8},
    "canine": {"vocab_size": None},  # it reads characters
    "deberta": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
    "electra": {"embedding_size": 8},
    "embedding_gemma2_text": {"num_key_value_heads": 1, "head_dim": 8, "hidden_size_per_layer_input": 4},
    "eurobert": {"num_key_value_heads": 1, "classifier_pooling": "bos", "mask_token_id": 4},
    "gemma": {"num_key_value_heads": 1, "head_dim": 8, "use_bidirectional_attention": True},
    "gemma3_text": {"num_key_value_heads": 1, "head_dim": 8, "use_bidirectional_attention": True},
    "lilt": {"hidden_size": 24},
    "llama": {"num_key_value_heads": 1, "is_causal": False},
    "longformer": {"attention_window": 12},
    "modernbert": {"local_attention": 6, "layer_types": ["full_attention", "sliding_attention"]},
    "openai_privacy_filter": {"num_key_value_heads": 1, "head_dim": 8, "num_local_experts": 4},
    "ultrabert": {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]},
    "xlnet": {"max_position_embeddings": None, "d_head": 8},  # XLNet has no limit
    "xmod": {"languages": ["en_XX", "de_DE"], "default_language": "de_DE"},
}
LENGTHS = (3, 9, 5, 4)
CPU = ComputeConfig("cpu", "fp32", 1, "")


def make_tiny(
    model_type: str, auto_class: Any, dropout: float = 0.0, *, config: dict[str, Any] | None = None, **options: Any
) -> PreTrainedModel:
    """Build a model in training mode, the same one at each call, with one dropout probability everywhere.

    Args:
        model_type: of the model; its own fields are in `OWN_FIELDS`.
        auto_class: one of transformers' classes, or a class of models.
        dropout: the probability.
        config: more fields of the config.
        options: of the class.
    """
    torch.manual_seed(0)
    fields = {"vocab_size": VOCABULARY, "max_position_embeddings": 40, **SHAPE, **SPECIAL}
    fields |= OWN_FIELDS.get(model_type, {}) | (config or {})
    build = getattr(auto_class, "from_config", auto_class)
    fields = {name: value for name, value in fields.items() if value is not None}
    model = build(AutoConfig.for_model(model_type, **fields), **options).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
        elif isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = dropout
    return model


def load_head(
    head: Any, folder: Path, labels: Sequence[str], *, new_head: bool, cls_only: bool = False, **options: Any
) -> PreTrainedModel:
    """Load a checkpoint without a tokenizer by `load_pretrained`."""
    padding = json.loads((folder / "config.json").read_text()).get("pad_token_id")
    recipe = load_recipe("classify", {"training.cls_only_last_layer": cls_only})
    context: Any = TaskContext(recipe, SimpleNamespace(pad_token_id=padding), tuple(labels))
    return load_pretrained(head, folder, context, labels=labels, new_head=new_head, **options)


def make_tiny_batch(lengths: tuple[int, ...] = LENGTHS) -> dict[str, torch.Tensor]:
    """Build rows of random ordinary tokens, padded on the right: (rows, tokens)."""
    random = torch.Generator().manual_seed(1)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(5, 40, mask.shape, generator=random)
    return {"input_ids": ids.where(mask.bool(), 1), "attention_mask": mask}
