"""Exported models and their tokenizers, which run without torch."""

from bertkit.runtime.forward import forward_exported as forward_exported
from bertkit.runtime.model import ExportedModel as ExportedModel
from bertkit.runtime.model import open_exported as open_exported
from bertkit.runtime.tokenizer import open_tokenizer as open_tokenizer
from bertkit.runtime.tokenizer import tokenizer_settings as tokenizer_settings
