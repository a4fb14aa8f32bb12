"""What becomes a point of a map: each text of a file, each occurrence of a word, or the target word of each row."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from bertkit.data.rows import is_blank
from bertkit.errors import DataError, UsageError, closest
from bertkit.progress import log
from bertkit.recipe import Row
from bertkit.tokens.words import read_target, read_target_word, read_words
from bertkit.vectors.text_files import TextSource, read_file_rows
from bertkit.vectors.units import UNITS

Span = tuple[int, int]


class Occurrence(NamedTuple):
    """A point of a map."""

    id: object
    """The id of its row, or the number of that from 0."""
    text: str
    span: Span | None
    """The first and last + 1 character of its word; None for a whole text."""
    label: str | None
    row: Row
    """What `LayerReader` reads: the columns ``text``, or ``text`` and ``target``, or ``tokens`` and ``target``."""


def unit_of(unit: str, words: Sequence[str]) -> str:
    """Return what a vector stands for: ``text``, or ``target`` for a word in its text.

    Raises:
        UsageError: a word is empty.
    """
    if any(is_blank(word) for word in words):
        raise UsageError("--word without a word", "write e.g. --word apple")
    return "target" if words else unit


def read_occurrences(
    source: TextSource, unit: str = "text", words: Sequence[str] = (), label: str | None = None
) -> list[Occurrence]:
    """Read the points of a map from a file.

    Args:
        source: the file.
        unit: ``text``, or ``target`` for the word that the column ``target`` points to.
        words: only these words are points, whole and in whatever case. With the unit ``text`` each occurrence of one in
            a text is, else the targets that are one. Without a label, each is labeled by its word if there are several.
        label: column of the labels; an empty cell is no label.

    Raises:
        DataError: a row is wrong, there is no such column, or no such word.
    """
    assert source.file is not None
    # What finds words, whole: no letter, digit or underscore is beside them; of two, the longer one.
    listed = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    search = re.compile(rf"(?<!\w)(?:{listed})(?!\w)", re.IGNORECASE)
    columns = UNITS["word" if words and unit == "text" else unit].columns
    read_text = partial(_find_words, search=search) if words else _read_whole
    read: Callable[[Row], list[tuple[str, Span | None, Row]]] = _read_target if unit == "target" else read_text
    occurrences, present = [], set[str | None]()
    for line, row_id, original, points in read_file_rows(source, source.file, columns, read):
        value = _label_of(original, label, source.name, line)
        for text, span, row in points:
            word = None if span is None else _word_of(text[slice(*span)].strip(), tuple(words))
            if words and word is None:  # a target; occurrences were searched for
                continue
            present.add(word)
            occurrences.append(Occurrence(row_id, text, span, word if label is None and len(words) > 1 else value, row))
    missing = [word for word in words if word not in present]
    if not occurrences and missing:
        what = f"no row has the word {' or '.join(map(repr, missing))}"
        raise DataError(what, "check its spelling: words are found whole, in whatever case", file=source.name)
    if not occurrences:
        raise DataError("no rows", "add rows", file=source.name)
    for word in missing:
        log.info(f"no row has the word {word!r}")
    return occurrences


@cache
def _word_of(text: str, words: tuple[str, ...]) -> str | None:
    """Return which of some words a text is, in whatever case; None for none."""
    return next((word for word in words if re.fullmatch(re.escape(word), text, re.IGNORECASE)), None)


def _read_whole(row: Row) -> list[tuple[str, Span | None, Row]]:
    text = UNITS["text"].read(row)
    return [(text, None, {"text": text})]


def _find_words(row: Row, search: re.Pattern[str]) -> list[tuple[str, Span | None, Row]]:
    if "tokens" in row or isinstance(row["text"], (list, tuple)):
        text = " ".join(read_words(row.get("tokens", row.get("text"))))
    else:
        text = UNITS["text"].read(row)
    spans = [match.span() for match in search.finditer(text)]
    return [(text, span, {"text": text, "target": list(span)}) for span in spans]


def _read_target(row: Row) -> list[tuple[str, Span | None, Row]]:
    words, target = read_target_word(row)
    if "tokens" not in row:
        start, end = read_target(row["target"], count=2)
        return [(row["text"], (start, end), row)]
    start = sum(len(word) + 1 for word in words[:target])
    return [(" ".join(words), (start, start + len(words[target])), {"tokens": words, "target": target})]


def _label_of(original: dict[str, Any], label: str | None, file: str, line: int) -> str | None:
    if label is None:
        return None
    if label not in original:
        what = f"no column {label!r}"
        raise DataError(what, f"{closest(label, original)}; name it with --label", file=file, row=line)
    value = original[label]
    return None if value is None or is_blank(value) else str(value)
