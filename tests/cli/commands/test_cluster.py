"""What `bertkit cluster` prints; its clusters are in tests/workflows."""

from __future__ import annotations

from bertkit.cli.commands.cluster import print_clusters
from bertkit.vectors.clusters import Topic
from bertkit.workflows.cluster import ClusterResult

RESULT = ClusterResult(
    "kmeans", 10, [Topic(0, 8, ["cat", "dog"], ["The  cat\nsleeps."]), Topic(1, 1, [], [])], 1, {2: 0.25}
)


def test_each_cluster_has_its_words_and_an_example(capsys):
    print_clusters(RESULT, written=["a.csv"])
    assert capsys.readouterr().out.splitlines() == [
        "2 clusters of 10 rows by kmeans; number chosen by Euclidean silhouette (0.250, best of 1)",
        "  0  8 rows (80.0%)  cat, dog",
        "     The cat sleeps.",
        "  1  1 row (10.0%)  ",
        "  in no cluster: 1 row",
        "a.csv: written",
    ]
