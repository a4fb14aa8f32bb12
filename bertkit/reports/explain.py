"""A page with explained rows: each word in the color of what it adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.reports.templates import write_page

METHODS = {"integrated_gradients": "integrated gradients", "occlusion": "masked one by one"}
_CLOSING = frozenset(".,;:!?)]}%’”")


def write_explanations(file: Path, records: Sequence[Mapping[str, Any]], *, model: str) -> None:
    """Write a page that opens from disk with what `bertkit explain --json` lists."""
    complete = all(explained["is_complete"] for record in records for explained in record["explanations"])
    write_page(file, "explain.html.j2", model=model, rows=list(map(_paint_record, records)), complete=complete)


def _paint_record(record: Mapping[str, Any]) -> dict[str, Any]:
    explanations = [
        {**explained, "methods": [(title, paint(explained["words"], method)) for method, title in METHODS.items()]}
        for explained in record["explanations"]
    ]
    return {"gold": None, **record, "explanations": explanations}


def paint(words: Iterable[Mapping[str, Any]], method: str) -> list[list[dict[str, Any]]]:
    """Return the words of each text with their value, its share of the largest, and whether a space comes before."""
    listed = list(words)
    # Colors are relative to the strongest word of the row, because scores of different rows have different sizes.
    largest = max((abs(word[method]) for word in listed), default=0.0) or 1.0
    texts: list[list[dict[str, Any]]] = []
    for index, word in enumerate(listed):
        begins = index == 0 or word["segment"] != listed[index - 1]["segment"]
        if begins:
            texts.append([])
        texts[-1].append(
            {
                "word": word["word"],
                "value": f"{word[method]:+.4f}",
                "share": round(100 * abs(word[method]) / largest),
                "sign": "against" if word[method] < 0 else "for",
                "space": not begins and word["word"] not in _CLOSING,
            }
        )
    return texts
