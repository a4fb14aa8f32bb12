"""Attention rollout: how much of each input token arrives at each position, if only attention moved it."""

from __future__ import annotations

import numpy as np


def roll_out(weights: np.ndarray) -> np.ndarray:
    """Compute the attention rollout up to each layer (Abnar and Zuidema 2020, section 3).

    Each layer is the mean of its heads, half of it attention and half the residual connection. The layers up to one are
    multiplied. It knows nothing of values, feed-forwards or norms.

    Args:
        weights: (layers, heads, tokens, tokens).

    Returns:
        (layers, tokens, tokens): for each position, the shares of the input tokens, which add up to 1.
    """
    means = weights.mean(axis=1, dtype=np.float64)
    mixed = (means + np.eye(weights.shape[-1])) / 2
    mixed /= mixed.sum(axis=-1, keepdims=True)
    rolled = [mixed[0]]
    for layer in mixed[1:]:
        rolled.append(layer @ rolled[-1])
    return np.stack(rolled)


def entropies(weights: np.ndarray) -> np.ndarray:
    """Compute the mean entropy of each head in nats, (layers, heads), over all tokens of a text.

    Args:
        weights: (layers, heads, tokens, tokens).
    """
    logs = np.log(np.maximum(weights, np.finfo(np.float32).tiny))
    return np.asarray(-(weights * logs).sum(axis=-1).mean(axis=-1))
