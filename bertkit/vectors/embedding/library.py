"""Models that sentence-transformers itself computes, since bertkit does not know their modules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import ModelError, UnavailableError

if TYPE_CHECKING:
    import numpy as np


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
        from bertkit.modeling.load import quiet_transformers
        from bertkit.modeling.weights import first_line

        quiet_transformers()
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            what = "bertkit does not know all of its modules, and sentence-transformers is not installed"
            raise UnavailableError(what, "pip install 'bertkit[sentence-transformers]'", file=folder) from None
        try:
            self._model: Any = SentenceTransformer(str(folder), local_files_only=True, trust_remote_code=False)
            self._model.truncate_dim = None  # vectors are truncated later
        except Exception as error:  # it raises whatever a damaged file makes it stumble over
            raise ModelError(f"sentence-transformers does not load it: {first_line(error)}", file=folder) from error
        if max_length is not None:
            self._model.max_seq_length = max_length

    @property
    def version(self) -> str:
        """The version of the library."""
        import sentence_transformers

        return str(sentence_transformers.__version__)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        return self._model.tokenizer

    def encode(self, texts: Sequence[str], prompt: str) -> np.ndarray[Any, Any]:
        """Compute the vectors of texts, float32 of shape (texts, dimension)."""
        vectors: np.ndarray[Any, Any] = self._model.encode(list(texts), prompt=prompt, show_progress_bar=False)
        return vectors
