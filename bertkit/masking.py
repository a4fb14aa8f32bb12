"""Which pieces of a text are hidden from a model, and what stands in their place."""
