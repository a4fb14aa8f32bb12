"""Encoders read from left to right: each token attends to itself and to those before it.

transformers builds such a model where the config of a BERT-like encoder says `is_decoder`. The published checkpoint
says so too, and whatever is fine-tuned from it keeps the mask.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def can_be_causal(config: PretrainedConfig) -> bool:
    """Tell whether transformers has a left-to-right version of an encoder's model type.

    >>> from transformers import AlbertConfig, BertConfig
    >>> can_be_causal(BertConfig()), can_be_causal(AlbertConfig())
    (True, False)
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return hasattr(config, "is_decoder") and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING


def is_causal(config: PretrainedConfig) -> bool:
    """Tell whether a model of this config attends to earlier tokens only."""
    return bool(getattr(config, "is_decoder", False))


def make_causal(config: PretrainedConfig) -> PretrainedConfig:
    """Return the config of the same model, read from left to right."""
    causal = copy.deepcopy(config)
    causal.is_decoder, causal.use_cache = True, False
    return causal


def read_last_token(model: PreTrainedModel) -> None:
    """Let the head of a left-to-right model for whole texts read the last token, not the first, which sees no other."""
    last: list[Any] = []  # index of each row's last token in the batch at hand; None without padding

    def note_lengths(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        mask = named.get("attention_mask", arguments[1] if len(arguments) > 1 else None)
        last[:] = [None if mask is None else mask.sum(dim=-1) - 1]

    def take_last(_: Any, inputs: Any, outputs: Any) -> Any:
        # (rows, tokens, width) becomes (rows, 1, width): heads read the first of the tokens that they get
        hidden, (index,) = outputs["last_hidden_state"], last
        index = -1 if index is None else index
        rows = slice(None) if isinstance(index, int) else range(len(hidden))
        outputs["last_hidden_state"] = hidden[rows, index][:, None]
        return outputs

    model.base_model.register_forward_pre_hook(note_lengths, with_kwargs=True)
    model.base_model.encoder.register_forward_hook(take_last)
