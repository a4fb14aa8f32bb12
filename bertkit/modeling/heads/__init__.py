"""Model heads that transformers lacks for a model type, and changes to transformers' own heads."""
