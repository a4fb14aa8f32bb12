"""Gold values that no feature has, because the text around them does not fit the model."""

from __future__ import annotations

from typing import Any

from bertkit.tokens.features import Features, Rows


def find_lost_answers(features: Features, rows: Rows) -> list[int]:
    """Return the indices of the rows whose answer is whole in no window of their text."""
    found = {feature["row"] for feature in features if feature.get("end_positions", 0)}
    return [number for number, row in enumerate(rows) if row["answers"]["text"] and number not in found]


def find_unread_words(features: Features, rows: Rows) -> list[int]:
    """Return the indices of the rows with a tagged word that is read off in no window."""
    words: dict[int, set[Any]] = {}
    for feature in features:
        words.setdefault(feature["row"], set()).update(feature["words"])
    return [
        number
        for number, row in enumerate(rows)
        if any(tag is not None and word not in words.get(number, ()) for word, tag in enumerate(row["tags"]))
    ]
