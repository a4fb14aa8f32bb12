"""Encoders that turn texts into vectors, in the folder formats of sentence-transformers."""
