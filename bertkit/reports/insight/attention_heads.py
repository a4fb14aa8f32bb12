"""The page about the heads of an encoder: their mean attention over the rows of a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.reports.insight.attention import pack, write_script_page
from bertkit.reports.text import score_text

_BYTE = 255
_ENTROPY = "entropy"


def write_heads(file: Path, result: Any, patterns: Mapping[str, str]) -> None:
    """Write a page that opens from disk with what `bertkit.insight.attention.heads.measure_heads` has found.

    Args:
        file: to be written.
        result: the measured heads.
        patterns: name of each pattern -> what is attended to.
    """
    distances = np.array(result.distances)
    most = float(distances.max()) or 1.0
    data = {
        "heads": result.heads,
        "count": len(result.measured),
        "most": most,
        "distances": pack(np.rint(distances / most * _BYTE).astype(np.uint8)),
    }
    # A heat map per pattern, and one of entropies: rows of cells, each (share of the full color, number).
    shape, maps = (result.layers, result.heads), []
    for name, meaning in patterns.items():
        shares = np.array([head.shares[name] for head in result.measured]).reshape(shape)
        note = f"to {meaning}; uniform attention: {result.uniform[name]:.2f}"
        maps.append({"name": name, "note": note, "rows": _cells(shares, shares)})
    entropy = np.array([head.entropy for head in result.measured]).reshape(shape)
    normalized = np.array([head.normalized_entropy for head in result.measured]).reshape(shape)
    note = "in nats; the full color is that of uniform attention"
    maps.append({"name": _ENTROPY, "note": note, "rows": _cells(normalized, entropy)})
    template = "insight/attention_heads.html.j2"
    write_script_page(file, template, "attention_heads.js", data, page=result, maps=maps, score=score_text)


def _cells(shares: np.ndarray, values: np.ndarray) -> list[list[tuple[int, str]]]:
    return [
        [(round(100 * share), f"{value:.2f}".removeprefix("0")) for share, value in zip(*row, strict=True)]
        for row in zip(shares.tolist(), values.tolist(), strict=True)
    ]
