"""Encoders that turn a text into one vector, in the folder format of sentence-transformers."""
