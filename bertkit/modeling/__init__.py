"""All that knows the inside of a transformers model: heads, layers, speed paths."""
