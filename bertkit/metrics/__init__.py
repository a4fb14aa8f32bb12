"""Metrics, and what helps to judge them: intervals, calibration, entities and answers."""

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Numbers: TypeAlias = "np.ndarray[Any, Any]"
"""An array of any shape and dtype."""

LabeledSpan = tuple[int, int, str]
"""First character of a text, last + 1, and the label of what is between."""
