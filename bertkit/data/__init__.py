"""Rows: read from files or the Hub, with canonical columns."""
