"""Rows: read from files, the hub or the demo grammar, and brought to canonical columns."""
