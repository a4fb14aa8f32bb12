"""Which layers of an encoder are ranked: their mean, one of them, or the best."""

from __future__ import annotations

from collections.abc import Callable

from bertkit.errors import UsageError
from bertkit.metrics import Numbers

Pool = Callable[[Numbers], Numbers]
"""Turns vectors of all layers, (examples, layers + 1, width), into those that are scored, (examples, width)."""

MEAN, LAST, BEST = "mean", "last", "best"


def check_layers(choice: str) -> str:
    """Return a choice of layers.

    Raises:
        UsageError: it is neither a name nor a number from 0.
    """
    if choice in (MEAN, LAST, BEST) or (choice.isascii() and choice.isdigit()):
        return choice
    raise UsageError(f"--layers {choice}", "give mean, last, best, or the number of a layer; 0 is the embeddings")


def pool_layers(choice: str | int) -> Pool:
    """Return what makes one vector of those of all layers.

    The mean is that of the layers without the output of the embeddings (Garbaciauskas et al. 2024). Of frozen encoders,
    it tells more of what fine-tuning comes to than any single layer.
    """
    if choice == MEAN:
        return lambda vectors: vectors[:, 1:].mean(axis=1)
    number = -1 if choice == LAST else int(choice)
    return lambda vectors: vectors[:, number]


def candidates(choice: str, layers: int) -> list[str | int]:
    """Return what is scored for a choice: every layer for ``best``, else the choice itself."""
    return list(range(1, layers + 1)) if choice == BEST else [choice]
