"""Look inside: what a tokenizer makes of texts, what a model gets wrong, and why it answers as it does."""
