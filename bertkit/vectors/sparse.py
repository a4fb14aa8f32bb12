"""Texts to sparse vectors, with a model that is loaded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.errors import UsageError, did_you_mean
from bertkit.evaluation.checkpoint import Checkpoint, find_checkpoint
from bertkit.evaluation.scoring import run_model
from bertkit.modeling.sentence.folder import SPARSE
from bertkit.modeling.sentence.texts import encode_rows
from bertkit.progress import Progress, with_progress
from bertkit.recipe.load import load_recipe
from bertkit.tasks.sparse import as_matrix

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True)
class SparseEmbedder:
    """A model that turns texts into sparse vectors, one dimension per token of its vocabulary.

    The product of two vectors measures how well two texts match, so a product of sparse matrices is a search. Called
    with a batch of columns, the embedder returns the batch with two more columns, as ``datasets.map`` requires.

    Examples:
        >>> embedder = SparseEmbedder("runs/sparse")  # doctest: +SKIP
        >>> documents = embedder.encode(["The cat sleeps.", "A dog barks."])  # doctest: +SKIP
        >>> (embedder.encode(["Who sleeps?"], "query") @ documents.T).toarray()  # doctest: +SKIP
        array([[8.31, 0.42]])
    """

    model: str
    """Run folder of the recipe ``sparse``, folder of a SparseEncoder, or Hub name."""
    precision: str = "auto"
    column: str = "text"
    """Column of a batch with the texts."""
    role: str = "document"
    """Role of the texts of a batch: ``query`` or ``document``."""

    @cached_property
    def _loaded(self) -> Checkpoint:
        recipe = load_recipe("sparse", {"model": self.model, "training.precision": self.precision})
        return find_checkpoint(recipe).load(inference=True)

    @with_progress
    def encode(self, texts: Sequence[str], role: str = "document", *, progress: Progress | None = None) -> csr_array:
        """Compute the vectors of texts, of shape (texts, vocabulary).

        Raises:
            ModelError: If the model is not a sparse encoder.
            UsageError: If the role is unknown.
        """
        from scipy.sparse import csr_array, vstack

        if role not in ("query", "document"):
            raise UsageError(f"role {role!r}", did_you_mean(role, ("query", "document")))
        width = self._loaded.model.config.vocab_size
        if not len(texts):
            return csr_array((0, width), dtype=np.float64)
        rows = [[text] for text in texts]
        features = encode_rows(rows, self._loaded.context, (role, role), model_format=SPARSE)
        table = getattr(self._loaded.model, "query_table", None)
        if role == "query" and table is not None:
            tokens = (np.unique(feature["input_ids"][0])[None] for feature in features)
            return vstack([as_matrix(table.numpy()[ids], ids, width) for ids in tokens], "csr")
        outputs, _ = run_model(self._loaded, features, f"reading {role} texts")
        return vstack([as_matrix(output["values"], output["tokens"], width) for output in outputs], "csr")

    def words(self, vector: csr_array, count: int = 10) -> dict[str, float]:
        """Return the tokens of the highest values of a vector, one row of what `encode` returns."""
        best = np.argsort(-vector.data, kind="stable")[:count]
        tokens = self._loaded.context.tokenizer.convert_ids_to_tokens(vector.indices[best].tolist())
        return dict(zip(tokens, vector.data[best].tolist(), strict=True))

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch of columns with the ``indices`` and the ``values`` of its texts' vectors."""
        vectors = self.encode(list(batch[self.column]), self.role)
        # `indptr` of a matrix in CSR format has the end of each row in `indices` and `data`.
        indices, values = (np.split(part, vectors.indptr[1:-1]) for part in (vectors.indices, vectors.data))
        return {**batch, "indices": [part.tolist() for part in indices], "values": [part.tolist() for part in values]}

    def __getstate__(self) -> dict[str, Any]:
        """Return only the options, so that another process loads the model itself."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}
