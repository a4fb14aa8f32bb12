"""Exported models, which read the same batches as the original model and return the same outputs.

The graph reads arrays of texts, of shape (texts, tokens). If rows have several texts, of shape (rows, texts, tokens),
they are split into texts for the graph, and the outputs are joined to rows again. How depends on ``reads``:

=========== =====================================================================
text        one text per row; a long text is several windows, with logits for each
windows     the graph reads all windows of a row, so nothing is split
choices     one logit per text, so a row has the logits of its choices
passages    as choices if rows are lists of passages, as text otherwise
texts       a vector per text, or a matrix with a vector per token
sparse      a number per text and vocabulary entry, most of them 0
=========== =====================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.runtime.sessions import RunGraph, open_graph
from bertkit.storage.exports import VECTORS, Export, read_export

Arrays = dict[str, np.ndarray[Any, Any]]

_MIN_LOGIT = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class ExportedModel:
    """Graph that is called with a batch of arrays and returns arrays."""

    export: Export
    run_graph: RunGraph

    def __call__(self, batch: Mapping[str, Any]) -> Arrays:
        """Return the outputs of a batch: name -> array, whose first axis is the rows."""
        texts = {name: batch[name] for name in self.export.inputs}
        if texts["input_ids"].ndim == 2 or self.export.reads == "windows":
            return self._finish(self._compute(texts))
        # Rows with fewer texts are padded with texts of one token; real texts have more (see `multi_text_collator`).
        lengths = batch["attention_mask"].sum(axis=-1)
        is_text = lengths > 1
        outputs = self._compute({name: values[is_text][:, : lengths.max()] for name, values in texts.items()})
        return self._finish(_JOIN_TEXTS[self.export.reads](outputs, is_text))

    def _compute(self, texts: Arrays) -> Arrays:
        return {"vectors" if name in VECTORS else name: values for name, values in self.run_graph(texts).items()}

    def _finish(self, outputs: Arrays) -> Arrays:
        if not self.export.probabilities:
            return outputs
        # The sigmoid of the logits, without overflow for large ones.
        return outputs | {"probabilities": np.exp(-np.logaddexp(0, -outputs["logits"]))}


def open_exported(folder: Path) -> ExportedModel:
    """Load the graph of an exported folder.

    Raises:
        ModelError: If the manifest is damaged, or the backend cannot load the graph.
        UnavailableError: If the backend is not installed.
    """
    export = read_export(folder)
    return ExportedModel(export, open_graph(folder / export.file, export.backend, export.precision))


def _fill_rows(values: np.ndarray[Any, Any], is_text: np.ndarray[Any, Any], fill: float) -> np.ndarray[Any, Any]:
    """Arrange the values of texts in rows. Shapes: (texts, ...) to (rows, texts per row, ...).

    >>> is_text = np.array([[True, True], [True, False]])  # a row of two texts, and a row of one
    >>> _fill_rows(np.array([1.0, 2.0, 3.0]), is_text, fill=-1).tolist()
    [[1.0, 2.0], [3.0, -1.0]]
    """
    rows = np.full((*is_text.shape, *values.shape[1:]), fill, dtype=np.float32)
    rows[is_text] = values
    return rows


def _join_windows(outputs: Arrays, is_text: np.ndarray[Any, Any]) -> Arrays:
    return {"logits": _fill_rows(outputs["logits"], is_text, np.nan), "windows": is_text.sum(axis=1)}


def _join_choices(outputs: Arrays, is_text: np.ndarray[Any, Any]) -> Arrays:
    return {"logits": _fill_rows(outputs["logits"][:, 0], is_text, _MIN_LOGIT)}


def _join_vectors(outputs: Arrays, is_text: np.ndarray[Any, Any]) -> Arrays:
    rows = {"vectors": _fill_rows(outputs["vectors"], is_text, 0.0)}
    # Only models whose rows have a single text return `logits`.
    return rows | {"logits": outputs["logits"]} if "logits" in outputs else rows


def _join_sparse(outputs: Arrays, is_text: np.ndarray[Any, Any]) -> Arrays:
    """Return the non-zero values and their token ids, the highest values first.

    Shape: (rows, texts, most non-zero values of a text); texts with fewer are padded with zeros.

    >>> vectors = np.array([[0.0, 2.0, 0.0, 1.0], [0.0, 0.0, 3.0, 0.0]])  # two rows of one text, a vocabulary of four
    >>> {name: rows.tolist() for name, rows in _join_sparse({"vectors": vectors}, np.ones((2, 1), bool)).items()}
    {'values': [[[2.0, 1.0]], [[3.0, 0.0]]], 'tokens': [[[1, 3]], [[2, 0]]]}
    """
    values = outputs["vectors"]
    tokens = np.argsort(-values, axis=1, kind="stable")[:, : max(1, int((values > 0).sum(axis=1).max(initial=0)))]
    largest = np.take_along_axis(values, tokens, axis=1)
    return {
        "values": _fill_rows(largest, is_text, 0.0),
        "tokens": _fill_rows(tokens, is_text, 0.0).astype(np.int64),
    }


_JOIN_TEXTS: Mapping[str, Callable[[Arrays, np.ndarray[Any, Any]], Arrays]] = {
    "text": _join_windows,
    "choices": _join_choices,
    "passages": _join_choices,
    "texts": _join_vectors,
    "sparse": _join_sparse,
}
