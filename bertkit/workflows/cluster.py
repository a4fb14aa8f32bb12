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
    """Number of clusters -> mean silhouette; empty unless the silhouette determined the number."""


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
        count: Number of clusters of k-means; None chooses it by silhouette. HDBSCAN needs no number.
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
    all_texts = _read_texts(texts)
    # Rows without text have no vector, so the arrays below leave them out.
    rows_with_text = [row for row, text in enumerate(all_texts) if text]
    nonempty_texts = [all_texts[row] for row in rows_with_text]
    if count is not None and count > len(rows_with_text):
        raise UsageError(f"--clusters {count}, but {len(rows_with_text):,} rows have text", "request fewer clusters")
    with ExitStack() as locks:
        # 2. Lock the outputs, so that an output that cannot be written is an error before the work.
        if output is not None:
            locks.enter_context(lock_output(output))
        if save is not None:
            locks.enter_context(lock_output_folder(save))

        # 3. Compute the vectors, cluster them, and name each cluster by its most typical words.
        vectors = source.read(nonempty_texts, np.array(rows_with_text), [len(all_texts)])
        silhouettes: dict[int, float] = {}
        if method == "kmeans" and count is None:
            count, silhouettes = choose_count(vectors, seed)
        with stage("clustering"):
            clustering, labels = fit_clusters(vectors, method, count or 0, min_size=min_size, seed=seed)
            # HDBSCAN labels noise with -1, which is not a cluster.
            sizes = np.bincount(labels[labels >= 0]).tolist()
            words = find_words(nonempty_texts, labels)
            examples = find_examples(vectors, labels, find_centroids(vectors, labels), nonempty_texts)
            topics = [
                Topic(index, size, words[index], [nonempty_texts[row] for row in examples[index]])
                for index, size in enumerate(sizes)
            ]

        # 4. Write the folder and the rows. The folder gets its name last, when the stack closes, so a killed command
        #    leaves no folder and can be repeated.
        if save is not None:
            locks.enter_context(disk_errors(save.parent))
            staging_folder = locks.enter_context(stage_folder(save))
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
            save_clusters(staging_folder, SavedClusters(clustering, topics, metadata))
            _write_map(staging_folder, vectors, labels, nonempty_texts, topics)
        noise = _write_rows(output, texts, all_texts, labels, topics)
        return ClusterResult(method, len(all_texts), topics, noise, silhouettes)


def assign(texts: TextFile, source: VectorSource | None, folder: Path, *, output: Path | None = None) -> ClusterResult:
    """Assign each text of a file to the cluster of the nearest point, with clusters from a folder.

    Args:
        texts: File with the texts.
        source: Source of the vectors; by default, the model of the clusters.
        folder: Folder that `cluster` saved.
        output: File for the rows with ``cluster`` and ``topic``.

    Raises:
        ModelError: If the folder is damaged, or belongs to another model.
        BertkitError: If a file or an option is wrong; see `bertkit.errors`.
    """
    # 1. Read the clusters and the texts, and check that both have the same prompt.
    clusters = load_clusters(folder)
    settings = clusters.settings
    if source is None:
        if settings["model"] is None:
            raise UsageError("the clusters were computed from a file of vectors", "give --vectors for these rows, too")
        source = VectorSource(settings["model"], prefix=settings["prompt"])
    _check_outputs(texts, source, output, None)
    all_texts = _read_texts(texts)
    if source.model is not None and settings["prompt"] != source.prompt_text:
        message = f"the clusters were made with the prompt {settings['prompt']!r}, not {source.prompt_text!r}"
        raise UsageError(message, "leave --model out to use the same")

    with nullcontext() if output is None else lock_output(output):
        # 2. Compute the vectors. The model is checked before, the dimension afterwards.
        vector_info = source.describe()
        check_same_vectors(clusters, vector_info, None, folder)
        rows_with_text = [row for row, text in enumerate(all_texts) if text]
        vectors = source.read([all_texts[row] for row in rows_with_text], np.array(rows_with_text), [len(all_texts)])
        check_same_vectors(clusters, vector_info, vectors, folder)

        # 3. Assign the texts, and write the rows.
        labels = clusters.clustering.assign(vectors)
        sizes = np.bincount(labels[labels >= 0], minlength=len(clusters.topics)).tolist()
        topics = [replace(topic, rows=sizes[topic.cluster]) for topic in clusters.topics]
        noise = _write_rows(output, texts, all_texts, labels, topics)
        return ClusterResult(settings["method"], len(all_texts), topics, noise)


def _check_outputs(texts: TextFile, source: VectorSource, output: Path | None, save: Path | None) -> None:
    """Check that the outputs overwrite neither an input nor an existing folder of clusters."""
    if save is not None:
        check_empty(save, *([] if output is None else [output]))
    if output is not None:
        find_writer(output)
        vector_files = [("the file with the vectors", file) for file in source.files]
        check_not_inputs(output, [("the file to cluster", texts.path), *vector_files])


def _read_texts(texts: TextFile) -> list[str]:
    """Read the text of each row, and log how many rows have none.

    Raises:
        DataError: If no row has text, or a column has the name of a column of the output.
    """
    all_texts: list[str] = []
    for row in texts:
        if not all_texts:
            check_clash(row.record, ("cluster", "topic"), "the output has", texts.name)
        all_texts.append(row.text)
    num_empty = sum(not text for text in all_texts)
    if num_empty == len(all_texts):
        raise DataError("no row has text", "name another --column", file=texts.name, column=texts.column)
    if num_empty:
        log.info(f"rows without text, in no cluster: {num_empty:,}")
    return all_texts


def _write_rows(
    output: Path | None, texts: TextFile, all_texts: Sequence[str], labels: Labels, topics: Sequence[Topic]
) -> int:
    """Write all rows with their clusters, and return the number of rows in none; `labels` skips rows without text."""
    # For the texts ["a", "", "b"] and the labels [1, 0], the row labels are [1, -1, 0].
    next_label = iter(labels.tolist())
    row_labels = [next(next_label) if text else -1 for text in all_texts]

    def records() -> Iterator[dict[str, Any]]:
        for index, (row, label) in enumerate(zip(texts, row_labels, strict=True)):
            topic = ", ".join(topics[label].words[:_TOPIC_WORDS]) if label >= 0 else ""
            yield {"id": row.record.get("id", index), **row.record, "cluster": label, "topic": topic}

    if output is not None:
        write_records(records(), output)
    return row_labels.count(-1)


def _write_map(folder: Path, vectors: Matrix, labels: Labels, texts: Sequence[str], topics: Sequence[Topic]) -> None:
    """Write the coordinates of all rows with text to map.parquet, and a page that draws them, map.html."""
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
