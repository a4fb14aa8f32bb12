"""Look inside: what a tokenizer makes of texts, and what a model gets wrong."""
