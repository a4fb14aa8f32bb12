"""`bertkit cluster`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from bertkit.cli.options import (
    ColumnOption,
    DataSettingsOption,
    PromptOption,
    PromptTextOption,
    SeedOption,
    argument,
    check_unused_options,
    option,
    output_option,
    read_data_options,
)
from bertkit.cli.output import format_rows, print_line, print_result, print_text
from bertkit.errors import shorten

if TYPE_CHECKING:
    from bertkit.workflows.cluster import ClusterResult

ORDER = 44
EXAMPLE = "bertkit cluster reviews.csv --column review --model sentence-transformers/all-MiniLM-L6-v2 --save topics"

_MAX_WORDS = 8  # per cluster
_EXAMPLE_LENGTH = 100  # characters

TextsArgument = Annotated[str, argument("Rows with texts: csv, tsv, jsonl, json, parquet, txt.", "FILE")]
VectorsOption = Annotated[
    Path | None,
    option("File with a vector per row, instead of --model: .npy or .parquet.", "FILE"),
]
EmbeddingModelOption = Annotated[
    str | None, option("Model that computes the vectors: Hub name, directory, run folder or `demo`.", "MODEL")
]


def command(
    file: TextsArgument,
    model: EmbeddingModelOption = None,
    vectors: VectorsOption = None,
    column: ColumnOption = "text",
    prompt: PromptOption = None,
    prompt_text: PromptTextOption = None,
    method: Annotated[
        Literal["kmeans", "hdbscan"], option("Clustering method: kmeans or hdbscan.", "METHOD")
    ] = "kmeans",
    clusters: Annotated[int | None, option("Number of clusters.", "N", "chosen by silhouette", min=2)] = None,
    min_size: Annotated[int, option("Minimum rows per cluster (hdbscan).", "N", min=2)] = 10,
    seed: SeedOption = 42,
    output: Annotated[
        Path | None,
        output_option("File for the rows with their cluster and its words: .jsonl, .csv, .tsv or .parquet.", "FILE"),
    ] = None,
    save: Annotated[Path | None, option("New folder for the clusters and a map of the rows.", "DIR")] = None,
    assign: Annotated[
        Path | None, option("Folder from --save, whose clusters to assign rows to instead of new ones.", "DIR")
    ] = None,
    changes: DataSettingsOption = None,
) -> None:
    """Group the texts of a file by meaning.

    Prints the size of each cluster, its characteristic words, and its most typical text.
    """
    from bertkit.recipe.sections import expand_path
    from bertkit.vectors.text_files import TextFile, VectorSource
    from bertkit.workflows.cluster import assign as assign_rows
    from bertkit.workflows.cluster import cluster

    if assign is not None:
        new_cluster_options = {"--clusters": clusters, "--save": save}
        check_unused_options(new_cluster_options, "with --assign", "leave it out: the folder already has clusters")
    data = read_data_options(column, changes)
    files = () if vectors is None else (expand_path(vectors),)
    source = VectorSource(model, files, prompt, prompt_text)
    texts = TextFile.open(file, column, data)
    rows_file = None if output is None else expand_path(output)
    if assign is not None:
        new_source = source if model or files or prompt or prompt_text else None
        result = assign_rows(texts, new_source, expand_path(assign), output=rows_file)
    else:
        result = cluster(
            texts,
            source,
            method=method,
            count=clusters,
            min_size=min_size,
            seed=seed,
            output=rows_file,
            save=None if save is None else expand_path(save),
        )
    written = [str(path) for path in (rows_file, save) if path is not None]
    print_result({**vars(result), "written": written}, lambda _: print_clusters(result, written))


def print_clusters(result: ClusterResult, written: list[str]) -> None:
    """Print the size, words and most typical text of each cluster, the largest first."""
    selection = ""
    if result.silhouettes:
        # The silhouette compares distances within a cluster with distances to the nearest other cluster. 1 is best,
        # and 0 means that clusters overlap (Rousseeuw 1987).
        best_silhouette = max(result.silhouettes.values())
        selection = (
            f"; number chosen by Euclidean silhouette ({best_silhouette:.3f}, best of {len(result.silhouettes)})"
        )
    print_text(f"{len(result.topics)} clusters of {format_rows(result.rows)} by {result.method}{selection}")
    for topic in result.topics:
        words = ", ".join(topic.words[:_MAX_WORDS])
        fraction = topic.rows / result.rows
        print_text(f"  {topic.cluster}  {format_rows(topic.rows)} ({fraction:.1%})  {words}")
        if topic.examples:
            print_text(f"     {shorten(' '.join(topic.examples[0].split()), _EXAMPLE_LENGTH)}")
    # Only HDBSCAN leaves rows without a cluster; k-means assigns every row.
    if result.noise:
        print_text(f"  in no cluster: {format_rows(result.noise)}")
    for path in written:
        print_line(f"{path}: written")
