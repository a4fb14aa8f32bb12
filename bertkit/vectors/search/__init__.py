"""Texts found by a query: an index of vectors and words on disk, and how good its answers are."""
