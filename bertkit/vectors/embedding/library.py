"""Models whose vectors others compute: sentence-transformers, where bertkit does not know a module, or a graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import ModelError
from bertkit.hardware.device import find_device
from bertkit.metrics import Numbers
from bertkit.modeling.load import fingerprint, quiet_transformers
from bertkit.modeling.sentence.modules import (
    SentenceModules,
    is_sentence_folder,
    read_modules,
    read_settings,
    unknown_modules,
)
from bertkit.modeling.weights import first_line
from bertkit.recipe.plugins import import_extra
from bertkit.storage.exports import is_exported
from bertkit.storage.fingerprints import json_fingerprint
from bertkit.tokens.features import Tokenizer

if TYPE_CHECKING:
    from bertkit.vectors.embedding.exported import ExportedVectors


def find_unknown(folder: Path) -> list[str]:
    """List what of a model folder only sentence-transformers or a graph computes; mostly nothing."""
    if is_exported(folder):
        return ["the graph of an exported model"]
    return unknown_modules(folder) if is_sentence_folder(folder) else []


def read_known(folder: Path) -> SentenceModules:
    """Read what a model folder says of its vectors, as far as bertkit knows its modules."""
    return read_modules(folder) if is_exported(folder) or not find_unknown(folder) else read_settings(folder)


def open_library(folder: Path, modules: SentenceModules) -> LibraryModel | ExportedVectors:
    """Load what computes the vectors of a folder in bertkit's place; raises as the two classes do."""
    if is_exported(folder):
        from bertkit.vectors.embedding.exported import ExportedVectors

        return ExportedVectors(folder, modules)
    return LibraryModel(folder, modules.max_length)


class LibraryModel:
    """A folder of sentence-transformers, loaded by that library; no code of the folder is run.

    Args:
        folder: of the model.
        max_length: in tokens; None for that of the folder.

    Raises:
        UnavailableError: the library is not installed.
        ModelError: it cannot load the folder.
    """

    def __init__(self, folder: Path, max_length: int | None) -> None:
        quiet_transformers()
        self._folder = folder
        what = "bertkit does not know all of its modules, and sentence-transformers is not installed"
        library = import_extra("sentence_transformers", what, "sentence-transformers", file=folder)
        # or else the folder may name a kernel of the hub, which is code
        attention = {"attn_implementation": "eager"}
        options = {"local_files_only": True, "trust_remote_code": False, "model_kwargs": attention}
        try:
            self._model: Any = library.SentenceTransformer(str(folder), device=find_device().type, **options)
            self._model.truncate_dim = None  # vectors are truncated later
        except Exception as error:  # it raises whatever a damaged file makes it stumble over
            raise ModelError(f"sentence-transformers does not load it: {first_line(error)}", file=folder) from error
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
        folders = [self._folder, *sorted(folder for folder in self._folder.iterdir() if folder.is_dir())]
        return json_fingerprint(list(map(fingerprint, folders)))

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return self._model.tokenizer

    def encode(self, texts: Sequence[str], prompt: str) -> Numbers:
        """Compute the vectors of texts, float32 of shape (texts, dimension)."""
        vectors: Numbers = self._model.encode(list(texts), prompt=prompt, show_progress_bar=False)
        return vectors
