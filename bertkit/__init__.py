"""bertkit: fine-tune, evaluate and use BERT-family encoders."""

__version__ = "0.1.0"
