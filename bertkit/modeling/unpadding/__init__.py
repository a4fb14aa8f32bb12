"""Training and inference that compute nothing on padding, for batches whose rows differ in length."""
