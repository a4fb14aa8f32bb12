"""Layers that compute nothing on padding, for batches on a CPU whose rows differ in length."""
