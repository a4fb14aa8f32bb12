"""Scoring of models and comparison of runs."""
