"""Losses of sentence-transformers that a recipe can name, and the rows that they take.

The library is optional and takes seconds to import, so both are parsed from its source code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bertkit.data.rows import Split
from bertkit.errors import DataError, did_you_mean
from bertkit.recipe.records import Option, Recipe
from bertkit.recipe.sections import Row

# Kinds of labels, as the library's docstrings name them.
NONE, CLASS, SCORE, BINARY = "none", "class", "float similarity score", "1 if positive, 0 if negative"


@dataclass(frozen=True)
class LibraryLoss:
    """Loss with the method `compute_loss_from_embeddings`."""

    inputs: tuple[tuple[str, str], ...]
    """Texts and labels of a row, such as ``("(anchor, positive, negative) triplets", "none")``."""
    needs_distinct_texts: bool
    """Whether the texts of other rows are negatives, so no text should occur twice in a batch."""

    def __str__(self) -> str:
        """Describe the texts and labels for a message."""
        return " or ".join(texts if labels == NONE else f"{texts} with {labels}" for texts, labels in self.inputs)


@cache
def list_library_losses() -> Mapping[str, LibraryLoss]:
    """Return the losses of sentence-transformers by name; empty if the library is not installed."""
    spec = find_spec("sentence_transformers")
    if spec is None or spec.origin is None:
        return {}
    files = sorted(Path(spec.origin).parent.glob("sentence_transformer/losses/*.py"))
    nodes = [node for file in files for node in ast.parse(file.read_text(encoding="utf-8")).body]
    losses = {node.name: _read_class(node) for node in nodes if isinstance(node, ast.ClassDef)}
    return {name: loss for name, loss in losses.items() if loss.inputs}


def _read_class(node: ast.ClassDef) -> LibraryLoss:
    """Parse the docstrings of a loss; a class without `compute_loss_from_embeddings` gets no inputs."""
    parts = [part for part in ast.walk(node) if isinstance(part, (ast.ClassDef, ast.FunctionDef))]
    text = "\n".join(ast.get_docstring(part) or "" for part in parts)
    # Parse the table "| Inputs | Labels |", without its header and without regularizers, which take "any" texts.
    inputs = re.findall(r"\| (?!Inputs|any)(.+?) +\| (.+?) +\|", text)
    has_method = any(part.name == "compute_loss_from_embeddings" for part in parts)
    return LibraryLoss(tuple(inputs) if has_method else (), "NO_DUPLICATES" in text)


def find_library_loss(name: str | None) -> LibraryLoss | None:
    """Return a loss of sentence-transformers, or None for a loss of bertkit."""
    # bertkit's losses have lower-case names, and need no library, whose parsing takes 50 ms.
    return None if name is None or name.islower() else list_library_losses().get(name)


def make_loss_option(shipped: tuple[str, ...], *labels: str) -> Option:
    """Return the option ``loss`` of a task family.

    Args:
        shipped: Names of bertkit's losses; the first is the default.
        labels: Kinds of labels; losses of sentence-transformers that take one of them are allowed.
    """

    def read(value: Any) -> Any:
        if value in shipped:
            return value
        library = list_library_losses()
        names = [*shipped, *(name for name, loss in library.items() if any(pair[1] in labels for pair in loss.inputs))]
        # Without the library, accept any name: only training imports the library.
        if value in names or (not library and str(value).endswith("Loss")):
            return value
        if loss := library.get(str(value)):
            raise ValueError(f"it takes {loss}; rows of this task fit {', '.join(names)}")
        raise ValueError(did_you_mean(str(value), names))

    return Option(shipped[0], read=read)


def check_training(train: Split, recipe: Recipe) -> None:
    """Check that training rows have the negatives or labels that a loss of sentence-transformers takes.

    Raises:
        DataError: If a row does not, or has more or fewer negatives than the first row.
    """
    name = recipe.options.get("loss")
    if not train.rows or (loss := find_library_loss(name)) is None:
        return
    first_count = len(train.rows[0].get("negative", ()))
    for index, row in enumerate(train.rows):
        count = len(row.get("negative", ()))
        if count != first_count or not any(_fits_loss(row, recipe, *pair) for pair in loss.inputs):
            negatives = f"{count} negatives ({first_count} in the first row)"
            values = f"label {row['label']:g}" if "label" in row else negatives
            remedy = "leave options.loss out, or map other columns in data.columns"
            raise DataError(f"{values}, but {name} takes {loss}", remedy, **train.locate(index)._asdict())


def _fits_loss(row: Row, recipe: Recipe, texts: str, labels: str) -> bool:
    """Return whether a row has the texts and labels of an entry of `LibraryLoss.inputs`."""
    if "label" in row:
        return labels == SCORE or (labels == BINARY and row["label"] in (recipe.data.label_range or (0, 1)))
    # Texts are separated by commas: "(anchor, positive) pairs", or "(anchor, positive, negative_1, ..., negative_n)".
    count = len(row.get("negative", ()))
    return labels == NONE and (texts.count(",") == count + 1 or ("..." in texts and count > 0))
