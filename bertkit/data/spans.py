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
"""Names of the span column in annotation tools; the first one in a file is read."""

_EXAMPLE = 'write [{"start": 0, "end": 4, "label": "LOC"}]'


class TextSpan(NamedTuple):
    """Labeled span of characters; the end is exclusive."""

    start: int
    end: int
    label: str

    def show(self, text: str) -> str:
        """Quote the span with its offsets and its label."""
        return f"{self.start}:{self.end} {text[self.start : self.end]!r} ({self.label})"


class OffsetRule(NamedTuple):
    """Rule by which an annotation tool counts offsets.

    Args:
        description: Unit and start of the offsets, for messages.
        width: Function that returns the width of the first of two adjacent characters.
        start: Number to add to start offsets.
        end: Number to add to end offsets.
    """

    description: str
    width: Callable[[str], int] = lambda pair: 1
    start: int = 0
    end: int = 0


OFFSET_RULES = {
    "code_points": OffsetRule("characters from 0, and the end is exclusive"),
    "utf16": OffsetRule("UTF-16 units", lambda pair: 1 + (pair[0] > "\uffff")),
    "utf8": OffsetRule("bytes of UTF-8", lambda pair: len(pair[0].encode(errors="surrogatepass"))),
    "lf": OffsetRule("each line end (CRLF) as one character", lambda pair: pair != "\r\n"),
    "crlf": OffsetRule("each line end as two characters (CRLF)", lambda pair: 1 + (pair[0] == "\n")),
    "inclusive": OffsetRule("up to the last character of a span", end=1),
    "one_based": OffsetRule("from 1", start=-1, end=-1),
    "one_based_inclusive": OffsetRule("from 1 up to the last character of a span", start=-1),
}
"""Name in ``options.offsets`` -> rule."""


def read_spans(
    value: Any,
    text: str,
    *,
    offsets: str = "code_points",
    overlapping: str = "error",
    dropped_spans: list[TextSpan] | None = None,
) -> list[TextSpan]:
    """Read the spans of a text from a list or JSON, in order and without surrounding whitespace.

    Args:
        value: Objects with ``start``, ``end`` (or ``start_offset``, ``end_offset``) and ``label`` (or ``labels``,
            ``type``), or lists of the three. An object can quote its text as ``text``.
        text: Text with the spans.
        offsets: Name in `OFFSET_RULES`. If every span quotes its text, and the quotes do not match by this rule, the
            first rule by which all quotes match is used.
        overlapping: ``error``, or ``longest`` to drop spans that overlap a longer span.
        dropped_spans: List that gets the dropped spans.

    Raises:
        DataError: If a value is not a span, quotes another text, or overlaps another span.
    """
    # 1. Read the spans and the texts that they quote.
    items = parse_json(value)
    if not isinstance(items, (list, tuple)):
        raise DataError(f"{str(value)[:60]!r} is not a list of spans", _EXAMPLE, column="spans")
    quoted_spans = [span for position, item in enumerate(items, 1) for span in _read_span(item, position)]
    raw_spans, quotes = [span for span, _ in quoted_spans], [quoted for _, quoted in quoted_spans]
    # 2. Convert the offsets to characters, and check them against the quoted texts.
    spans = convert_offsets(raw_spans, text, offsets)
    if problem := _find_problem(spans, quotes, text):
        candidates = ((name, convert_offsets(raw_spans, text, name)) for name in OFFSET_RULES)
        rule, spans = next((pair for pair in candidates if not _find_problem(pair[1], quotes, text)), ("", spans))
        description = OFFSET_RULES[rule or "code_points"].description
        hint = f"if the offsets count {description}: --set options.offsets={rule}"
        if not rule or None in quotes:
            raise DataError(problem, hint if rule else f"correct it: offsets count {description}", column="spans")
        log_once(f"offsets of spans count {description}, as their quoted texts show")
    # 3. Remove the whitespace inside the spans, which no token covers.
    stripped = []
    for span in spans:
        inside = text[span.start : span.end]
        start = span.start + len(inside) - len(inside.lstrip())
        stripped.append(TextSpan(start, start + len(inside.strip()), span.label))
    return _resolve_overlaps(stripped, text, overlapping, [] if dropped_spans is None else dropped_spans)


def convert_offsets(spans: Sequence[TextSpan], text: str, rule_name: str) -> list[TextSpan]:
    """Convert the offsets of spans to characters; an offset inside a character or outside the text becomes -1.

    >>> convert_offsets([TextSpan(1, 7, "LOC")], "é Oslo", "utf8")
    [TextSpan(start=-1, end=6, label='LOC')]
    >>> convert_offsets([TextSpan(3, 7, "LOC")], "é Oslo", "one_based")
    [TextSpan(start=2, end=6, label='LOC')]
    """
    if rule_name == "code_points":
        return list(spans)
    rule = OFFSET_RULES[rule_name]
    # `units` has the tool's offset of each character, and of the end of the text. For "é Oslo" in UTF-8, `units` is
    # 0 2 3 4 5 6 7: an offset of 1 is inside é, and 7 is the end.
    units = accumulate(map(rule.width, map(add, text, f"{text[1:]} ")), initial=0)
    index = {unit: position for position, unit in enumerate(units)}
    offsets = [(index.get(span.start + rule.start, -1), index.get(span.end + rule.end, -1)) for span in spans]
    return [TextSpan(start, end, span.label) for (start, end), span in zip(offsets, spans, strict=True)]


def _read_span(item: Any, position: int) -> list[tuple[TextSpan, str | None]]:
    """Return a span per label of an item, each with the quoted text."""
    start: Any = None  # stays None if the item is not a span
    end = labels = quoted = start
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
        message = f"span {position}, {str(item)[:60]}, is not a start, an end and a label"
        raise DataError(message, _EXAMPLE, column="spans")
    # As for tags, labels are compared in composed Unicode (NFC).
    names = [unicodedata.normalize("NFC", label.strip()) for label in labels]
    return [(TextSpan(start, end, name), quoted if isinstance(quoted, str) else None) for name in names]


def _find_problem(spans: Sequence[TextSpan], quotes: Sequence[str | None], text: str) -> str:
    """Return a message about the first wrong span, or an empty text if all spans fit the text and the quotes."""
    for span, quoted in zip(spans, quotes, strict=True):
        inside = text[span.start : span.end]
        if not 0 <= span.start < span.end <= len(text):
            location = f"{span.start}:{span.end} ({span.label})"
            return f"the span {location} is not in the text, which has {len(text):,} characters"
        if not inside.strip():
            return f"the span {span.show(text)} is blank"
        # A line break in a quote can be a line break, a \n or a space.
        if quoted is not None and quoted.replace("\\n", " ").split() != inside.replace("\\n", " ").split():
            return f"the span {span.show(text)} quotes another text: {quoted[:60]!r}"
    return ""


def _resolve_overlaps(
    spans: Sequence[TextSpan], text: str, overlapping: str, dropped_spans: list[TextSpan]
) -> list[TextSpan]:
    if overlapping == "longest":
        longest: list[TextSpan] = []
        # Sort by start - end, the negative length, so that the longest spans come first.
        for span in sorted(set(spans), key=lambda span: (span.start - span.end, span)):
            is_free = all(span.end <= longer.start or longer.end <= span.start for longer in longest)
            (longest if is_free else dropped_spans).append(span)
        spans = longest
    ordered = sorted(set(spans))
    for previous, current in pairwise(ordered):
        if current.start < previous.end:
            message = f"the spans {previous.show(text)} and {current.show(text)} overlap"
            raise DataError(message, "delete one, or --set options.overlapping=longest", column="spans")
    return ordered
