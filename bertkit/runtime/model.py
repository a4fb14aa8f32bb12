"""Exported models, which read the same batches as the original model and return the same outputs.

The graph reads texts, arrays (texts, tokens). Rows of several texts, (rows, texts, tokens), are split into texts, and
the outputs are joined into rows again, depending on ``reads``:

=========== =================================================================================
text        a row is a text; a row of several texts is a text in windows, and each window has its logits
windows     the graph itself reads the windows of rows
choices     each text has one logit, and a row has the logits of its choices
passages    as choices, if rows are lists; a single passage is a text
texts       each text has a vector, or a matrix with a vector per token
sparse      each text has a number per token of the vocabulary, most of them 0
=========== =================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.runtime.sessions import Run, open_graph
from bertkit.storage.exports import VECTORS, Export, read_export

Arrays = dict[str, np.ndarray[Any, Any]]

_MIN_LOGIT = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class ExportedModel:
    """Loaded graph, which is called with a batch of arrays and returns arrays."""

    export: Export
    run: Run

    def __call__(self, batch: Mapping[str, Any]) -> Arrays:
        """Compute the outputs of a batch: name -> array whose first axis is rows."""
        texts = {name: batch[name] for name in self.export.inputs}
        if texts["input_ids"].ndim == 2 or self.export.reads == "windows":
            return self._finish(self._compute(texts))
        # A missing text is a single token, and real texts have more (see `multi_text_collator`).
        lengths = batch["attention_mask"].sum(axis=-1)
        is_text = lengths > 1
        outputs = self._compute({name: values[is_text][:, : lengths.max()] for name, values in texts.items()})
        return self._finish(_ROWS[self.export.reads](outputs, is_text))

    def _compute(self, texts: Arrays) -> Arrays:
        return {"vectors" if name in VECTORS else name: values for name, values in self.run(texts).items()}

    def _finish(self, outputs: Arrays) -> Arrays:
        if not self.export.probabilities:
            return outputs
        # The sigmoid of the logits, without overflow for large ones.
        return outputs | {"probabilities": np.exp(-np.logaddexp(0, -outputs["logits"]))}


def open_exported(folder: Path) -> ExportedModel:
    """Load the graph of an exported folder.

    Raises:
        ModelError: If its manifest is damaged, or the backend cannot load the graph.
        UnavailableError: If the backend is not installed.
    """
    export = read_export(folder)
    return ExportedModel(export, open_graph(folder / export.file, export.backend, export.precision))


def _spread_to_rows(values: np.ndarray[Any, Any], is_text: np.ndarray[Any, Any], fill: float) -> np.ndarray[Any, Any]:
    """Arrange the values of texts, (texts, ...), in rows: (rows, texts of a row, ...).

    >>> is_text = np.array([[True, True], [True, False]])  # rows of two texts and one
    >>> _spread_to_rows(np.array([1.0, 2.0, 3.0]), is_text, fill=-1).tolist()
    [[1.0, 2.0], [3.0, -1.0]]
    """
    rows = np.full((*is_text.shape, *values.shape[1:]), fill, dtype=np.float32)
    rows[is_text] = values
    return rows


def _from_windows(outputs: Arrays, is_text: np.ndarray[Any, Any]) -> Arrays:
    return {"logits": _spread_to_rows(outputs["logits"], is_text, np.nan), "windows": is_text.sum(axis=1)}


def _from_choices(outputs: Arrays, is_text: np.ndarray[Any, Any]) -> Arrays:
    return {"logits": _spread_to_rows(outputs["logits"][:, 0], is_text, _MIN_LOGIT)}


def _from_texts(outputs: Arrays, is_text: np.ndarray[Any, Any]) -> Arrays:
    rows = {"vectors": _spread_to_rows(outputs["vectors"], is_text, 0.0)}
    # Only models whose rows have a single text return `logits`.
    return rows | {"logits": outputs["logits"]} if "logits" in outputs else rows


def _from_vocabulary(outputs: Arrays, is_text: np.ndarray[Any, Any]) -> Arrays:
    """Return the non-zero values and their tokens, (rows, texts, maximum per text), the highest values first.

    >>> vectors = np.array([[0.0, 2.0, 0.0, 1.0], [0.0, 0.0, 3.0, 0.0]])  # two rows of one text, four tokens
    >>> {name: rows.tolist() for name, rows in _from_vocabulary({"vectors": vectors}, np.ones((2, 1), bool)).items()}
    {'values': [[[2.0, 1.0]], [[3.0, 0.0]]], 'tokens': [[[1, 3]], [[2, 0]]]}
    """
    values = outputs["vectors"]
    tokens = np.argsort(-values, axis=1, kind="stable")[:, : max(1, int((values > 0).sum(axis=1).max(initial=0)))]
    largest = np.take_along_axis(values, tokens, axis=1)
    return {
        "values": _spread_to_rows(largest, is_text, 0.0),
        "tokens": _spread_to_rows(tokens, is_text, 0.0).astype(np.int64),
    }


_ROWS: Mapping[str, Callable[[Arrays, np.ndarray[Any, Any]], Arrays]] = {
    "text": _from_windows,
    "choices": _from_choices,
    "passages": _from_choices,
    "texts": _from_texts,
    "sparse": _from_vocabulary,
}
