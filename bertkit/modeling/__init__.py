"""Code that depends on the internals of transformers models: loading, heads, layers and speed patches."""
