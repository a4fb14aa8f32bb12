"""What clusters are about: the words that set each apart from the others, and its most typical texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertkit.vectors.embedding.quantize import to_unit_length
from bertkit.vectors.groups.clusters import NOISE, Labels
from bertkit.vectors.groups.stored import Matrix

_LIFT = 2.0
_EXAMPLES = 3  # of a cluster


def find_words(texts: Sequence[str], labels: Labels, words: int = 10) -> list[list[str]]:
    """Return the words of each cluster with the highest class-based TF-IDF (Grootendorst 2022, section 3.3).

    A cluster counts as one document. The weight of a word is the root of its share of the cluster's words, times the
    logarithm of 1 plus the mean number of words per cluster over the word's number in all of them; the root is that of
    BERTopic's ``reduce_frequent_words``. Only words count that are at least twice as frequent as in the other clusters:
    without a list of stop words, of whatever language, this leaves out those of every text.
    """
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import CountVectorizer

    rows = np.flatnonzero(labels != NOISE)
    count = int(labels.max()) + 1
    vectorizer = CountVectorizer()
    try:
        of_rows = vectorizer.fit_transform(texts[row] for row in rows.tolist())
    except ValueError:  # no text has a word
        return [[] for _ in range(count)]
    belongs = csr_matrix((np.ones(len(rows)), (labels[rows], np.arange(len(rows)))), shape=(count, len(rows)))
    of_clusters = (belongs @ of_rows).tocsr()  # (clusters, words) numbers of occurrences
    totals = np.asarray(of_clusters.sum(axis=0)).ravel()
    rarity = np.log1p(of_clusters.sum() / count / totals)
    names = vectorizer.get_feature_names_out()
    words_of = []
    for cluster in range(count):
        line = of_clusters[cluster]
        own = line.data.sum()
        shares, elsewhere = line.data / own, (totals[line.indices] - line.data) / max(totals.sum() - own, 1)
        weights = np.sqrt(shares) * rarity[line.indices]
        is_typical = shares >= _LIFT * elsewhere
        best = sorted(zip(-weights[is_typical], names[line.indices][is_typical], strict=True))[:words]
        words_of.append([str(word) for _, word in best])
    return words_of


def find_examples(vectors: Matrix, labels: Labels, centroids: Matrix, texts: Sequence[str]) -> list[list[int]]:
    """Return the rows of each cluster that are nearest to its centroid, the nearest first, with different texts."""
    examples = []
    for cluster, centroid in enumerate(centroids):
        rows = np.flatnonzero(labels == cluster)
        cosines = to_unit_length(vectors[rows]) @ centroid
        nearest: dict[str, int] = {}
        for row in rows[np.argsort(-cosines, kind="stable")]:
            nearest.setdefault(texts[row], int(row))
            if len(nearest) == _EXAMPLES:
                break
        examples.append(list(nearest.values()))
    return examples
