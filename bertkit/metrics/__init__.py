"""Scores, and what stands behind them."""
