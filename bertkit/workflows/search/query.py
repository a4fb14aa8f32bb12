"""Find the rows of an index that are nearest to queries."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bertkit.data.output import write_records, writer_for
from bertkit.errors import UsageError
from bertkit.progress import SILENT, Progress, stage
from bertkit.recipe import typed_path
from bertkit.storage.outputs import claimed, refuse_inputs
from bertkit.vectors.coverage import find_truncated
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.index import Index
from bertkit.vectors.index.models import embedder_of

log = logging.getLogger("bertkit")

_CHUNK = 1024  # queries that are embedded and searched at a time

Query = tuple[dict[str, Any], str]
"""What every result of a query begins with, and its text."""


def query(
    folder: str | Path,
    queries: Iterable[Query],
    *,
    k: int = 10,
    model: str | None = None,
    prompt: str | None = None,
    verify: bool = False,
    progress: Progress = SILENT,
) -> Iterator[dict[str, Any]]:
    """Yield the `k` nearest rows of each query, the nearest first.

    Args:
        folder: of the index.
        queries: with what their results begin with, such as ``{"query": text}``.
        k: results per query; all rows where there are fewer.
        model: where the model of the index is now; by default where it was.
        prompt: name of the prompt, which must be the one that the index was built for.
        verify: whether to compare the checksums of all files of the index first.
        progress: shows how far the work is.

    Returns:
        records with ``rank`` (from 1), ``score`` and the columns of the row: ``id``, ``text`` and others.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    folder = typed_path(folder)
    if k < 1:
        raise UsageError(f"-k {k}", "ask for at least 1")
    index = Index.open(folder, verify=verify)
    built_for = index.manifest.prompts.get("query", {}).get("name")
    if prompt is not None and prompt != built_for:
        what = f"--prompt {prompt}, but the index was built for queries with {_prompt_name(built_for)}"
        raise UsageError(what, "leave --prompt out, or build the index with --query-prompt", file=folder)
    if k > len(index):
        log.info(f"the index has {len(index):,} rows: each query gets all of them, not {k:,}")
    remaining = iter(queries)
    first = next(remaining, None)
    if first is None:
        raise UsageError("no query", 'give one, e.g. "how to open a file", or --file')
    with stage(progress, f"loading {model or index.manifest.model}"):
        embedder = embedder_of(index.manifest, "query", folder=folder, model=model)
    return _search(index, embedder, chain([first], remaining), k)


def _search(index: Index, embedder: Embedder, queries: Iterable[Query], k: int) -> Iterator[dict[str, Any]]:
    remaining = iter(queries)
    while chunk := list(islice(remaining, _CHUNK)):
        texts = [text for _, text in chunk]
        for position in find_truncated(texts, embedder):
            limit = embedder.tokenizer.model_max_length
            log.info(f"a query is longer than {limit} tokens, so only its beginning counts: {texts[position][:60]}...")
        scores, numbers = index.search(embedder.encode(texts), k)
        for (begin, _), values, found in zip(chunk, scores, numbers, strict=True):
            for rank, (score, record) in enumerate(zip(values.tolist(), index.rows(found), strict=True), start=1):
                yield {**begin, "rank": rank, "score": score, **record}


def _prompt_name(name: str | None) -> str:
    return "no prompt" if name is None else f"the prompt {name!r}"


def query_to_file(
    records: Iterable[dict[str, Any]], output: str | Path, *, index: str | Path, source: str | Path | None = None
) -> int:
    """Write results with `write_records`, and return their number.

    Args:
        records: that `query` yields.
        output: its ending chooses the format.
        index: a folder in which nothing is written.
        source: the file of queries, which is not overwritten.

    Raises:
        UsageError: the output is a file that is read, or has an ending of no format.
        ResourceError: another process is writing the output, or it cannot be written.
    """
    output = typed_path(output)
    writer_for(output)
    inputs = [("the file of queries", typed_path(source))] if source is not None and str(source) != "-" else []
    inputs += [("a file of the index", file) for file in typed_path(index).rglob("*") if file.is_file()]
    refuse_inputs(output, inputs)
    with claimed(output):
        return write_records(records, output)
