"""Labeled spans of characters, as annotation tools export them, checked against their text."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from operator import add
from typing import Any, NamedTuple

from bertkit.data.formats.json import parse_json
from bertkit.errors import DataError
from bertkit.storage.cache import log_once

SPAN_COLUMNS = ("spans", "entities", "label", "labels")
"""Names of the column of spans in annotation tools; the first name that a file has is read."""

_FORM = 'write [{"start": 0, "end": 4, "label": "LOC"}]'


class TextSpan(NamedTuple):
    """Label of a span of characters, with the start and the exclusive end."""

    start: int
    end: int
    label: str

    def show(self, text: str) -> str:
        """Quote the span with its offsets and its label."""
        return f"{self.start}:{self.end} {text[self.start : self.end]!r} ({self.label})"


class Counting(NamedTuple):
    """Rule by which a tool counts offsets: the width of a character before another, and what both ends lack."""

    description: str
    width: Callable[[str], int] = lambda pair: 1
    start: int = 0
    end: int = 0


COUNTINGS = {
    "code_points": Counting("characters from 0, and the end is exclusive"),
    "utf16": Counting("UTF-16 units", lambda pair: 1 + (pair[0] > "\uffff")),
    "utf8": Counting("bytes of UTF-8", lambda pair: len(pair[0].encode(errors="surrogatepass"))),
    "lf": Counting("each line end (CRLF) as one character", lambda pair: pair != "\r\n"),
    "crlf": Counting("each line end as two characters (CRLF)", lambda pair: 1 + (pair[0] == "\n")),
    "inclusive": Counting("up to the last character of a span", end=1),
    "one_based": Counting("from 1", start=-1, end=-1),
    "one_based_inclusive": Counting("from 1 up to the last character of a span", start=-1),
}
"""Name in ``options.offsets`` -> how offsets are counted."""


def read_spans(
    value: Any,
    text: str,
    *,
    offsets: str = "code_points",
    overlapping: str = "error",
    left_out: list[TextSpan] | None = None,
) -> list[TextSpan]:
    """Read the spans of a text, given as a list or as JSON, in order and without the whitespace around them.

    Args:
        value: Objects with ``start``, ``end`` (or ``start_offset``, ``end_offset``) and ``label`` (or ``labels``,
            ``type``), or lists of the three. An object's ``text`` is compared.
        text: Text that has the spans.
        offsets: Name in `COUNTINGS`. If each span quotes its text, and this rule does not fit all of them, the first
            rule that does is used.
        overlapping: ``error``, or ``longest`` to leave out spans that overlap a longer span.
        left_out: Gets the spans that are left out.

    Raises:
        DataError: If a value is not a span, quotes another text, or overlaps another span.
    """
    # 1. Read the spans and the texts that they quote.
    items = parse_json(value)
    if not isinstance(items, (list, tuple)):
        raise DataError(f"{str(value)[:60]!r} is not a list of spans", _FORM, column="spans")
    quoted_spans = [span for position, item in enumerate(items, 1) for span in _read_span(item, position)]
    bare, quotes = [span for span, _ in quoted_spans], [quoted for _, quoted in quoted_spans]
    # 2. Convert the offsets to characters. The quoted texts show whether the rule fits.
    spans = recount(bare, text, offsets)
    if fault := _find_fault(spans, quotes, text):
        fitting = next((name for name in COUNTINGS if not _find_fault(recount(bare, text, name), quotes, text)), "")
        description = COUNTINGS[fitting or "code_points"].description
        hint = f"if the offsets count {description}: --set options.offsets={fitting}"
        if not fitting or None in quotes:
            raise DataError(fault, hint if fitting else f"correct it: offsets count {description}", column="spans")
        log_once(f"offsets of spans count {description}, as the texts that the spans quote show")
        spans = recount(bare, text, fitting)
    # 3. Remove the whitespace inside the spans, which no token covers.
    stripped = []
    for span in spans:
        inside = text[span.start : span.end]
        start = span.start + len(inside) - len(inside.lstrip())
        stripped.append(TextSpan(start, start + len(inside.strip()), span.label))
    return _without_overlaps(stripped, text, overlapping, [] if left_out is None else left_out)


def recount(spans: Sequence[TextSpan], text: str, counting: str) -> list[TextSpan]:
    """Return spans with offsets in characters; -1 means an offset inside a character or outside the text.

    >>> recount([TextSpan(1, 7, "LOC")], "é Oslo", "utf8"), recount([TextSpan(3, 7, "LOC")], "é Oslo", "one_based")
    ([TextSpan(start=-1, end=6, label='LOC')], [TextSpan(start=2, end=6, label='LOC')])
    """
    if counting == "code_points":
        return list(spans)
    rule = COUNTINGS[counting]
    # `units` has the tool's offset of each character, and of the end. For "é Oslo" in UTF-8, these are 0 2 3 4 5 6 7:
    # an offset of 1 is inside é, and 7 is the end of the text.
    units = accumulate(map(rule.width, map(add, text, f"{text[1:]} ")), initial=0)
    index = {unit: position for position, unit in enumerate(units)}
    ends = [(index.get(span.start + rule.start, -1), index.get(span.end + rule.end, -1)) for span in spans]
    return [TextSpan(start, end, span.label) for (start, end), span in zip(ends, spans, strict=True)]


def _read_span(item: Any, position: int) -> list[tuple[TextSpan, str | None]]:
    """Read the spans of an item, one per label, and the text that it quotes."""
    start: Any = None  # stays None if the item is not a span
    end, labels, quoted = start, start, start
    if isinstance(item, dict):
        start, end = item.get("start", item.get("start_offset")), item.get("end", item.get("end_offset"))
        labels, quoted = item.get("label", item.get("labels", item.get("type"))), item.get("text")
        if item.get("parts"):
            message = f"the span {quoted!r} ({labels}) has {len(item['parts'])} parts"
            raise DataError(message, "make it one span, or delete it", column="spans")
    elif isinstance(item, (list, tuple)) and len(item) == 3:
        start, end, labels = item
    labels = labels if isinstance(labels, (list, tuple)) else [labels]
    are_integers = all(isinstance(offset, int) and not isinstance(offset, bool) for offset in (start, end))
    if not are_integers or not labels or not all(isinstance(label, str) and label.strip() for label in labels):
        raise DataError(f"span {position}, {str(item)[:60]}, is not a start, an end and a label", _FORM, column="spans")
    # Labels are compared in composed Unicode (NFC), as tags are.
    names = [unicodedata.normalize("NFC", label.strip()) for label in labels]
    return [(TextSpan(start, end, name), quoted if isinstance(quoted, str) else None) for name in names]


def _find_fault(spans: Sequence[TextSpan], quotes: Sequence[str | None], text: str) -> str:
    """Return the first error in spans and the texts that they quote, or an empty text."""
    for span, quoted in zip(spans, quotes, strict=True):
        inside = text[span.start : span.end]
        if not 0 <= span.start < span.end <= len(text):
            ends = f"{span.start}:{span.end} ({span.label})"
            return f"the span {ends} is not in the text, which has {len(text):,} characters"
        if not inside.strip():
            return f"the span {span.show(text)} is blank"
        # Tools write a line break in a quoted text as a line break, as \n, or as a space.
        if quoted is not None and quoted.replace("\\n", " ").split() != inside.replace("\\n", " ").split():
            return f"the span {span.show(text)} quotes another text: {quoted[:60]!r}"
    return ""


def _without_overlaps(
    spans: Sequence[TextSpan], text: str, overlapping: str, left_out: list[TextSpan]
) -> list[TextSpan]:
    if overlapping == "longest":
        longest: list[TextSpan] = []
        # The start minus the end is the negative length, so the longest spans come first.
        for span in sorted(set(spans), key=lambda span: (span.start - span.end, span)):
            is_free = all(span.end <= longer.start or longer.end <= span.start for longer in longest)
            (longest if is_free else left_out).append(span)
        spans = longest
    ordered = sorted(set(spans))
    for before, after in pairwise(ordered):
        if after.start < before.end:
            message = f"the spans {before.show(text)} and {after.show(text)} overlap"
            raise DataError(message, "keep one, or --set options.overlapping=longest", column="spans")
    return ordered
