"""Smaller models that copy layers, heads, neurons or tokens of larger models, or learn from their hidden states."""
