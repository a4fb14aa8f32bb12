"""Labeled spans of characters, as annotation tools export them, checked against the text that they are spans of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

from bertkit.data.json_objects import Item
from bertkit.errors import DataError

SPAN_COLUMNS = ("spans", "entities", "label", "labels")
"""What tools call the column of spans; the first that a file has is read."""

_FORM = 'write [{"start": 0, "end": 4, "label": "LOC"}]'
_ANSWERS = ("accept", "reject", "ignore")
_OF_CLASSES = {"label", "options", "accept"}  # what Prodigy's texts with classes have
_KEPT = ("answer", "meta", "_input_hash", "_task_hash")


class TextSpan(NamedTuple):
    """A label, and the first and last + 1 character of what has it."""

    start: int
    end: int
    label: str

    def show(self, text: str) -> str:
        """Quote the span with its offsets and its label."""
        return f"{self.start}:{self.end} {text[self.start : self.end]!r} ({self.label})"


# --- What tools export ---


def flatten_exports(items: Iterator[Item], name: str) -> Iterator[Item]:
    """Yield the rows of Prodigy, Label Studio and LightTag with the columns ``text`` and ``spans``; others as they are.

    Spans are None where nobody has annotated a text, or where its annotation was rejected, ignored or cancelled.

    Raises:
        DataError: the annotators of a text differ, or it is not found.
    """
    first = next(items, None)
    if first is None:
        return
    flatten = _find_tool(first[2]) if isinstance(first[2], dict) else None
    for row, is_suspect, value in chain([first], items):
        try:
            yield row, is_suspect, flatten(value) if flatten and isinstance(value, dict) else value
        except DataError as error:
            error.file, error.row = name, row
            raise


def _find_tool(row: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """Tell by its first row which tool has written a file."""
    annotations = row.get("annotations", row.get("completions"))
    if isinstance(row.get("data"), dict) and isinstance(annotations, list):
        return _flatten_label_studio
    if isinstance(row.get("content"), str) and isinstance(annotations, list):
        return _flatten_lighttag
    tokens = row.get("tokens")
    has_token_offsets = isinstance(tokens, list) and bool(tokens) and isinstance(tokens[0], dict)
    is_prodigy = "_task_hash" in row or row.get("answer") in _ANSWERS or has_token_offsets
    return _flatten_prodigy if "text" in row and is_prodigy and ("spans" in row or not _OF_CLASSES & set(row)) else None


def _flatten_prodigy(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the same columns as any other: Prodigy leaves out what it has nothing for."""
    spans = (row.get("spans") or []) if row.get("answer", "accept") == "accept" else None
    return {"text": row.get("text"), "spans": spans, **{key: row.get(key) for key in _KEPT}}


def _flatten_label_studio(task: dict[str, Any]) -> dict[str, Any]:
    """Return the text of a task, and the spans of its one annotation or of the one that is marked as ground truth."""
    texts = [value for key, value in task["data"].items() if isinstance(value, str)]
    if "text" not in task["data"] and len(texts) != 1:
        raise DataError(f"no 'text' in the data of the task; it has {list(task['data'])}", "call the text `text`")
    annotations = task.get("annotations", task.get("completions"))
    finished = [annotation for annotation in annotations or () if not annotation.get("was_cancelled")]
    finished = [annotation for annotation in finished if annotation.get("ground_truth")] or finished
    spans = [
        [result["value"] for result in annotation.get("result", ()) if "labels" in result.get("value", ())]
        for annotation in finished
    ]
    label_sets = [{(span.get("start"), span.get("end"), *span["labels"]) for span in given} for given in spans]
    if any(labels != label_sets[0] for labels in label_sets):
        hint = "mark one as ground truth, or export one for each task"
        raise DataError(f"the spans of {len(spans)} annotations differ", hint, column="annotations")
    text = task["data"].get("text", texts[0] if texts else None)
    return {"id": task.get("id"), "text": text, "spans": spans[0] if spans else None}


def _flatten_lighttag(example: dict[str, Any]) -> dict[str, Any]:
    """Return the text of an example, and its annotations without those that a review has called wrong."""
    spans = [
        {
            "start": one.get("start"),
            "end": one.get("end"),
            "label": one.get("tag"),
            "text": one.get("value"),
        }
        for one in example.get("annotations") or ()
        if one.get("correct") is not False
    ]
    is_unseen = example.get("seen_by") == [] and not example["annotations"]
    return {"id": example.get("example_id"), "text": example.get("content"), "spans": None if is_unseen else spans}


# --- Spans of a text ---


def read_spans(value: Any, text: str, *, offsets: str = "code_points", overlapping: str = "refuse") -> list[TextSpan]:
    """Read the spans of a text, given as a list or as JSON, in order and without the white space around them.

    Args:
        value: objects with ``start``, ``end`` (or ``start_offset``, ``end_offset``) and ``label`` (or ``labels``,
            ``type``), or lists of the three. An object's ``text`` is compared.
        text: what they are spans of.
        offsets: ``code_points``, or ``utf16`` for the units of a program in JavaScript. Where each span says its text,
            and it is found in UTF-16 units alone, these are read.
        overlapping: ``refuse``, or ``longest`` to leave out those that overlap a longer one.

    Raises:
        DataError: a value is no span, has no text or another one than it says, or overlaps another.
    """
    try:
        items = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        items = None
    if not isinstance(items, (list, tuple)):
        raise DataError(f"{str(value)[:60]!r} is not a list of spans", _FORM, column="spans")
    given = [span for number, item in enumerate(items, 1) for span in _read_span(item, number)]
    in_utf16 = [
        (span._replace(start=start, end=end), quoted) for span, quoted in given for start, end in [_offsets(span, text)]
    ]
    faults, faults_in_utf16 = (next(filter(None, (_fault(*one, text) for one in way)), "") for way in (given, in_utf16))
    says_text = bool(given) and all(quoted is not None for _, quoted in given)
    if offsets == "utf16" or (faults and says_text and not faults_in_utf16):
        given, faults = in_utf16, faults_in_utf16
    elif faults and not faults_in_utf16:
        raise DataError(faults, "if the offsets count UTF-16 units: --set options.offsets=utf16", column="spans")
    if faults:
        raise DataError(faults, "correct it: offsets count characters from 0, and the end is exclusive", column="spans")
    stripped = []
    for span, _ in given:
        inside = text[span.start : span.end]
        start = span.start + len(inside) - len(inside.lstrip())
        stripped.append(TextSpan(start, start + len(inside.strip()), span.label))
    return _without_overlaps(stripped, text, overlapping)


def _read_span(item: Any, number: int) -> list[tuple[TextSpan, str | None]]:
    """Read a span, one for each of its labels, and the text that it says it has."""
    start: Any = None  # of what is no span
    end, labels, quoted = start, start, start
    if isinstance(item, dict):
        start, end = item.get("start", item.get("start_offset")), item.get("end", item.get("end_offset"))
        labels, quoted = item.get("label", item.get("labels", item.get("type"))), item.get("text")
    elif isinstance(item, (list, tuple)) and len(item) == 3:
        start, end, labels = item
    labels = labels if isinstance(labels, (list, tuple)) else [labels]
    is_whole = all(isinstance(offset, int) and not isinstance(offset, bool) for offset in (start, end))
    if not is_whole or not labels or not all(isinstance(label, str) and label.strip() for label in labels):
        raise DataError(f"span {number}, {str(item)[:60]}, is not a start, an end and a label", _FORM, column="spans")
    return [(TextSpan(start, end, label.strip()), quoted if isinstance(quoted, str) else None) for label in labels]


def _offsets(span: TextSpan, text: str) -> tuple[int, int]:
    """Return UTF-16 offsets as those of characters; -1 for one inside a character, or behind the text."""
    if text.isascii():
        return span.start, span.end
    units = accumulate((1 + (char > "\uffff") for char in text), initial=0)
    index = {unit: position for position, unit in enumerate(units)}
    return index.get(span.start, -1), index.get(span.end, -1)


def _fault(span: TextSpan, quoted: str | None, text: str) -> str:
    """Return what is wrong with the offsets of a span; empty where nothing is."""
    if not 0 <= span.start < span.end <= len(text):
        return f"the span {span.start}:{span.end} ({span.label}) is not in the text, which has {len(text):,} characters"
    if not text[span.start : span.end].strip():
        return f"the span {span.show(text)} is blank"
    # tools write a line break in the text of a span in one way or another
    if (
        quoted is not None
        and quoted.replace("\\n", " ").split() != text[span.start : span.end].replace("\\n", " ").split()
    ):
        return f"the span {span.show(text)} has the text {quoted[:60]!r}, it says"
    return ""


def _without_overlaps(spans: Sequence[TextSpan], text: str, overlapping: str) -> list[TextSpan]:
    if overlapping == "longest":
        kept: list[TextSpan] = []
        for span in sorted(set(spans), key=lambda span: (span.start - span.end, span)):
            if all(span.end <= other.start or other.end <= span.start for other in kept):
                kept.append(span)
        spans = kept
    ordered = sorted(set(spans))
    for before, after in pairwise(ordered):
        if after.start < before.end:
            what = f"the spans {before.show(text)} and {after.show(text)} overlap"
            raise DataError(what, "keep one, or --set options.overlapping=longest", column="spans")
    return ordered
