"""Vectors of texts: computed, searched, compared, clustered."""
