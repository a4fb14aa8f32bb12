"""Which layers of a frozen encoder a small head may read, and what heads there are; `bertkit.heads` builds them."""

from __future__ import annotations

from collections.abc import Mapping

LAYERS: Mapping[str, tuple[slice, str]] = {
    "embeddings": (slice(0, 1), "sum"),
    "last": (slice(-1, None), "sum"),
    "second_to_last": (slice(-2, -1), "sum"),
    "sum_last_four": (slice(-4, None), "sum"),
    "concat_last_four": (slice(-4, None), "concat"),
    "weighted_sum_last_four": (slice(-4, None), "weighted"),
    "weighted_sum": (slice(1, None), "weighted"),
}
"""Name -> which hidden states (the first are the embeddings), and how they make one vector a piece.

The choices are those of Devlin et al. 2019, table 7.
"""

TAGGERS = ("linear", "bilstm")
