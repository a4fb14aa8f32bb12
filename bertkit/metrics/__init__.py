"""Metrics, and what helps to judge them: intervals, calibration, entities and answers."""

LabeledSpan = tuple[int, int, str]
"""First character of a text, last + 1, and the label of what is between."""
