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
_PAIRS = (
    *(("premise", "hypothesis"), ("sentence1", "sentence2"), ("text1", "text2"), ("question1", "question2")),
    *(("text", "text_pair"), ("sentence_a", "sentence_b")),
)


@dataclass(frozen=True)
class Guess:
    """Guessed recipe for a file, with the reasons."""

    extends: str
    columns: dict[str, str]
    reasons: dict[str, str]
    """Canonical column -> reason for the choice of the column in the file."""
    rows: int
    alternatives: list[str] = field(default_factory=list)
    """Columns that could be the labels instead."""


def guess_recipe(file: str) -> Guess:
    """Guess the recipe of a file from its first 1,000 rows.

    Raises:
        DataError: If no column looks like text, or no column looks like a label.
        BertkitError: If the file cannot be read.
    """
    records = [values for _, values in islice(read_records(file, DataConfig()), _MAX_ROWS)]
    names = list(dict.fromkeys(name for record in records for name in record))
    values = {name: [record.get(name) for record in records] for name in names}
    lower = {name.lower(): name for name in reversed(names)}
    # 1. The names of the columns identify question answering, reranking and multiple choice.
    for known_columns in (
        ("question", "context", "answers"),
        ("query", "passage", "relevance"),
        ("context", "choices", "label"),
    ):
        if all(name in lower for name in known_columns):
            recipe = {"question": "qa", "query": "rerank", "context": "choose"}[known_columns[0]]
            return Guess(
                recipe,
                {name: lower[name] for name in known_columns},
                dict.fromkeys(known_columns, "its name"),
                len(records),
            )
    # 2. For tags and labels, the values decide, because their columns have many names.
    return _guess_tags(values, len(records)) or _guess_label(values, lower, file, len(records))


def _guess_tags(values: dict[str, list[Any]], rows: int) -> Guess | None:
    """Guess the columns of words with tags or of a text with spans, or return None without such columns."""
    lists = [name for name, column in values.items() if column and all(isinstance(value, list) for value in column)]
    words = next((name for name in lists if all(isinstance(word, str) for row in values[name] for word in row)), None)
    for spans in SPAN_COLUMNS:
        items = chain(*values[spans]) if "text" in values and spans in lists else ()
        if any(isinstance(span, (dict, list)) for span in items):
            reasons = {"text": "its name", "spans": "lists of spans"}
            return Guess("tag", {"text": "text", "spans": spans}, reasons, rows)
    # Tags are a list with as many items as there are words, in every row.
    sizes = {name: list(map(len, values[name])) for name in lists}
    fitting = [name for name in lists if words and name != words and sizes[name] == sizes[words]]
    if words is None or not fitting:
        return None
    counts = {name: len(set(map(str, chain(*values[name])))) for name in fitting}
    # Among lemmas, parts of speech and entities, a column called tags wins, then the column with fewer values.
    tags = min(fitting, key=lambda name: ("tag" not in name.lower(), counts[name]))
    reasons = {"tokens": "lists of words", "tags": f"as many values as words, {counts[tags]} different ones"}
    alternatives = [f"{name} ({counts[name]} values)" for name in fitting if name != tags]
    return Guess("tag", {"tokens": words, "tags": tags}, reasons, rows, alternatives)


def _guess_label(values: dict[str, list[Any]], lower: dict[str, str], file: str, rows: int) -> Guess:
    """Guess the columns of one or two texts, and of a label or a number."""
    # A text has at least two words on average. A label usually has one.
    words = {name: fmean(len(str(value).split()) for value in column) for name, column in values.items() if column}
    texts = {name: mean for name, mean in words.items() if mean >= 2 and not _is_number(values[name])}
    counts = {name: len({label_to_str(value) for value in column} - {None}) for name, column in values.items()}
    # A column with another value in every row is an id.
    labels = [name for name in values if 2 <= counts[name] <= _MAX_CLASSES and counts[name] < max(rows, 3)]
    labels += [name for name in values if name not in labels and _is_number(values[name]) and name.lower() in _LABELS]
    if not texts:
        raise DataError(f"no column looks like text: {', '.join(values)}", "--set data.columns names it", file=file)
    pair = next((pair for pair in _PAIRS if all(lower.get(name) in texts for name in pair)), None)
    text_names = [lower[name] for name in pair] if pair else [max(texts, key=lambda name: texts[name])]
    labels = [name for name in labels if name not in text_names]
    if not labels:
        message = f"no column looks like a label: {', '.join(name for name in values if name not in text_names)}"
        raise DataError(
            message, f"a label has 2 to {_MAX_CLASSES} values, or is a number called label or score", file=file
        )
    ranks = {name: rank for rank, name in enumerate(_LABELS)}
    label = min(labels, key=lambda name: (ranks.get(name.lower(), len(ranks)), counts[name]))
    is_number = _is_number(values[label])
    # A few distinct integers are classes rather than numbers to predict.
    if is_number and counts[label] <= 20:
        is_number = not all(value is None or float(value).is_integer() for value in values[label])
    why_text = {name: "its name" if pair else f"{texts[name]:.0f} words on average" for name in text_names}
    text_columns = dict(zip(("text", "text_pair"), text_names, strict=False))
    reasons = {canonical: why_text[name] for canonical, name in text_columns.items()}
    spellings = sorted({name for value in values[label] if (name := label_to_str(value)) is not None})
    listed = ", ".join(spellings[:5]) + (", ..." if len(spellings) > 5 else "")
    reasons["label"] = "numbers" if is_number else f"{counts[label]} values: {listed}"
    alternatives = [f"{name} ({counts[name]} values)" for name in labels if name != label]
    return Guess("regress" if is_number else "classify", {**text_columns, "label": label}, reasons, rows, alternatives)


def _is_number(column: Sequence[Any]) -> bool:
    return all(value is None or as_number(value) == as_number(value) for value in column)
