"""What an explanation is asked for; known before anything heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """What is explained, and how exactly."""

    targets: tuple[str, ...] = ()
    """Names of targets, or the words that they are of; those of the prediction where there are none."""
    baseline: str = "mask"
    """The token that stands for no information: ``mask``, or ``padding``."""
    most_steps: int = 512
