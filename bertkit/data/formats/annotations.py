"""Files of annotation tools: brat's pairs of files, spaCy's `.spacy`, and the JSON of Prodigy and Label Studio."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from bertkit.data.text import JsonItem, Record, Source, excerpt, read_lines, read_text
from bertkit.errors import DataError, error_location
from bertkit.recipe.plugins import import_extra
from bertkit.recipe.records import DataConfig
from bertkit.recipe.sections import Row
from bertkit.storage.cache import log_once

_ENTITY = re.compile(r"T\d+\t(?P<label>\S+) (?P<parts>\d+ \d+(;\d+ \d+)*)\t(?P<text>.*)")
_UNREAD = {"A": "attribute", "M": "attribute", "R": "relation", "*": "relation", "E": "event", "#": "note"}
_ANSWERS = ("accept", "reject", "ignore")
_KEPT = ("answer", "meta", "_input_hash", "_task_hash")


def read_brat(source: Path, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield a row per text, with the name of its files as ``id``, ``text`` and ``spans`` (None without an ``.ann``).

    Raises:
        DataError: If a text is missing, or a line that starts with T is not an entity.
    """
    unread = Counter[str]()
    stems = {file.with_suffix("") for pattern in ("*.ann", "*.txt") for file in source.glob(pattern)}
    for row, stem in enumerate(sorted(stems) if source.is_dir() else [source.with_suffix("")], 1):
        text, annotation = stem.with_name(f"{stem.name}.txt"), stem.with_name(f"{stem.name}.ann")
        if not text.exists():
            raise DataError("an .ann file without its text", f"put {text.name} next to it", file=annotation)
        spans = list(_read_entities(annotation, data, unread)) if annotation.exists() else None
        yield row, {"id": stem.name, "text": "".join(read_text(text, data.encoding, str(text))), "spans": spans}
    report_unread(source, unread)


def _read_entities(file: Path, data: DataConfig, unread: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield the entities, and count the relations, events, attributes and notes.

    An entity over a line end has two parts in brat, one per line, and is one span.
    """
    for row, line in enumerate(read_lines(file, data.encoding, str(file)), 1):
        if not line.startswith("T"):
            if kind := _UNREAD.get(line[:1]):
                unread[" ".join([kind, *line.split()[1:2]]) if kind == "attribute" else kind] += 1
            continue
        entity = _ENTITY.match(line)
        if entity is None:
            raise DataError(f"not an entity: {excerpt(line)}", "write it as brat does", file=file, row=row)
        offsets = [int(offset) for offset in re.findall(r"\d+", entity["parts"])]
        span = {"start": offsets[0], "end": offsets[-1], "label": entity["label"], "text": entity["text"].rstrip("\r")}
        # Parts that only a line end (LF or CRLF) separates belong together.
        is_one_span = all(start - end <= 2 for end, start in zip(offsets[1::2], offsets[2::2], strict=False))
        yield span if is_one_span else {**span, "parts": entity["parts"].split(";")}


def read_spacy(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the documents with ``text`` and ``spans``, with None as `spans` for documents without annotated entities.

    Raises:
        UnavailableError: If spaCy is not installed.
        DataError: If the file is not a DocBin, or has no documents.
    """
    spacy = import_extra("spacy", "a .spacy file needs the package spacy", "spacy", "export it as .jsonl", file=name)
    return _read_docbin(spacy, source, name)


def _read_docbin(spacy: Any, source: Source, name: str) -> Iterator[Record]:
    content = source.read_bytes() if isinstance(source, Path) else source.read()
    try:
        documents = spacy.tokens.DocBin().from_bytes(content).get_docs(spacy.blank("xx").vocab)
        records = list(enumerate(map(_read_document, documents), 1))
    except Exception as error:  # zlib, msgpack, numpy and spaCy each raise their own errors for damaged files
        raise DataError(f"not a DocBin: {str(error)[:60]}", "write it with DocBin.to_disk", file=name) from None
    if not records:
        raise DataError("no documents", "add some", file=name)
    yield from records


def _read_document(document: Any) -> dict[str, Any]:
    spans = [{"start": entity.start_char, "end": entity.end_char, "label": entity.label_} for entity in document.ents]
    return {"text": document.text, "spans": spans if document.has_annotation("ENT_IOB") else None}


def report_unread(name: object, counts: Counter[str]) -> None:
    """Log how many annotations of each kind are not read."""
    if counts:
        kinds = ", ".join(f"{kind} ({count:,})" for kind, count in sorted(counts.items()))
        log_once(f"warning: annotations of {name} that are not read: {kinds}")


# --- Prodigy and Label Studio ---


def flatten_exports(items: Iterator[JsonItem], name: str, data: DataConfig) -> Iterator[JsonItem]:
    """Yield the rows of Prodigy and Label Studio as columns; others unchanged.

    The columns are ``text``, ``spans`` if the tool marks spans of the text, and ``label`` if it asks for classes: a
    list if some text has several. A text without annotation has None there.

    Raises:
        DataError: If the annotators of a text differ, or the text is not found.
    """
    first = next(items, None)
    flatten = _find_tool(first[2]) if first and isinstance(first[2], dict) else None
    items = chain([first] if first else [], items)
    # Exports are small enough for memory, because people annotated each row.
    exported = list(items) if flatten else []
    if flatten is None or not all(isinstance(value, dict) for *_, value in exported):
        yield from exported or items
        return
    values = flatten([value for *_, value in exported], name, data)
    for row, is_suspect, _ in exported:
        with error_location(file=name, row=row):
            value = next(values)
        yield row, is_suspect, value


def _find_tool(row: Row) -> Callable[[list[Row], str, DataConfig], Iterator[Row]] | None:
    """Return the function for exports of the tool that wrote this first row, or None for an unknown tool."""
    annotations = row.get("annotations", row.get("completions"))
    if isinstance(row.get("data"), dict) and isinstance(annotations, list):
        return _flatten_label_studio
    tokens = row.get("tokens")
    has_token_offsets = isinstance(tokens, list) and bool(tokens) and isinstance(tokens[0], dict)
    is_prodigy = "_task_hash" in row or row.get("answer") in _ANSWERS or has_token_offsets
    is_flat = "label" in row and not {"spans", "accept"} & set(row)
    return _flatten_prodigy if "text" in row and is_prodigy and not is_flat else None


def _flatten_prodigy(rows: list[Row], name: str, data: DataConfig) -> Iterator[Row]:
    """Yield rows with the same columns, because Prodigy leaves out empty ones."""
    # Prodigy stores the chosen classes of a choice in `accept`, and the verdict on the row in `answer`.
    accepted = [row.get("accept") or [] for row in rows]
    has_choices, has_several = any("options" in row for row in rows), any(len(labels) > 1 for labels in accepted)
    for row, labels in zip(rows, accepted, strict=True):
        columns: Row = {"text": row.get("text")}
        if not has_choices or "spans" in rows[0]:
            columns["spans"] = (row.get("spans") or []) if row.get("answer", "accept") == "accept" else None
        if has_choices:
            columns["label"] = labels if has_several else next(iter(labels), None)
        yield {**columns, **{key: row.get(key) for key in _KEPT}}


def _flatten_label_studio(tasks: list[Row], name: str, settings: DataConfig) -> Iterator[Row]:
    """Yield the text of each task, with the results of its one annotation or of the one marked as ground truth.

    If several tools mark spans, or ask for classes, the results of each are a column with its name.
    """
    key, unread = str(settings.columns.get("text", "text")), Counter[str]()
    texts = [data if isinstance(data := task.get("data"), dict) else {} for task in tasks]
    pairs = zip(texts, map(_find_finished, tasks), strict=True)
    annotated = [[_read_results(done, data, key, unread) for done in finished] for data, finished in pairs]
    report_unread(name, unread)
    every = [(tool, values) for results in chain.from_iterable(annotated) for tool, values in results.items()]
    kinds = {tool: "label" if isinstance(values[0], str) else "spans" for tool, values in every if values}
    columns = {tool: kind if [*kinds.values()].count(kind) == 1 else tool for tool, kind in kinds.items()}
    for tool in (tool for tool in kinds if columns[tool] != kinds[tool]):
        log_once(f"{name}: results of {tool} are a column; --set data.columns.{kinds[tool]}={tool} reads it")
    several = {tool for tool, values in every if len(values) > 1}
    for task, data, finished in zip(tasks, texts, annotated, strict=True):
        row = {"id": task.get("id"), key: _find_text(data, key)}
        for tool, column in (columns or {"": "spans"}).items():
            values = [results.get(tool, []) for results in finished]
            # Several annotations count as one if they agree, in any order.
            if len({frozenset(map(str, marked)) for marked in values}) > 1:
                hint = "mark one as ground truth, or export one per task"
                raise DataError(f"the {column} of {len(values)} annotations differ", hint, column="annotations")
            is_single = kinds.get(tool) == "label" and tool not in several
            row[column] = next(chain(*values[:1]), None) if is_single else next(iter(values), None)
        yield row


def _find_finished(task: Row) -> list[Row]:
    """Return the annotations of a task that were not cancelled; those marked as ground truth if there are any."""
    annotations = task.get("annotations", task.get("completions")) or ()
    finished = [annotation for annotation in annotations if not annotation.get("was_cancelled")]
    return [annotation for annotation in finished if annotation.get("ground_truth")] or finished


def _read_results(annotation: Row, texts: Row, key: str, unread: Counter[str]) -> dict[str, list[Any]]:
    """Return tool -> the spans or classes that it set for the text with this key, and count the other results."""
    by_tool = defaultdict[str, list[Any]](list)
    for result in annotation.get("result", ()):
        value, text = result.get("value", {}), result.get("to_name")
        form = next((name for name in value if name == "choices" or name.endswith("labels")), "")
        # A task may show several texts. Results for another text have offsets in that text.
        is_of_other = key in texts and text != key and text in texts
        if not form or is_of_other or (form == "choices" and "start" in value):
            unread[f"{form or result.get('type')}{f' of {text}' if is_of_other else ''}"] += 1
            continue
        if form not in ("choices", "labels"):
            log_once(f"regions of {form} are read by their globalOffsets")
            value = {"type": form, **value, **value.get("globalOffsets", {}), "labels": value[form]}
        by_tool[result.get("from_name", form)] += value[form] if form == "choices" else [value]
    return by_tool


def _find_text(texts: Row, key: str) -> Any:
    """Return the text of a task by its key, or its only text."""
    strings = [value for value in texts.values() if isinstance(value, str)]
    if key not in texts and len(strings) != 1:
        message = f"no {key!r} in the data of the task; it has {list(texts)}"
        raise DataError(message, "--set data.columns.text=KEY")
    return texts.get(key, *strings[:1])
