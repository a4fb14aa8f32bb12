"""What predicts without torch: exported graphs, and the program of a package."""

from bertkit.runtime.forward import forward_exported
from bertkit.runtime.model import ExportedModel, open_exported
from bertkit.runtime.tokenizer import ExportedTokenizer, open_tokenizer, tokenizer_settings

__all__ = [
    "ExportedModel",
    "ExportedTokenizer",
    "forward_exported",
    "open_exported",
    "open_tokenizer",
    "tokenizer_settings",
]
