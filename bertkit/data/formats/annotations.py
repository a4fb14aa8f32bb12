"""Readers of annotation files: brat, spaCy's `.spacy`, and the JSON of Prodigy and Label Studio."""

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
_UNREAD_KINDS = {"A": "attribute", "M": "attribute", "R": "relation", "*": "relation", "E": "event", "#": "note"}
_ANSWERS = ("accept", "reject", "ignore")
_PRODIGY_COLUMNS = ("answer", "meta", "_input_hash", "_task_hash")


def read_brat(source: Path, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield a row per text: the name of its files as ``id``, ``text``, and ``spans`` (None without an ``.ann`` file).

    Raises:
        DataError: If a text is missing, or a line that starts with T is not an entity.
    """
    unread_counts = Counter[str]()
    stems = {file.with_suffix("") for pattern in ("*.ann", "*.txt") for file in source.glob(pattern)}
    for row, stem in enumerate(sorted(stems) if source.is_dir() else [source.with_suffix("")], 1):
        text_file, annotation_file = stem.with_name(f"{stem.name}.txt"), stem.with_name(f"{stem.name}.ann")
        if not text_file.exists():
            raise DataError("an .ann file without its text", f"add {text_file.name}", file=annotation_file)
        spans = list(_read_entities(annotation_file, data, unread_counts)) if annotation_file.exists() else None
        text = "".join(read_text(text_file, data.encoding, str(text_file)))
        yield row, {"id": stem.name, "text": text, "spans": spans}
    report_unread(source, unread_counts)


def _read_entities(file: Path, data: DataConfig, unread_counts: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield the entities, and count the relations, events, attributes and notes.

    In brat, an entity that crosses a line end has one part per line; here, it is one span.
    """
    for row, line in enumerate(read_lines(file, data.encoding, str(file)), 1):
        if not line.startswith("T"):
            if kind := _UNREAD_KINDS.get(line[:1]):
                unread_counts[" ".join([kind, *line.split()[1:2]]) if kind == "attribute" else kind] += 1
            continue
        entity = _ENTITY.match(line)
        if entity is None:
            remedy = "write T1, a tab, LABEL START END, a tab and the text"
            raise DataError(f"not an entity of brat: {excerpt(line)}", remedy, file=file, row=row)
        offsets = [int(offset) for offset in re.findall(r"\d+", entity["parts"])]
        span = {"start": offsets[0], "end": offsets[-1], "label": entity["label"], "text": entity["text"].rstrip("\r")}
        # Join parts that are separated only by a line end (LF or CRLF).
        is_one_span = all(start - end <= 2 for end, start in zip(offsets[1::2], offsets[2::2], strict=False))
        yield span if is_one_span else {**span, "parts": entity["parts"].split(";")}


def read_spacy(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield ``text`` and ``spans`` of each document, with None as spans for documents without annotated entities.

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
        raise DataError("the file has no documents", "add documents", file=name)
    yield from records


def _read_document(document: Any) -> dict[str, Any]:
    spans = [{"start": entity.start_char, "end": entity.end_char, "label": entity.label_} for entity in document.ents]
    return {"text": document.text, "spans": spans if document.has_annotation("ENT_IOB") else None}


def report_unread(name: object, counts: Counter[str]) -> None:
    """Log the number of unread annotations of each kind."""
    if counts:
        kinds = ", ".join(f"{kind} ({count:,})" for kind, count in sorted(counts.items()))
        log_once(f"warning: annotations of {name} that are not read: {kinds}")


# --- Prodigy and Label Studio ---


def flatten_exports(items: Iterator[JsonItem], name: str, data: DataConfig) -> Iterator[JsonItem]:
    """Flatten the rows of Prodigy and Label Studio into columns; yield other rows unchanged.

    The columns are ``text``, ``spans`` if the tool marks spans of the text, and ``label`` if it asks for classes (a
    list if some text has several classes). Texts without annotation have None in these columns.

    Raises:
        DataError: If annotations of a text differ, or the text is not found.
    """
    first_item = next(items, None)
    flatten = _find_flattener(first_item[2]) if first_item and isinstance(first_item[2], dict) else None
    items = chain([first_item] if first_item else [], items)
    # Exports fit in memory, because people annotated each row.
    exported_items = list(items) if flatten else []
    if flatten is None or not all(isinstance(value, dict) for *_, value in exported_items):
        yield from exported_items or items
        return
    values = flatten([value for *_, value in exported_items], name, data)
    for row, is_suspect, _ in exported_items:
        with error_location(file=name, row=row):
            value = next(values)
        yield row, is_suspect, value


def _find_flattener(row: Row) -> Callable[[list[Row], str, DataConfig], Iterator[Row]] | None:
    """Return the function for the tool that wrote the first row, or None for an unknown tool."""
    annotations = row.get("annotations", row.get("completions"))
    if isinstance(row.get("data"), dict) and isinstance(annotations, list):
        return _flatten_label_studio
    tokens = row.get("tokens")
    has_token_offsets = isinstance(tokens, list) and bool(tokens) and isinstance(tokens[0], dict)
    is_prodigy = "_task_hash" in row or row.get("answer") in _ANSWERS or has_token_offsets
    is_flat = "label" in row and not {"spans", "accept"} & set(row)
    return _flatten_prodigy if "text" in row and is_prodigy and not is_flat else None


def _flatten_prodigy(rows: list[Row], name: str, data: DataConfig) -> Iterator[Row]:
    """Yield rows that all have the same columns; Prodigy leaves out empty columns."""
    # `accept` has the selected classes; `answer` is "accept" if the annotator accepted the row.
    accepted = [row.get("accept") or [] for row in rows]
    has_choices, is_multi_label = any("options" in row for row in rows), any(len(labels) > 1 for labels in accepted)
    for row, labels in zip(rows, accepted, strict=True):
        columns: Row = {"text": row.get("text")}
        if not has_choices or "spans" in rows[0]:
            columns["spans"] = (row.get("spans") or []) if row.get("answer", "accept") == "accept" else None
        if has_choices:
            columns["label"] = labels if is_multi_label else next(iter(labels), None)
        yield {**columns, **{key: row.get(key) for key in _PRODIGY_COLUMNS}}


def _flatten_label_studio(tasks: list[Row], name: str, settings: DataConfig) -> Iterator[Row]:
    """Yield the text of each task with the results of its annotation, or of the annotation marked as ground truth.

    If several tools mark spans, or several ask for classes, each tool has a column with its name.
    """
    # 1. Read the results. An item of `annotated` has the results of a task, per annotation and tool.
    key, unread_counts = str(settings.columns.get("text", "text")), Counter[str]()
    texts = [data if isinstance(data := task.get("data"), dict) else {} for task in tasks]
    pairs = zip(texts, map(_get_finished, tasks), strict=True)
    annotated = [[_read_results(done, data, key, unread_counts) for done in finished] for data, finished in pairs]
    report_unread(name, unread_counts)
    # 2. Name the column of each tool.
    results = [result for by_tool in chain.from_iterable(annotated) for result in by_tool.items()]
    kinds = {tool: "label" if isinstance(values[0], str) else "spans" for tool, values in results if values}
    columns = {tool: kind if [*kinds.values()].count(kind) == 1 else tool for tool, kind in kinds.items()}
    for tool in (tool for tool in kinds if columns[tool] != kinds[tool]):
        log_once(f"{name}: results of {tool} are a column; --set data.columns.{kinds[tool]}={tool} reads it")
    # 3. Yield the rows. A column of classes has a label per row, or a list of labels if some text has several.
    list_tools = {tool for tool, values in results if len(values) > 1}
    for task, data, task_results in zip(tasks, texts, annotated, strict=True):
        row = {"id": task.get("id"), key: _get_text(data, key)}
        for tool, column in (columns or {"": "spans"}).items():
            versions = [by_tool.get(tool, []) for by_tool in task_results]
            # Several annotations count as one if they agree, in any order.
            if len({frozenset(map(str, values)) for values in versions}) > 1:
                hint = "mark one as ground truth, or export one per task"
                raise DataError(f"{len(versions)} annotations differ in {column}", hint, column="annotations")
            values, is_label = next(iter(versions), None), kinds.get(tool) == "label" and tool not in list_tools
            row[column] = next(iter(values or ()), None) if is_label else values
        yield row


def _get_finished(task: Row) -> list[Row]:
    """Return the annotations of a task that were not cancelled; only those marked as ground truth, if there are any."""
    annotations = task.get("annotations", task.get("completions")) or ()
    finished = [annotation for annotation in annotations if not annotation.get("was_cancelled")]
    return [annotation for annotation in finished if annotation.get("ground_truth")] or finished


def _read_results(annotation: Row, texts: Row, key: str, unread_counts: Counter[str]) -> dict[str, list[Any]]:
    """Return tool -> its spans or classes for the text with this key, and count the other results."""
    by_tool = defaultdict[str, list[Any]](list)
    for result in annotation.get("result", ()):
        value, text = result.get("value", {}), result.get("to_name")
        kind = next((name for name in value if name == "choices" or name.endswith("labels")), "")
        # A task can show several texts. Results for another text have offsets in that text.
        is_other_text = key in texts and text != key and text in texts
        if not kind or is_other_text or (kind == "choices" and "start" in value):
            unread_counts[f"{kind or result.get('type')}{f' of {text}' if is_other_text else ''}"] += 1
            continue
        if kind not in ("choices", "labels"):
            log_once(f"regions of {kind} are read by their globalOffsets")
            value = {"type": kind, **value, **value.get("globalOffsets", {}), "labels": value[kind]}
        by_tool[result.get("from_name", kind)] += value[kind] if kind == "choices" else [value]
    return by_tool


def _get_text(texts: Row, key: str) -> Any:
    """Return the text of a task by its key, or its only text."""
    strings = [value for value in texts.values() if isinstance(value, str)]
    if key not in texts and len(strings) != 1:
        message = f"no {key!r} in the data of the task; the keys are {list(texts)}"
        raise DataError(message, "--set data.columns.text=KEY")
    return texts.get(key, *strings[:1])
