"""Metrics, and what helps to judge them: intervals, calibration, entities and answers."""
