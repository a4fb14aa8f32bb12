"""Rows as token ids, and back; tokenizers, and how they are trained."""
