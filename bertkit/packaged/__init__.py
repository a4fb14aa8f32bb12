"""Packaged models: folders and wheels that predict with a runtime, tokenizers and numpy alone."""
