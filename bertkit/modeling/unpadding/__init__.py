"""Layers that compute nothing on padding, for batches whose rows differ in length."""
