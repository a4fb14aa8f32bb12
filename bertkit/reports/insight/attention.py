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

_SHARED = "attention_page.js"  # before the script of each page
MOST_BYTES = 1_900_000
"""Size of the numbers on a page, as base64; the page itself has 30 kB."""

_LEVELS = (255, 127, 63, 31)
_SIGNED = 127


def write_attention(file: Path, attended: Any, rollout: np.ndarray, at: tuple[int, int] = (0, 0)) -> None:
    """Write a page that opens from disk with all heads of a text: lines, rollout, queries and keys.

    Weights are square roots in bytes, compressed, so that a page of 144 heads and 128 tokens has less than 2 MB: 255
    levels or, where they are noise that does not compress, as few as 31. Queries and keys are there for as many layers
    as fit.

    Args:
        file: to be written.
        attended: the text, as `bertkit.insight.attention.weights.attend` returns it.
        rollout: (layers, tokens, tokens).
        at: layer and head to begin with; the queries and keys of that layer come first.
    """
    # In the most levels with which they fit; the fewest, where none do.
    for levels in _LEVELS:
        weights, rolled = pack(quantize(attended.weights, levels)), pack(quantize(rollout, levels))
        if len(weights) + len(rolled) <= MOST_BYTES:
            break
    layers, heads, tokens, _ = attended.weights.shape
    has_queries = attended.queries is not None and attended.keys is not None
    data = {
        "tokens": [{"text": token.text, "segment": token.segment} for token in attended.tokens],
        "layers": layers,
        "heads": heads,
        "levels": levels,
        "weights": weights,
        "rollout": rolled,
        "products": _pack_products(attended, MOST_BYTES - len(weights) - len(rolled), at[0]),
        "hasQueries": has_queries,
        "width": 0 if attended.queries is None else attended.queries.shape[-1],
        "layer": at[0],
        "head": at[1],
    }
    write_script_page(
        file,
        "insight/attention.html.j2",
        "attention.js",
        data,
        model=attended.model,
        layers=layers,
        heads=heads,
        tokens=tokens,
        is_pair=any(token.segment == 1 for token in attended.tokens),
        precision=1 / levels,
    )


def write_script_page(file: Path, template: str, script: str, data: Mapping[str, Any], **values: object) -> None:
    """Write a page with a script and the data that it reads."""
    # "<" as an escape of JSON: no text can end the element that holds the data
    embedded = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    write_page(file, template, scripts=(_SHARED, script), data=Markup(embedded), **values)


def quantize(weights: np.ndarray, levels: int) -> np.ndarray:
    """Return the square roots of weights in [0, 1] as bytes: small weights are most, and need the finest steps."""
    rounded: np.ndarray = np.rint(np.sqrt(np.clip(weights, 0, 1)) * levels).astype(np.uint8)
    return rounded


def _pack_products(attended: Any, room: int, first: int) -> dict[int, dict[str, Any]]:
    """Pack queries and keys of as many layers as fit, one byte per number, with the step of each head."""
    if attended.queries is None or attended.keys is None:
        return {}
    packed: dict[int, dict[str, Any]] = {}
    for layer in [first, *(layer for layer in range(len(attended.queries)) if layer != first)]:
        vectors: dict[str, Any] = {}
        for name, values in (("queries", attended.queries[layer]), ("keys", attended.keys[layer])):
            steps = np.maximum(np.abs(values).max(axis=(1, 2)), np.finfo(np.float32).tiny) / _SIGNED
            vectors[name] = pack(np.rint(values / steps[:, None, None]).astype(np.int8))
            vectors[f"{name}Steps"] = [float(f"{step:.6g}") for step in steps]
        room -= sum(map(len, (vectors["queries"], vectors["keys"])))
        if room < 0:
            break
        packed[layer] = vectors
    return packed


def pack(values: np.ndarray) -> str:
    """Return the bytes of an array, compressed by zlib, as base64."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values).tobytes())).decode()
