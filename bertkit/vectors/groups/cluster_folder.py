"""A folder of clusters: what assigns new rows to them, what they are about, and a map of the rows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import ModelError
from bertkit.storage.files import make_ignored_folder, write_json
from bertkit.storage.fingerprints import file_fingerprint, json_fingerprint
from bertkit.vectors.groups.clusters import Clustering
from bertkit.vectors.vector_files import Matrix

MANIFEST = "clusters.json"
_TENSORS = "clusters.safetensors"
_FORMAT = 1
_CHECKSUM = "manifest_sha256"


@dataclass(frozen=True)
class Topic:
    """What a cluster is about."""

    cluster: int
    rows: int
    words: list[str]
    """The words that set it apart, the strongest first."""
    examples: list[str]
    """The texts nearest to its centroid."""


@dataclass(frozen=True)
class SavedClusters:
    """Clusters that rows can be assigned to."""

    clustering: Clustering
    topics: list[Topic]
    facts: dict[str, Any]
    """How it was made; ``vectors`` is what `Embedder.describe` says, None for vectors that were read from a file."""


def save_clusters(folder: Path, saved: SavedClusters) -> None:
    """Write clusters into a folder, which is new."""
    from safetensors.numpy import save

    make_ignored_folder(folder)
    clustering = saved.clustering
    tensors = {"points": clustering.points, "point_labels": clustering.point_labels}
    if clustering.components is not None:
        tensors["components"] = clustering.components
    # not by `save_file`, whose files only their owner may read
    (folder / _TENSORS).write_bytes(save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}))
    digest, topics = file_fingerprint(folder / _TENSORS), [asdict(topic) for topic in saved.topics]
    content = {"format": _FORMAT, **saved.facts, "sha256": digest, "topics": topics}
    write_json(folder / MANIFEST, {**content, _CHECKSUM: json_fingerprint(content)})


def load_clusters(folder: Path) -> SavedClusters:
    """Read a folder of clusters.

    Raises:
        ModelError: there are none in it, or they are damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not (folder / MANIFEST).is_file():
        raise ModelError("no clusters in this folder", "name one that `bertkit cluster --save` wrote", file=folder)
    remedy = "write it again with `bertkit cluster --save`"
    try:
        facts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        # an earlier release wrote none
        if facts.pop(_CHECKSUM, None) not in (None, json_fingerprint(facts)):
            raise ModelError("the clusters are damaged: their checksum differs", remedy, file=folder / MANIFEST)
        topics = [Topic(**topic) for topic in facts.pop("topics")]
        if facts.pop("format") != _FORMAT:
            raise ModelError("clusters of another version of bertkit", remedy, file=folder)
        if file_fingerprint(folder / _TENSORS) != facts.pop("sha256"):
            raise ModelError("the clusters are damaged: their checksum differs", remedy, file=folder / _TENSORS)
        clustering = Clustering(**load_file(folder / _TENSORS))
        return SavedClusters(clustering, topics, facts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise ModelError(f"the clusters cannot be read: {error}", remedy, file=folder) from None


def refuse_other_vectors(
    saved: SavedClusters, described: dict[str, Any] | None, vectors: Matrix | None, folder: Path
) -> None:
    """Check that vectors can be compared with clusters: of the same model and dimension.

    Raises:
        ModelError: they cannot.
    """
    if described is not None and saved.facts["vectors"] is not None and described != saved.facts["vectors"]:
        names = [name for name, value in described.items() if value != saved.facts["vectors"].get(name)]
        what = f"the clusters were made with another {' and '.join(names)}"
        raise ModelError(what, f"use the model {saved.facts['model']} as it was then", file=folder)
    if vectors is not None and vectors.shape[1] != saved.facts["dimension"]:
        what = f"vectors of dimension {vectors.shape[1]}, and clusters of {saved.facts['dimension']}"
        raise ModelError(what, "use the model that the clusters were made with", file=folder)
