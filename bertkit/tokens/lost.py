"""What is lost of texts that are longer than a model reads, and the gold values that no feature has for it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertkit.data.checks import share_of
from bertkit.metrics import Numbers
from bertkit.recipe import Row
from bertkit.storage.cache import say_once
from bertkit.tokens.feature_cache import longest_of
from bertkit.tokens.features import Feature, Setup, max_tokens, text_lengths
from bertkit.tokens.long_texts import reads_windows

Encode = Callable[[Sequence[Row], Setup], Sequence[Feature]]

_UNENDING = 10**9  # tokens


@dataclass
class Truncation:
    """How many rows are longer than the maximum length, and how many tokens they lose; counted chunk by chunk."""

    setup: Setup
    encode: Encode
    rows: int = 0
    long: int = 0
    read: int = 0
    """Tokens of each row's longest text, as far as they are read."""
    lost_tokens: int = 0

    def add(self, features: Sequence[Feature], rows: Sequence[Row]) -> None:
        """Count rows by their features; only those that reach the maximum length are encoded again, whole."""
        lengths, limit = longest_of(features), max_tokens(self.setup)
        self.rows += len(rows)
        self.read += int(lengths.sum())
        full = np.flatnonzero(lengths >= limit).tolist()
        if full and len(features) <= len(rows) and not reads_windows(self.setup.recipe):
            long, complete, _ = find_long([rows[features[number]["row"]] for number in full], self.encode, self.setup)
            self.long += len(long)
            self.lost_tokens += int((complete - limit).clip(0).sum())

    def say(self) -> None:
        """Say how much is lost, if anything is."""
        if self.long:
            many = f"{share_of(self.long, self.rows)} rows are longer than {max_tokens(self.setup):,} tokens"
            say_once(
                f"{many} and truncated: {self.lost_tokens / (self.read + self.lost_tokens):.1%} of all tokens are lost"
            )


def find_long(rows: Sequence[Row], encode: Encode, setup: Setup) -> tuple[list[int], Numbers, Sequence[Feature]]:
    """Encode rows without a maximum length.

    Returns:
        Indices of the rows that are longer than the recipe's maximum; the tokens of all rows, (features,); and the
        features.

    Raises:
        DataError: If a row cannot be encoded.
    """
    tokenizer = copy.copy(setup.tokenizer)
    tokenizer.model_max_length = _UNENDING
    unending = replace(setup, tokenizer=tokenizer, recipe=setup.recipe.changed("training", max_length=_UNENDING))
    features = encode(rows, unending)
    lengths = np.array([max(text_lengths(feature)) for feature in features])
    long = [features[index]["row"] for index in np.flatnonzero(lengths > max_tokens(setup)).tolist()]
    return long, lengths, features


def find_lost_answers(features: Sequence[Feature], rows: Sequence[Row], max_length: int) -> list[int]:
    """Return the indices of the rows whose answer is in no window as a whole, or has more than `max_length` tokens."""
    answered = {
        feature["row"]
        for feature in features
        if feature.get("end_positions", 0) and feature["end_positions"] - feature["start_positions"] < max_length
    }
    return [number for number, row in enumerate(rows) if row["answers"]["text"] and number not in answered]


def describe_lost_gold(lost_count: int, count: int, options: Mapping[str, Any]) -> str:
    """Describe the rows whose gold value cannot be predicted, by the options of their task family."""
    more = " or options.max_answer_length" if "max_answer_length" in options else ""
    return f"{share_of(lost_count, count)} rows lose gold answers beyond the maximum length{more}"


def find_unread_words(features: Sequence[Feature], rows: Sequence[Row], setup: Setup) -> list[int]:
    """Return the indices of the rows with a tagged word that is read off in no window."""
    words: dict[int, set[Any]] = {}
    for feature in features:
        words.setdefault(feature["row"], set()).update(feature["words"])
    return [
        number
        for number, row in enumerate(rows)
        if any(tag is not None and word not in words.get(number, ()) for word, tag in enumerate(row["tags"]))
    ]
