"""Rows as token ids, and back."""
