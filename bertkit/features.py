"""Features: rows as the numbers an encoder reads, and batches of them as padded tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertkit.recipe import Recipe, Row

if TYPE_CHECKING:
    import torch

Feature = dict[str, Any]
"""What one forward pass reads of one row: ``input_ids`` and the like as lists of ints, ``labels``, ``row``."""

Collator = Callable[[Sequence[Feature]], dict[str, "torch.Tensor"]]


@dataclass(frozen=True)
class Setup:
    """What every step of a run needs to know; `labels` is in the order of the model's outputs."""

    recipe: Recipe
    tokenizer: Any
    labels: tuple[str, ...]


def encode_texts(rows: Sequence[Row], setup: Setup) -> list[Feature]:
    """Encode ``text`` or the pair ``text``, ``text_pair`` of each row, cut to the recipe's ``max_length``.

    A text that spells ``[SEP]`` or ``[MASK]`` is read as those characters, never as the special piece.
    """
    texts = [row["text"] for row in rows]
    pairs = [row["text_pair"] for row in rows] if rows and "text_pair" in rows[0] else None
    encoded = setup.tokenizer(
        texts,
        pairs,
        truncation=True,
        max_length=window(setup),
        return_attention_mask=False,
        split_special_tokens=True,
    )
    return [
        {"row": number, **{name: values[number] for name, values in encoded.items()}} for number in range(len(rows))
    ]


def window(setup: Setup) -> int:
    """Give the length to cut at: the recipe's ``max_length``, or the model's where that is shorter."""
    return min(setup.recipe.training.max_length, int(setup.tokenizer.model_max_length))


def padding_collator(setup: Setup, *, label_type: str = "int64") -> Collator:
    """Make the collator that pads a batch on the right to its longest row.

    It gives ``input_ids``, ``attention_mask`` and, where the tokenizer makes them, ``token_type_ids`` of shape
    ``(rows, pieces)``, and ``labels`` of shape ``(rows,)`` or ``(rows, labels)`` where every row has one.
    """
    import torch

    padding = {"input_ids": setup.tokenizer.pad_token_id, "token_type_ids": setup.tokenizer.pad_token_type_id}
    dtype = getattr(torch, label_type)

    def collate(features: Sequence[Feature]) -> dict[str, torch.Tensor]:
        lengths = [len(feature["input_ids"]) for feature in features]
        batch = {}
        for name in [name for name in padding if name in features[0]]:
            batch[name] = torch.full((len(features), max(lengths)), padding[name])
            for number, feature in enumerate(features):
                batch[name][number, : lengths[number]] = torch.tensor(feature[name])
        positions = torch.arange(max(lengths))
        batch["attention_mask"] = (positions < torch.tensor(lengths)[:, None]).long()
        if all("labels" in feature for feature in features):
            batch["labels"] = torch.tensor([feature["labels"] for feature in features], dtype=dtype)
        return batch

    return collate
