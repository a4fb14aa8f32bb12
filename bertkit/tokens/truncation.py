"""Texts that are longer than the maximum length: truncation, windows, and the tokens that are lost."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from bertkit.data.checks import format_fraction
from bertkit.recipe.records import Option, Recipe, read_option
from bertkit.recipe.sections import Row
from bertkit.storage.cache import log_once
from bertkit.tokens.answer_spans import window_slices
from bertkit.tokens.feature_cache import get_max_lengths
from bertkit.tokens.features import (
    Feature,
    Rows,
    SpecialTokenTemplate,
    TaskContext,
    encode_texts,
    find_template,
    max_tokens,
    text_lengths,
    token_budget,
    tokenize_texts,
)

SHORTENED = ("head", "tail", "head_tail")
WINDOWS = ("windows_mean", "windows_max", "windows_vote")
HIERARCHICAL = "hierarchical"
STRATEGIES = (*SHORTENED, *WINDOWS, HIERARCHICAL)

OPTIONS: Mapping[str, object] = {
    "long_text": Option("head", choices=STRATEGIES),
    # Sun et al. (2019, section 5.3.1) read the first 128 of 510 tokens.
    "head_fraction": Option(0.25, minimum=0.01, maximum=0.99),
    "overlap": 64,
}
"""Options of the families for text classification and text regression."""


def long_text(recipe: Recipe) -> str:
    """Return how the recipe of such a family reads a text that is too long."""
    return str(read_option(OPTIONS, recipe, "long_text"))


def reads_windows(recipe: Recipe) -> bool:
    """Return whether a text becomes a feature of windows."""
    return long_text(recipe) not in SHORTENED


def encode_long(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode ``text`` or the pair ``text``, ``text_pair`` of each row; `long_text` decides how long texts are read.

    With windows, ``input_ids`` and other keys have one list of numbers per window; a text that fits has one window.

    If a pair is too long, a text of at most half of the tokens stays complete, and the longer text (the second one in a
    tie) gets the remaining tokens. If both texts are longer, each gets half. With windows, the longer text is split
    into windows, and each is paired with the other text, of at most half of the tokens.
    """
    names = ("long_text", "overlap", "head_fraction")
    strategy, overlap, fraction = (read_option(OPTIONS, context.recipe, name) for name in names)
    if not rows:
        return []
    if strategy == "head":
        return encode_texts(rows, context)
    row_tokens, template, budget = _tokenize_rows(rows, context)
    shorten = partial(_keep_ends, fraction=fraction if strategy == "head_tail" else 0.0)
    features = []
    for index, tokens in enumerate(row_tokens):
        if strategy in SHORTENED:
            features.append({"row": index, **template.fill(*shorten_texts(tokens, budget, shorten))})
            continue
        windows = [template.fill(*window) for window in _split_texts(tokens, budget, overlap)]
        features.append({"row": index, **{name: [window[name] for window in windows] for name in windows[0]}})
    return features


def _tokenize_rows(rows: Rows, context: TaskContext) -> tuple[list[list[list[int]]], SpecialTokenTemplate, int]:
    """Return the tokens of the one or two texts of each row, the template around them, and the token budget."""
    columns = ["text", "text_pair"] if "text_pair" in rows[0] else ["text"]
    template = find_template(context.tokenizer, pair=len(columns) == 2)
    encoded = [tokenize_texts(context.tokenizer, [row[column] for row in rows]) for column in columns]
    tokens = [[text.ids for text in texts] for texts in zip(*encoded, strict=True)]
    return tokens, template, token_budget(context, template)


def get_read_fractions(rows: Rows, context: TaskContext) -> tuple[float, float, float]:
    """Return the fractions of tokens that one input and that windows read, and the number of windows per row."""
    row_tokens, _, budget = _tokenize_rows(rows, context)
    overlap = read_option(OPTIONS, context.recipe, "overlap")
    in_all = in_one = in_windows = windows = 0
    for tokens in row_tokens:
        sizes, row_windows = _kept_sizes(tokens, budget), len(_split_texts(tokens, budget, overlap))
        lengths = [len(text) for text in tokens]
        in_all, in_one, windows = in_all + sum(lengths), in_one + sum(sizes), windows + row_windows
        in_windows += max(lengths) + sum(sizes) - max(sizes) if row_windows > 1 else sum(lengths)
    return in_one / in_all, in_windows / in_all, windows / len(rows)


def shorten_texts(
    texts: Sequence[list[int]], budget: int, shorten: Callable[[list[int], int], list[int]]
) -> list[list[int]]:
    """Shorten one text or two to `budget` tokens together, as the tokenizers library does with ``longest_first``."""
    return [shorten(text, size) for text, size in zip(texts, _kept_sizes(texts, budget), strict=True)]


def _kept_sizes(texts: Sequence[list[int]], budget: int) -> list[int]:
    """Return the number of tokens that each text keeps.

    >>> _kept_sizes([[0] * 9], 6), _kept_sizes([[0] * 2, [0] * 9], 7), _kept_sizes([[0] * 9, [0] * 8], 7)
    ([6], [2, 5], [4, 3])
    """
    sizes = [len(text) for text in texts]
    if sum(sizes) <= budget:
        return sizes
    if len(sizes) == 1:
        return [budget]
    short = min(min(sizes), budget // 2)
    return [budget - short, short] if sizes[0] > sizes[1] else [short, budget - short]


def _keep_ends(tokens: list[int], size: int, *, fraction: float) -> list[int]:
    """Keep `size` tokens: a fraction from the beginning (at least one token unless it is 0), the rest from the end.

    >>> _keep_ends([1, 2, 3, 4, 5, 6], 4, fraction=0.25), _keep_ends([1, 2, 3, 4, 5, 6], 4, fraction=0.0)
    ([1, 4, 5, 6], [3, 4, 5, 6])
    """
    if len(tokens) <= size:
        return tokens
    head = min(max(round(size * fraction), 1), size - 1) if fraction and size > 1 else 0
    return [*tokens[:head], *tokens[len(tokens) - (size - head) :]]


def _split_texts(texts: Sequence[list[int]], budget: int, overlap: int) -> list[list[list[int]]]:
    """Split the longer text into windows, and pair each with the beginning of the other text.

    >>> _split_texts([[1, 2], [3, 4, 5, 6, 7]], budget=5, overlap=1)
    [[[1, 2], [3, 4, 5]], [[1, 2], [5, 6, 7]]]
    """
    if sum(map(len, texts)) <= budget:
        return [list(texts)]
    sizes = _kept_sizes(texts, budget)
    longer = max(range(len(texts)), key=lambda index: (len(texts[index]), index))
    slices = window_slices(len(texts[longer]), sizes[longer], min(overlap, sizes[longer] // 2))
    return [
        [text[window] if index == longer else text[: sizes[index]] for index, text in enumerate(texts)]
        for window in slices
    ]


def combine_windows(values: np.ndarray, strategy: str) -> np.ndarray:
    """Combine the outputs of a row's windows, (windows, labels), to one value per label, (labels,).

    ``windows_vote`` uses the mean as well.
    """
    combined: np.ndarray = values.max(axis=0) if strategy == "windows_max" else values.mean(axis=0)
    return combined


# --- Tokens, answers and words that are lost ---


Encode = Callable[[Sequence[Row], TaskContext], Sequence[Feature]]

_NO_LIMIT = 10**9  # tokens


@dataclass
class Truncation:
    """Running counts of the rows that are longer than the maximum length, and of the tokens that they lose."""

    context: TaskContext
    encode: Encode
    rows: int = 0
    long: int = 0
    read: int = 0
    """Number of tokens that are read, of the longest text per row."""
    lost_tokens: int = 0

    def add(self, features: Sequence[Feature], rows: Sequence[Row]) -> None:
        """Count rows by their features; only rows of the maximum length are encoded again, without truncation."""
        # A feature does not show that its text was truncated. Only features of the maximum length can have lost tokens.
        lengths, limit = get_max_lengths(features), max_tokens(self.context)
        self.rows += len(rows)
        self.read += int(lengths.sum())
        full_rows = np.flatnonzero(lengths >= limit).tolist()
        if full_rows and len(features) <= len(rows) and not reads_windows(self.context.recipe):
            long, complete, _ = find_long(
                [rows[features[index]["row"]] for index in full_rows], self.encode, self.context
            )
            self.long += len(long)
            self.lost_tokens += int((complete - limit).clip(0).sum())

    def log(self) -> None:
        """Log the fraction of tokens that is lost, if any."""
        if self.long:
            lost_fraction = self.lost_tokens / (self.read + self.lost_tokens)
            rows = f"{format_fraction(self.long, self.rows)} rows are longer than {max_tokens(self.context):,} tokens"
            log_once(f"{rows} and truncated: {lost_fraction:.1%} of all tokens are lost")


def find_long(
    rows: Sequence[Row], encode: Encode, context: TaskContext
) -> tuple[list[int], np.ndarray, Sequence[Feature]]:
    """Encode rows without a maximum length.

    Returns:
        Indices of the rows that are longer than the recipe's maximum; the tokens of all rows, (features,); and the
        features.

    Raises:
        DataError: If a row cannot be encoded.
    """
    tokenizer = copy.copy(context.tokenizer)
    tokenizer.model_max_length = _NO_LIMIT
    unlimited = replace(context, tokenizer=tokenizer, recipe=context.recipe.replace("training", max_length=_NO_LIMIT))
    features = encode(rows, unlimited)
    lengths = np.array([max(text_lengths(feature)) for feature in features])
    long = [features[index]["row"] for index in np.flatnonzero(lengths > max_tokens(context)).tolist()]
    return long, lengths, features


def find_lost_answers(features: Sequence[Feature], rows: Sequence[Row], max_length: int) -> list[int]:
    """Return the indices of the rows whose answer is in no window completely, or has more than `max_length` tokens."""
    answered = {
        feature["row"]
        for feature in features
        if feature.get("end_positions", 0) and feature["end_positions"] - feature["start_positions"] < max_length
    }
    return [index for index, row in enumerate(rows) if row["answers"]["text"] and index not in answered]


def describe_lost_gold(lost_count: int, count: int, options: Mapping[str, Any]) -> str:
    """Describe the rows whose gold value cannot be predicted, by the options of their task family."""
    more = " or options.max_answer_length" if "max_answer_length" in options else ""
    return f"{format_fraction(lost_count, count)} rows lose gold answers beyond the maximum length{more}"


def find_unread_words(features: Sequence[Feature], rows: Sequence[Row], context: TaskContext) -> list[int]:
    """Return the indices of the rows with a tagged word that no window predicts."""
    words: dict[int, set[Any]] = {}
    for feature in features:
        words.setdefault(feature["row"], set()).update(feature["words"])
    return [
        index
        for index, row in enumerate(rows)
        if any(tag is not None and word not in words.get(index, ()) for word, tag in enumerate(row["tags"]))
    ]
