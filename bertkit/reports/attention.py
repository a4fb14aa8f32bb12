"""The pages about attention: one text with all heads, and the heads of an encoder measured over a file."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from bertkit.reports.templates import write_page

WARNING = Markup(
    "Attention shows what heads read, but it does not explain an answer. <code>bertkit explain</code> shows what each "
    "word adds to an answer."
)
_LEVELS = 255


def write_attention(file: Path, attention: Any, first_head: tuple[int, int] = (0, 0)) -> None:
    """Write a page that opens from disk: all heads of a text, and attention rollout.

    Weights are stored as their square roots, one compressed byte per weight: a page of 144 heads and 128 tokens has at
    most 3.3 MB.

    Args:
        file: Page to write.
        attention: Result of `bertkit.analysis.attention.attend`.
        first_head: Layer and head that the page shows first.
    """
    layers, heads, tokens, _ = attention.weights.shape
    data = {
        "tokens": [{"text": token.text, "segment": token.segment} for token in attention.tokens],
        "layers": layers,
        "heads": heads,
        "weights": pack(attention.weights),
        "rollout": pack(attention.rollout),
        "layer": first_head[0],
        "head": first_head[1],
    }
    # Escape "<", so that no text can end the element that holds the data.
    embedded = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    write_page(
        file,
        "attention.html.j2",
        scripts=("attention.js",),
        data=Markup(embedded),
        model=attention.model,
        warning=WARNING,
        layers=layers,
        heads=heads,
        tokens=tokens,
        is_pair=any(token.segment == 1 for token in attention.tokens),
        precision=1 / _LEVELS,
    )


def pack(weights: np.ndarray) -> str:
    """Return the square roots of weights in [0, 1] as bytes, compressed by zlib, as base64."""
    # The weights 0.0001, 0.01, 0.25 and 1 become 3, 26, 128 and 255. Most weights are small: without the square root,
    # 0.0001 would be rounded to 0.
    levels = np.rint(np.sqrt(np.clip(weights, 0, 1)) * _LEVELS).astype(np.uint8)
    return base64.b64encode(zlib.compress(levels.tobytes())).decode()


def write_heads(file: Path, result: Any, patterns: Mapping[str, str]) -> None:
    """Write a page that opens from disk with the heads of an encoder.

    Args:
        file: Page to write.
        result: Result of `bertkit.analysis.attention_heads.measure_heads`.
        patterns: Name of a pattern -> description of the tokens that it attends to.
    """
    write_page(file, "attention_heads.html.j2", page=result, patterns=patterns, warning=WARNING)
