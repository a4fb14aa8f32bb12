"""Group the texts of a file by their vectors, or assign them to groups that were found before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.analysis.map import project
from bertkit.data.columns import check_clash
from bertkit.data.output import find_writer, write_records
from bertkit.errors import DataError, UsageError
from bertkit.progress import log, stage
from bertkit.storage.files import disk_errors
from bertkit.storage.outputs import check_empty, check_not_inputs, lock_output, lock_output_folder, stage_folder
from bertkit.vectors.clusters import (
    Labels,
    SavedClusters,
    Topic,
    check_same_vectors,
    choose_count,
    find_centroids,
    find_examples,
    find_words,
    fit_clusters,
    load_clusters,
    save_clusters,
)
from bertkit.vectors.text_files import TextFile, VectorSource
from bertkit.vectors.vector_files import Matrix

_TOPIC_WORDS = 5  # words per cluster in the column `topic` and on the map


@dataclass(frozen=True)
class ClusterResult:
    """Clusters, and how many rows are in each."""

    method: str
    rows: int
    topics: list[Topic]
    noise: int
    """Number of rows in no cluster: rows outside of the dense regions of HDBSCAN, and rows without text."""
    silhouettes: dict[int, float] = field(default_factory=dict)
    """Number of clusters -> mean silhouette; empty unless the number was chosen by it."""


def cluster(
    texts: TextFile,
    source: VectorSource,
    *,
    method: str = "kmeans",
    count: int | None = None,
    min_size: int = 10,
    seed: int = 42,
    output: Path | None = None,
    save: Path | None = None,
) -> ClusterResult:
    """Find clusters of the texts of a file, and name them by their words.

    Args:
        texts: File with the texts.
        source: Source of the vectors.
        method: Clustering method, ``kmeans`` or ``hdbscan``.
        count: Number of clusters of k-means; None chooses it by silhouette. HDBSCAN determines its number itself.
        min_size: Minimum number of rows per cluster of HDBSCAN.
        seed: Random seed of k-means and of samples.
        output: File for the rows with ``cluster`` and ``topic``.
        save: Folder for the clusters and a map of the rows.

    Raises:
        BertkitError: If a file, an option or the model is wrong; see `bertkit.errors`.
    """
    # 1. Check the options and read the texts. `source.embedder` checks the model, but does not load it.
    _check_outputs(texts, source, output, save)
    if method == "hdbscan" and count is not None:
        raise UsageError("--clusters with --method hdbscan", "HDBSCAN finds their number: set --min-size instead")
    _ = source.embedder
    contents = _read_texts(texts)
    # Rows without text have no vector, so all arrays below leave them out.
    rows_with_text = [row for row, text in enumerate(contents) if text]
    texts_with_text = [contents[row] for row in rows_with_text]
    if count is not None and count > len(rows_with_text):
        raise UsageError(f"--clusters {count}, but {len(rows_with_text):,} rows have text", "request fewer clusters")
    with ExitStack() as claims:
        # 2. Claim the outputs, so that outputs that cannot be written are rejected before the work.
        if output is not None:
            claims.enter_context(lock_output(output))
        if save is not None:
            claims.enter_context(lock_output_folder(save))

        # 3. Compute the vectors, cluster them, and name each cluster by its most typical words.
        vectors = source.read(texts_with_text, np.array(rows_with_text), [len(contents)])
        silhouettes: dict[int, float] = {}
        if method == "kmeans" and count is None:
            count, silhouettes = choose_count(vectors, seed)
        with stage("clustering"):
            clustering, clusters = fit_clusters(vectors, method, count or 0, min_size=min_size, seed=seed)
            # The cluster -1 of HDBSCAN means noise, and has neither size nor topic.
            sizes, words = np.bincount(clusters[clusters >= 0]).tolist(), find_words(texts_with_text, clusters)
            examples = find_examples(vectors, clusters, find_centroids(vectors, clusters), texts_with_text)
            topics = [
                Topic(index, size, words[index], [texts_with_text[row] for row in examples[index]])
                for index, size in enumerate(sizes)
            ]

        # 4. Write the folder and the rows. The folder gets its name when the stack closes, after the rows are written.
        #    So a killed command leaves no folder, and the same command can be repeated.
        if save is not None:
            claims.enter_context(disk_errors(save.parent))
            staging = claims.enter_context(stage_folder(save))
            metadata = {
                "method": method,
                "seed": seed,
                "rows": len(rows_with_text),
                "column": texts.column,
                "model": source.model,
                "prompt": source.prompt_text,
                "dimension": vectors.shape[1],
                "vectors": source.describe(),
            }
            save_clusters(staging, SavedClusters(clustering, topics, metadata))
            _write_map(staging, vectors, clusters, texts_with_text, topics)
        noise = _write_rows(output, texts, contents, clusters, topics)
        return ClusterResult(method, len(contents), topics, noise, silhouettes)


def assign(texts: TextFile, source: VectorSource | None, folder: Path, *, output: Path | None = None) -> ClusterResult:
    """Assign the texts of a file to the clusters of a folder; each joins the cluster of the nearest point.

    Args:
        texts: File with the texts.
        source: Source of the vectors; by default, the model that the clusters were made with.
        folder: Folder that `cluster` saved.
        output: File for the rows with ``cluster`` and ``topic``.

    Raises:
        ModelError: If the folder is damaged, or belongs to another model.
        BertkitError: If a file or an option is wrong; see `bertkit.errors`.
    """
    # 1. Read the clusters and the texts, and check that both have the same prompt.
    saved = load_clusters(folder)
    if source is None:
        if saved.settings["model"] is None:
            raise UsageError("the clusters were made of vectors in a file", "give --vectors for these rows, too")
        source = VectorSource(saved.settings["model"], prefix=saved.settings["prompt"])
    _check_outputs(texts, source, output, None)
    contents = _read_texts(texts)
    if source.model is not None and saved.settings["prompt"] != source.prompt_text:
        message = f"the clusters were made with the prompt {saved.settings['prompt']!r}, not {source.prompt_text!r}"
        raise UsageError(message, "leave --model out to use the same")

    with nullcontext() if output is None else lock_output(output):
        # 2. Compute the vectors. The model is checked before, the dimension afterwards.
        described = source.describe()
        check_same_vectors(saved, described, None, folder)
        rows_with_text = [row for row, text in enumerate(contents) if text]
        vectors = source.read([contents[row] for row in rows_with_text], np.array(rows_with_text), [len(contents)])
        check_same_vectors(saved, described, vectors, folder)

        # 3. Assign them, and write the rows.
        labels = saved.clustering.assign(vectors)
        sizes = np.bincount(labels[labels >= 0], minlength=len(saved.topics)).tolist()
        topics = [replace(topic, rows=sizes[topic.cluster]) for topic in saved.topics]
        noise = _write_rows(output, texts, contents, labels, topics)
        return ClusterResult(saved.settings["method"], len(contents), topics, noise)


def _check_outputs(texts: TextFile, source: VectorSource, output: Path | None, save: Path | None) -> None:
    """Check that the outputs overwrite neither an input nor an existing folder of clusters."""
    if save is not None:
        check_empty(save, *([] if output is None else [output]))
    if output is not None:
        find_writer(output)
        vectors = [("the file with the vectors", file) for file in source.files]
        check_not_inputs(output, [("the file to cluster", texts.path), *vectors])


def _read_texts(texts: TextFile) -> list[str]:
    """Read the text of each row, and log how many rows have none.

    Raises:
        DataError: If no row has text, or a column has the name of a column of the output.
    """
    contents: list[str] = []
    for row in texts:
        if not contents:
            check_clash(row.record, ("cluster", "topic"), "the output has", texts.name)
        contents.append(row.text)
    empty = sum(not text for text in contents)
    if empty == len(contents):
        raise DataError("no row has text", "name another --column", file=texts.name, column=texts.column)
    if empty:
        log.info(f"rows without text, in no cluster: {empty:,}")
    return contents


def _write_rows(
    output: Path | None, texts: TextFile, contents: Sequence[str], labels: Labels, topics: Sequence[Topic]
) -> int:
    """Write all rows with their clusters, and return how many are in none; `labels` has only the rows with text."""
    # For the texts ["a", "", "b"] and the labels [1, 0], the rows have the clusters [1, -1, 0].
    filled_labels = iter(labels.tolist())
    row_labels = [next(filled_labels) if text else -1 for text in contents]

    def records() -> Iterator[dict[str, Any]]:
        for index, (row, label) in enumerate(zip(texts, row_labels, strict=True)):
            topic = ", ".join(topics[label].words[:_TOPIC_WORDS]) if label >= 0 else ""
            yield {"id": row.record.get("id", index), **row.record, "cluster": label, "topic": topic}

    if output is not None:
        write_records(records(), output)
    return row_labels.count(-1)


def _write_map(folder: Path, vectors: Matrix, labels: Labels, texts: Sequence[str], topics: Sequence[Topic]) -> None:
    """Write map.parquet with the coordinates of all rows with text, and map.html with their picture."""
    from bertkit.reports.map import MapLayer, MapPage, MapPoint, write_map

    plane = project(vectors)
    rows = [
        {"x": x, "y": y, "cluster": label, "text": text}
        for (x, y), label, text in zip(plane.points.tolist(), labels.tolist(), texts, strict=True)
    ]
    write_records(rows, folder / "map.parquet")
    names = {topic.cluster: f"{topic.cluster}  {', '.join(topic.words[:_TOPIC_WORDS])}" for topic in topics}
    points = [MapPoint(index, row["text"], names.get(row["cluster"])) for index, row in enumerate(rows)]
    notes = ["Each point is a text; its color is its cluster. The axes are the first two principal components."]
    about = f"{sum(plane.explained or ()):.0%} of the variance of the vectors"
    page = MapPage(f"{len(topics)} clusters of {len(rows):,} texts", notes)
    write_map(folder / "map.html", points, [MapLayer("", plane.points, about)], page)
