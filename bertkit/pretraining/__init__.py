"""Pretraining: documents, tokenized, packed and masked, and the objectives that read them.

Everything that a custom objective needs can be imported from this package; the names in `__all__` are stable.
"""

from bertkit.pretraining.masking import (
    MASK_RANDOM_KEEP,
    choose_spans,
    choose_tokens,
    choose_words,
    corrupt,
    ordinary_tokens,
)
from bertkit.pretraining.objectives import HELD_OUT_RATE, Objective, PretrainContext, mlm
from bertkit.pretraining.packing import Block, join_block
from bertkit.recipe.records import Option, read_option
from bertkit.tokens.features import IGNORE_INDEX, Collator, Feature

__all__ = [
    "HELD_OUT_RATE",
    "IGNORE_INDEX",
    "MASK_RANDOM_KEEP",
    "Block",
    "Collator",
    "Feature",
    "Objective",
    "Option",
    "PretrainContext",
    "choose_spans",
    "choose_tokens",
    "choose_words",
    "corrupt",
    "join_block",
    "mlm",
    "ordinary_tokens",
    "read_option",
]
