"""Groups of similar vectors: found, named by their words, kept, and drawn."""
