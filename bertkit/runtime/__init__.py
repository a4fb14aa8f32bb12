"""Exported models: run by ONNX Runtime or OpenVINO with the `tokenizers` library, without torch or transformers."""

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
