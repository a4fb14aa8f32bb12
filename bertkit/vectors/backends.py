"""Backends that compute vectors instead of bertkit's encoder: sentence-transformers, or the graph of an export.

sentence-transformers computes folders with modules that bertkit does not know. The graph of an exported model pools,
transforms and normalizes, as the model did.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import ModelError, UsageError
from bertkit.hardware.device import find_device
from bertkit.modeling.checkpoint import fingerprint, quiet_transformers, shorten_error
from bertkit.modeling.sentence.folder import DENSE, SentenceModules, find_format
from bertkit.recipe.plugins import import_extra
from bertkit.runtime.forward import forward_exported
from bertkit.runtime.model import ExportedModel
from bertkit.runtime.sessions import PACKAGES, open_graph
from bertkit.runtime.tokenizer import open_tokenizer
from bertkit.storage.exports import VECTORS, listed_files, read_export
from bertkit.storage.fingerprints import json_fingerprint
from bertkit.tokens.features import Features, Tokenizer, pad_features
from bertkit.vectors.batches import count_prompt_tokens, tokenize


class LibraryModel:
    """A folder of sentence-transformers, loaded by that library; no code of the folder is run.

    Args:
        folder: Model folder.
        max_length: Maximum tokens per text, or None for the folder's.

    Raises:
        UnavailableError: If the library is not installed.
        ModelError: If it cannot load the folder.
    """

    def __init__(self, folder: Path, max_length: int | None) -> None:
        quiet_transformers()
        self._folder = folder
        message = "bertkit does not know all of its modules, and sentence-transformers is not installed"
        library = import_extra("sentence_transformers", message, "sentence-transformers", file=folder)
        # With another attention, the folder could name a kernel on the Hub, which is code.
        attention = {"attn_implementation": "eager"}
        options = {"local_files_only": True, "trust_remote_code": False, "model_kwargs": attention}
        try:
            self._model: Any = library.SentenceTransformer(str(folder), device=find_device().type, **options)
            self._model.truncate_dim = None  # vectors are truncated later
        except Exception as error:  # A damaged file can cause any error.
            raise ModelError(f"sentence-transformers does not load it: {shorten_error(error)}", file=folder) from error
        if max_length is not None:
            self._model.max_seq_length = max_length

    @property
    def precision(self) -> tuple[str, str]:
        """The precision that it computes in, and why."""
        import sentence_transformers

        return "fp32", f"computed by sentence-transformers {sentence_transformers.__version__}"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the configs, weights and vocabularies of all modules."""
        # sentence-transformers keeps each module in a subfolder.
        folders = [self._folder, *sorted(folder for folder in self._folder.iterdir() if folder.is_dir())]
        return json_fingerprint(list(map(fingerprint, folders)))

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return self._model.tokenizer

    def encode(self, texts: Sequence[str], prompt: str) -> np.ndarray:
        """Compute the vectors of texts, float32 of shape (texts, dimension)."""
        vectors: np.ndarray = self._model.encode(list(texts), prompt=prompt, show_progress_bar=False)
        return vectors


class ExportedVectors:
    """A graph whose outputs are vectors of texts, with its tokenizer; torch is not imported.

    Args:
        folder: Folder of the exported model.
        modules: Its modules, with the requested length.

    Raises:
        ModelError: If its graph does not make vectors of texts.
        UsageError: If it cannot read texts of this length.
        UnavailableError: If the package that runs it is not installed.
    """

    def __init__(self, folder: Path, modules: SentenceModules) -> None:
        export = read_export(folder)
        if export.reads != "texts" or not set(VECTORS) & set(export.outputs) or find_format(folder) != DENSE:
            message = f"it was exported for {export.task}, and its graph makes no vectors of texts"
            raise ModelError(message, "name a model that was trained for vectors", file=folder)
        self._folder, self._export, self._modules = folder, export, modules
        self.tokenizer: Any = open_tokenizer(folder, export.tokenizer)
        limit = self.tokenizer.model_max_length
        if (modules.max_length or 0) > limit:
            raise UsageError(f"a length of {modules.max_length:,} tokens", f"the model reads {limit:,}", file=folder)
        self.tokenizer.model_max_length = modules.max_length or limit
        self._model = ExportedModel(export, open_graph(folder / export.file, export.backend, export.precision))

    @property
    def precision(self) -> tuple[str, str]:
        """The precision that it computes in, and why."""
        return self._export.precision, f"computed by {PACKAGES[self._export.backend]}, as it was exported"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the checksums of all files."""
        return json_fingerprint(listed_files(self._folder))

    def encode(self, texts: Sequence[str], prompt: str) -> np.ndarray:
        """Compute the vectors of texts, float32 of shape (texts, dimension).

        Raises:
            ModelError: If the model does not pool the tokens of prompts, which a graph cannot leave out.
            UsageError: If the prompt leaves no token for a text.
        """
        # A graph has no input for the number of prompt tokens, so it pools them like all others.
        if count_prompt_tokens(self.tokenizer, prompt) and not self._modules.include_prompt:
            message = "its pooling leaves out the tokens of prompts, which a graph cannot"
            raise ModelError(message, "name the model that it was exported from", file=self._folder)
        prompted = [f"{prompt}{text}" for text in texts]
        if self._modules.lowercase:
            prompted = [text.lower() for text in prompted]
        features = tokenize(prompted, self.tokenizer)
        lengths = [len(feature["input_ids"]) for feature in features]
        outputs = forward_exported(self._model, features, lengths, self._collate)
        return np.stack([output["vectors"] for output in outputs])

    def _collate(self, features: Features) -> dict[str, Any]:
        padding = {"input_ids": self.tokenizer.pad_token_id, "token_type_ids": self.tokenizer.pad_token_type_id}
        return pad_features(features, padding, self.tokenizer.model_max_length)
