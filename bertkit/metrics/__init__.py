"""Metrics and their uncertainty: scores, confidence intervals, significance tests and calibration."""

LabeledSpan = tuple[int, int, str]
"""(start, end, label): the characters `start` to `end` - 1 of a text have the label."""
