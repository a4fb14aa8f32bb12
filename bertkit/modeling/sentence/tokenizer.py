"""The tokenizer of a model that makes vectors of texts."""

from __future__ import annotations

from pathlib import Path

from bertkit.modeling.load import fit_tokenizer, load_tokenizer, read_config
from bertkit.modeling.sentence.folder import SentenceModules
from bertkit.modeling.weights import load_config
from bertkit.tokens.features import Tokenizer


def load_sentence_tokenizer(folder: Path, modules: SentenceModules, *, decoders: bool) -> Tokenizer:
    """Load the tokenizer of an encoder's folder; ``model_max_length`` is what texts are truncated to.

    As in sentence-transformers, the length of the modules takes the place of the tokenizer's, but never exceeds what
    the model reads.

    Raises:
        ModelError: as `read_config` and `load_tokenizer`.
    """
    from tokenizers import normalizers

    read_config(folder, decoders=decoders)
    tokenizer = load_tokenizer(folder, decoders=decoders)
    if modules.max_length is not None:
        tokenizer.model_max_length = modules.max_length
        fit_tokenizer(tokenizer, load_config(folder, decoders=decoders))
    if modules.lowercase:
        backend = tokenizer.backend_tokenizer
        rest = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])
    return tokenizer
