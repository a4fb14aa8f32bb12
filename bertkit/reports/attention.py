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


def write_attention(file: Path, attended: Any, rollout: np.ndarray, at: tuple[int, int] = (0, 0)) -> None:
    """Write a page that opens from disk with all heads of a text: lines and rollout.

    Weights are square roots in bytes, compressed: a page of 144 heads and 128 tokens has at most 3.3 MB.

    Args:
        file: Page to write.
        attended: The text, as `bertkit.analysis.attention.attend` returns it.
        rollout: (layers, tokens, tokens).
        at: Layer and head to begin with.
    """
    layers, heads, tokens, _ = attended.weights.shape
    data = {
        "tokens": [{"text": token.text, "segment": token.segment} for token in attended.tokens],
        "layers": layers,
        "heads": heads,
        "weights": pack(attended.weights),
        "rollout": pack(rollout),
        "layer": at[0],
        "head": at[1],
    }
    # "<" is escaped, so no text can end the element that holds the data.
    embedded = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    write_page(
        file,
        "attention.html.j2",
        scripts=("attention.js",),
        data=Markup(embedded),
        model=attended.model,
        warning=WARNING,
        layers=layers,
        heads=heads,
        tokens=tokens,
        is_pair=any(token.segment == 1 for token in attended.tokens),
        precision=1 / _LEVELS,
    )


def pack(weights: np.ndarray) -> str:
    """Return the square roots of weights in [0, 1] as bytes, compressed by zlib, as base64."""
    # The weights 0.0001, 0.01, 0.25 and 1 become 3, 26, 128 and 255. Most weights are small, and need the finest steps:
    # without the square root, 0.0001 would become 0, like the weight of a token that is never read.
    levels = np.rint(np.sqrt(np.clip(weights, 0, 1)) * _LEVELS).astype(np.uint8)
    return base64.b64encode(zlib.compress(levels.tobytes())).decode()


def write_heads(file: Path, result: Any, patterns: Mapping[str, str]) -> None:
    """Write a page that opens from disk with the heads of an encoder.

    Args:
        file: Page to write.
        result: The measured heads, as `bertkit.analysis.attention_heads.measure_heads` returns them.
        patterns: Name of each pattern -> description of the tokens that are attended to.
    """
    write_page(file, "attention_heads.html.j2", page=result, patterns=patterns, warning=WARNING)
