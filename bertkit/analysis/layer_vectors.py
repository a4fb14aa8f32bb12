"""Vectors of texts or words at every layer of an encoder, computed in one pass and cached on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from bertkit.errors import DataError, ModelError
from bertkit.modeling.checkpoint import load_config
from bertkit.progress import SILENT, get_progress, stage, use_progress
from bertkit.recipe.sections import Row
from bertkit.storage.cache import cache_folder
from bertkit.storage.disk import ArrayWriter, map_or_write
from bertkit.storage.files import disk_errors
from bertkit.storage.fingerprints import json_fingerprint
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.units import UNITS, UnitVectors

_SCHEMA = 2  # version of the files
_ROWS_AT_ONCE = 256  # rows whose vectors are in memory at the same time
_PAIRS_AT_ONCE = 32  # pairs whose hidden states of all tokens are in memory at the same time


@dataclass(frozen=True)
class LayerVectors:
    """Vectors of units (texts or words) at every layer, with the row and word of each unit."""

    vectors: np.ndarray
    """Memory-mapped float32 of shape (vectors, layers + 1, width); layer 0 is the output of the embeddings."""
    rows: np.ndarray
    """Row index of each vector, ascending, (vectors,)."""
    index: np.ndarray
    """Index of each vector's word in its row, 0 for texts and pairs, (vectors,)."""

    @property
    def layers(self) -> int:
        """The number of layers, without the embeddings."""
        return int(self.vectors.shape[1]) - 1

    def at(self, layer: int) -> np.ndarray:
        """Copy the vectors of one layer into memory. Shape: (vectors, width)."""
        return np.ascontiguousarray(self.vectors[:, layer])


@dataclass(frozen=True)
class LayerReader:
    """Encoder whose vectors at all layers are computed, or read from the cache without loading the encoder."""

    model: str
    """Model folder, run folder, folder of sentence-transformers, Hub name, or ``demo``."""
    max_length: int | None = None
    """Maximum tokens of a text, and of a window of words, or None for the maximum of the model folder."""
    precision: str = "auto"

    @cached_property
    def embedder(self) -> Embedder:
        """Embedder that computes mean-pooled vectors of all layers, concatenated.

        Raises:
            ModelError: If the folder has modules that only sentence-transformers computes.
        """
        base = Embedder(self.model, max_length=self.max_length, precision=self.precision)
        if base.unknown:
            message = f"the model has custom modules: {', '.join(base.unknown)}"
            raise ModelError(message, "name another encoder", file=base.folder)
        embedder = replace(base, prefix="", layers="concat_all")
        # Leave out modules after the pooling, such as dense layers, which fit only vectors of the last layer.
        modules = replace(base.modules, pooling=("mean",), transforms=(), dimension=None)
        embedder.__dict__.update(folder=base.folder, unknown=[], modules=modules)
        return embedder

    def read(self, rows: Sequence[Row], unit: str) -> LayerVectors:
        """Compute the vectors of rows, or read them from the cache.

        The vector of a text or a pair is the mean of the hidden states of its tokens, including special tokens. The
        vector of a word is the mean over the tokens of the word. Long texts are truncated; long lists of words are read
        in windows.

        Args:
            rows: Rows with the canonical columns ``text``; ``text`` and ``text_pair``; ``tokens``; or ``tokens`` (or
                ``text``) and ``target``.
            unit: Unit of a vector: ``text``, ``pair`` of texts, each ``word`` of a row, or its ``target``.

        Raises:
            DataError: If a column of a row is missing or has another form.
            ModelError: If the model is damaged, or a hidden state is not finite.
        """
        read, encode = _UNITS[unit]
        inputs = [read(row) for row in rows]
        # The key covers everything that vectors depend on, so other probes and rankings can share them.
        key = json_fingerprint([_SCHEMA, unit, [self.embedder.describe(), self.precision], inputs])
        folder = cache_folder("layers") / key

        def write() -> None:
            dtypes = {"vectors": "<f4", "rows": "<i8", "index": "<i8"}
            with ArrayWriter(folder, dtypes) as writer, stage("reading all layers", len(inputs)):
                for first in range(0, len(inputs), _ROWS_AT_ONCE):
                    for name, values in encode_rows(first).items():
                        writer.append(name, values)
                    get_progress().update(min(first + _ROWS_AT_ONCE, len(inputs)), {})
                writer.finish({})

        def encode_rows(first: int) -> dict[str, np.ndarray]:
            with use_progress(SILENT):
                encoded = encode(self.embedder, inputs[first : first + _ROWS_AT_ONCE])
            word_indices = encoded.columns.get("index", [0] * len(encoded.rows))
            # The embedder concatenates all layers: (vectors, (layers + 1) * width).
            width = int(load_config(self.embedder.folder / self.embedder.modules.subfolder).hidden_size)
            vectors = encoded.vectors.reshape(len(word_indices), encoded.vectors.shape[1] // width, width)
            return {"vectors": vectors, "rows": np.asarray(encoded.rows) + first, "index": np.asarray(word_indices)}

        with disk_errors(folder):
            arrays, _ = map_or_write(folder, write)
        return LayerVectors(**arrays)


def _read_pair(row: Row) -> tuple[str, str]:
    texts = row["text"], row["text_pair"]
    if not all(isinstance(text, str) for text in texts):
        raise DataError("both texts of a pair must be strings", "correct the row")
    return texts


def _encode_pairs(embedder: Embedder, pairs: Sequence[tuple[str, str]]) -> UnitVectors:
    """Compute the mean hidden state of the tokens of each pair; the longer text of a pair is truncated."""
    encoded = embedder.tokenizer(
        [first for first, _ in pairs],
        [second for _, second in pairs],
        truncation="longest_first",
        return_attention_mask=False,
        split_special_tokens=True,
    )
    features = [{name: values[index] for name, values in encoded.items()} for index in range(len(pairs))]
    vectors = []
    for start in range(0, len(features), _PAIRS_AT_ONCE):
        states = embedder.states(features[start : start + _PAIRS_AT_ONCE])
        vectors += [token_states.mean(axis=0) for token_states in states]
    return UnitVectors(np.stack(vectors), range(len(pairs)))


_UNITS: Mapping[str, tuple[Callable[[Row], Any], Callable[..., UnitVectors]]] = {
    **{name: (UNITS[name].read, UNITS[name].encode) for name in ("text", "word", "target")},
    "pair": (_read_pair, _encode_pairs),
}
