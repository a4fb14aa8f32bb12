"""Features of several texts: the choices of a row, or the texts whose vectors are compared."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from bertkit.tokens.features import (
    Collator,
    Feature,
    Features,
    Rows,
    Setup,
    Tensors,
    are_several,
    encode_texts,
    padding_collator,
    to_batch,
)


def encode_several(rows: Sequence[Rows], setup: Setup) -> list[Feature]:
    """Encode the texts (or pairs) of each row; ``input_ids`` and the like are one list of numbers per text."""
    # the texts of all rows are tokenized in one call, then dealt out to their rows in the same order
    encoded = iter(encode_texts([text for texts in rows for text in texts], setup))
    features = []
    for number, texts in enumerate(rows):
        read = [next(encoded) for _ in texts]
        names = [name for name in read[0] if name != "row"]
        features.append({"row": number, **{name: [text[name] for text in read] for name in names}})
    return features


def several_collator(setup: Setup, label_type: str = "int64") -> Collator:
    """Build the collator that pads rows to equally many texts, and texts to equal length.

    A batch has ``input_ids`` and the like of shape (rows, texts, tokens), and ``labels`` where all rows have them; of
    rows with a list of labels, as many as the longest has, and 0 where a row has none. A text that a row lacks is a
    single token, which no real text is, since it has special tokens. So a model finds it by the attention mask alone,
    and no text of a batch is all padding.
    """
    import numpy as np

    pad = padding_collator(setup)

    def collate(features: Features) -> Tensors:
        most = max(len(feature["input_ids"]) for feature in features)
        # (rows * texts, tokens) for the padding collator, which knows single texts; then (rows, texts, tokens)
        flat: list[Feature] = []
        for feature in features:
            names = [name for name in ("input_ids", "token_type_ids") if name in feature]
            for text in range(most):
                has_text = text < len(feature["input_ids"])
                flat.append({name: feature[name][text] if has_text else [0] for name in names})
        batch = {name: values.reshape(len(features), most, -1) for name, values in pad(flat).items()}
        if all("labels" in feature for feature in features):
            labels = [feature["labels"] for feature in features]
            if are_several(labels):
                longest = max(map(len, labels))
                labels = [[*of_row, *[0] * (longest - len(of_row))] for of_row in labels]
            batch |= to_batch({"labels": np.array(labels, dtype=label_type)}, setup)
        return batch

    return collate


def text_number(text: str) -> int:
    """Return a number that is the same for equal texts, and for no others among billions.

    >>> text_number("a") == text_number("a"), text_number("a") == text_number("b")
    (True, False)
    """
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little", signed=True)
