"""The page about the heads of an encoder: heat maps of their patterns and distances, and the relations they follow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.reports.html import score_text
from bertkit.reports.insight.attention import pack, render_page
from bertkit.storage.files import write_text

_BYTE = 255
_ENTROPY = "entropy"


def write_heads(file: Path, found: Any, patterns: Mapping[str, str]) -> None:
    """Write a page that opens from disk with what `bertkit.insight.attention.heads.measure_heads` has found.

    Args:
        file: to be written.
        found: the measured heads.
        patterns: name of each pattern -> what is attended to.
    """
    distances = np.array(found.distances)
    most = float(distances.max()) or 1.0
    data = {
        "heads": found.heads,
        "count": len(found.measured),
        "most": most,
        "distances": pack(np.rint(distances / most * _BYTE).astype(np.uint8)),
    }
    text = render_page(
        "insight/attention_heads.html.j2", "attention_heads.js", data,
        page=found, maps=_maps(found, patterns), score=score_text,
    )  # fmt: skip
    write_text(file, text)


def _maps(found: Any, patterns: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a heat map per pattern, and one of entropies: rows of cells, each (share of the full color, number)."""
    maps = []
    for name, meaning in patterns.items():
        values = np.array([one.shares[name] for one in found.measured]).reshape(found.layers, found.heads)
        note = f"to {meaning}; uniform attention: {found.uniform[name]:.2f}"
        maps.append({"name": name, "note": note, "rows": _cells(values, values)})
    shape = (found.layers, found.heads)
    entropy = np.array([one.entropy for one in found.measured]).reshape(shape)
    normalized = np.array([one.normalized_entropy for one in found.measured]).reshape(shape)
    note = "in nats; the full color is that of uniform attention"
    return [*maps, {"name": _ENTROPY, "note": note, "rows": _cells(normalized, entropy)}]


def _cells(shares: np.ndarray, values: np.ndarray) -> list[list[tuple[int, str]]]:
    return [
        [(round(100 * share), f"{value:.2f}".removeprefix("0")) for share, value in zip(*row, strict=True)]
        for row in zip(shares.tolist(), values.tolist(), strict=True)
    ]
