"""Features of several texts, such as choices, or texts whose vectors are compared."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from bertkit.tokens.features import (
    Collator,
    Feature,
    Features,
    Rows,
    TaskContext,
    Tensors,
    are_several_texts,
    encode_texts,
    padding_collator,
    to_batch,
)


def encode_multi_text(rows: Sequence[Rows], context: TaskContext) -> list[Feature]:
    """Encode the texts (or pairs) of each row; ``input_ids`` and other keys have one list of numbers per text."""
    # The texts of all rows are tokenized in one call, and then assigned to their rows in the same order.
    encoded = iter(encode_texts([text for texts in rows for text in texts], context))
    features = []
    for index, texts in enumerate(rows):
        text_features = [next(encoded) for _ in texts]
        names = [name for name in text_features[0] if name != "row"]
        features.append({"row": index, **{name: [text[name] for text in text_features] for name in names}})
    return features


def multi_text_collator(context: TaskContext, label_type: str = "int64") -> Collator:
    """Build the collator that pads rows to equally many texts, and texts to equal length.

    A batch has ``input_ids`` and other keys of shape (rows, texts, tokens), and ``labels`` if all rows have them. Lists
    of labels are padded with 0 to the longest list. A missing text is a single token. Every real text has special
    tokens and so is longer, so a model recognizes missing texts by the attention mask, and no text is only padding.
    """
    import numpy as np

    pad = padding_collator(context)

    def collate(features: Features) -> Tensors:
        max_texts = max(len(feature["input_ids"]) for feature in features)
        # The padding collator reads single texts, (rows * texts, tokens); its arrays become (rows, texts, tokens).
        flat: list[Feature] = []
        for feature in features:
            names = [name for name in ("input_ids", "token_type_ids") if name in feature]
            for text in range(max_texts):
                # One token of id 0 represents a missing text; the docstring explains how a model recognizes it.
                has_text = text < len(feature["input_ids"])
                flat.append({name: feature[name][text] if has_text else [0] for name in names})
        batch = {name: values.reshape(len(features), max_texts, -1) for name, values in pad(flat).items()}
        if all("labels" in feature for feature in features):
            labels = [feature["labels"] for feature in features]
            if are_several_texts(labels):
                longest = max(map(len, labels))
                labels = [[*row_labels, *[0] * (longest - len(row_labels))] for row_labels in labels]
            batch |= to_batch({"labels": np.array(labels, dtype=label_type)}, context)
        return batch

    return collate


def hash_text(text: str) -> int:
    """Return an id that is the same for equal texts, and different for other texts among billions.

    >>> hash_text("a") == hash_text("a"), hash_text("a") == hash_text("b")
    (True, False)
    """
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little", signed=True)
