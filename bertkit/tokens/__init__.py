"""Rows as token ids and back, and the training of tokenizers."""
