"""Internals of transformers models: loading, heads, layers and speed patches."""
