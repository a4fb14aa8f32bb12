"""Smaller models: made of layers, heads, neurons and tokens of larger ones, and compared with their inside."""
