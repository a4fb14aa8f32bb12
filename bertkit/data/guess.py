"""Guess the recipe for a file and the meaning of its columns from its first rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from statistics import fmean
from typing import Any

from bertkit.data.files import read_records
from bertkit.data.labels import label_to_str
from bertkit.data.spans import SPAN_COLUMNS
from bertkit.data.text import as_number
from bertkit.errors import DataError
from bertkit.recipe.records import DataConfig

_MAX_ROWS = 1000
_MAX_CLASSES = 50
# Names of label columns, in order of preference.
_LABELS = ("label", "labels", "class", "category", "target", "sentiment", "intent", "topic", "stars", "rating", "score")
# Recipe -> canonical columns, whose names identify the recipe.
_COLUMNS_BY_RECIPE = {
    "qa": ("question", "context", "answers"),
    "rerank": ("query", "passage", "relevance"),
    "choose": ("context", "choices", "label"),
}
_PAIRS = (
    *(("premise", "hypothesis"), ("sentence1", "sentence2"), ("text1", "text2"), ("question1", "question2")),
    *(("text", "text_pair"), ("sentence_a", "sentence_b")),
)


@dataclass(frozen=True)
class Guess:
    """Guessed recipe for a file, with reasons for the columns."""

    extends: str
    """Packaged recipe, such as ``classify``."""
    columns: dict[str, str]
    """Canonical column -> column in the file."""
    reasons: dict[str, str]
    """Canonical column -> reason for this choice."""
    rows: int
    """Number of rows that were read."""
    alternatives: list[str] = field(default_factory=list)
    """Other columns that could hold the labels."""


def guess_recipe(file: str) -> Guess:
    """Guess the recipe of a file from its first 1,000 rows.

    Raises:
        DataError: If no column looks like text, or no column looks like a label.
        BertkitError: If the file cannot be read.
    """
    records = [values for _, values in islice(read_records(file, DataConfig()), _MAX_ROWS)]
    names = list(dict.fromkeys(name for record in records for name in record))
    values = {name: [record.get(name) for record in records] for name in names}
    by_lowercase = {name.lower(): name for name in reversed(names)}
    # 1. Find question answering, reranking and multiple choice by their column names.
    for recipe, canonical in _COLUMNS_BY_RECIPE.items():
        if all(name in by_lowercase for name in canonical):
            columns = {name: by_lowercase[name] for name in canonical}
            return Guess(recipe, columns, dict.fromkeys(canonical, "its name"), len(records))
    # 2. Find tags and labels by their values, because their columns have many names.
    return _guess_tags(values, len(records)) or _guess_label(values, by_lowercase, file, len(records))


def _guess_tags(values: dict[str, list[Any]], rows: int) -> Guess | None:
    """Guess the columns of words and tags, or of a text and spans; return None without such columns."""
    lists = {name: column for name, column in values.items() if set(map(type, column)) == {list}}
    words = next(
        (name for name, column in lists.items() if all(isinstance(word, str) for word in chain(*column))), None
    )
    for spans in SPAN_COLUMNS:
        items = chain(*lists[spans]) if "text" in values and spans in lists else ()
        if any(isinstance(span, (dict, list)) for span in items):
            reasons = {"text": "its name", "spans": "lists of spans"}
            return Guess("tag", {"text": "text", "spans": spans}, reasons, rows)
    # Each row must have as many tags as words.
    sizes = {name: list(map(len, column)) for name, column in lists.items()}
    candidates = [name for name in lists if words and name != words and sizes[name] == sizes[words]]
    if words is None or not candidates:
        return None
    counts = {name: len(set(map(str, chain(*lists[name])))) for name in candidates}
    # Among lemmas, parts of speech and entities, prefer a column called tags, then the column with fewer values.
    tags = min(candidates, key=lambda name: ("tag" not in name.lower(), counts[name]))
    reasons = {"tokens": "lists of words", "tags": f"as many values as words, {counts[tags]} different ones"}
    alternatives = [f"{name} ({counts[name]} values)" for name in candidates if name != tags]
    return Guess("tag", {"tokens": words, "tags": tags}, reasons, rows, alternatives)


def _guess_label(values: dict[str, list[Any]], by_lowercase: dict[str, str], file: str, rows: int) -> Guess:
    """Guess the columns of one or two texts, and of a label or a number."""
    # 1. Find the texts, which have at least two words on average. A label usually has one.
    means = {name: fmean(len(str(value).split()) for value in column) for name, column in values.items() if column}
    texts = {name: mean for name, mean in means.items() if mean >= 2 and not _is_number(values[name])}
    if not texts:
        raise DataError(f"no column looks like text: {', '.join(values)}", "--set data.columns.text=COLUMN", file=file)
    pair = next((pair for pair in _PAIRS if all(by_lowercase.get(name) in texts for name in pair)), None)
    inputs = [by_lowercase[name] for name in pair] if pair else [max(texts, key=lambda name: texts[name])]
    # 2. Find the label. A column with another value in every row is an id.
    counts = {name: len({label_to_str(value) for value in column} - {None}) for name, column in values.items()}
    labels = [name for name in values if 2 <= counts[name] <= _MAX_CLASSES and counts[name] < max(rows, 3)]
    labels += [name for name in values if name not in labels and _is_number(values[name]) and name.lower() in _LABELS]
    labels = [name for name in labels if name not in inputs]
    if not labels:
        other_names = ", ".join(name for name in values if name not in inputs)
        message = f"no column looks like a label: {other_names or 'there is only text'}"
        remedy = f"a label has 2 to {_MAX_CLASSES} values, or is a number called label or score"
        raise DataError(message, remedy, file=file)
    ranks = {name: rank for rank, name in enumerate(_LABELS)}
    label = min(labels, key=lambda name: (ranks.get(name.lower(), len(ranks)), counts[name]))
    is_number = _is_number(values[label])
    # A few distinct integers are classes rather than numbers to predict.
    if is_number and counts[label] <= 20:
        is_number = not all(value is None or float(value).is_integer() for value in values[label])
    # 3. Describe the reasons.
    columns = dict(zip(("text", "text_pair"), inputs, strict=False))
    reasons = {key: "its name" if pair else f"{texts[name]:.0f} words on average" for key, name in columns.items()}
    spellings = sorted({name for value in values[label] if (name := label_to_str(value)) is not None})
    examples = ", ".join(spellings[:5]) + (", ..." if len(spellings) > 5 else "")
    reasons["label"] = "numbers" if is_number else f"{counts[label]} values: {examples}"
    alternatives = [f"{name} ({counts[name]} values)" for name in labels if name != label]
    return Guess("regress" if is_number else "classify", {**columns, "label": label}, reasons, rows, alternatives)


def _is_number(column: Sequence[Any]) -> bool:
    """Return whether a column has only numbers and missing values."""
    return all(value is None or as_number(value) == as_number(value) for value in column)
