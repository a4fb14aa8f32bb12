"""The layers of a map: which are drawn, where their points are, and what is measured there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bertkit.errors import UsageError
from bertkit.insight.layer_vectors import LayerVectors
from bertkit.insight.maps.labels import Labeling
from bertkit.insight.maps.projection import Plane, align, project
from bertkit.insight.maps.separation import Separation, choose, separate
from bertkit.progress import get_progress, stage


@dataclass(frozen=True)
class MappedLayer:
    """What is measured at a layer."""

    layer: int
    explained: tuple[float, float] | None
    """Share of the variance of each axis; None for UMAP."""
    separation: Separation | None
    """How far the labels lie apart, in all dimensions; None where there are none."""


def read_layers(choice: str, count: int | None) -> list[int]:
    """Read which layers are drawn, in ascending order; of an unknown count, ``all`` and ``last`` are still empty.

    >>> read_layers("0,3", 6), read_layers("last", 6)
    ([0, 3], [6])

    Raises:
        UsageError: it is no choice of layers, or there is no such layer.
    """
    if choice in ("all", "last"):
        return [] if count is None else list(range(count + 1))[-1 if choice == "last" else 0 :]
    try:
        layers = sorted({int(number) for number in choice.split(",")})
    except ValueError:
        raise UsageError(f"--layers {choice}", "all, last, or numbers such as 0,3,6") from None
    wrong = next((layer for layer in layers if layer < 0 or (count is not None and layer > count)), None)
    if wrong is not None:
        last = "" if count is None else f" to {count}"
        raise UsageError(f"--layers {choice}: no layer {wrong}", f"0 (the embeddings){last}")
    return layers


def measure_layers(
    vectors: LayerVectors, layers: Sequence[int], labeling: Labeling, method: str, seed: int
) -> tuple[list[Plane], list[MappedLayer]]:
    """Compute the plane of each layer, turned to match the next one's, and how well labels lie apart there.

    Args:
        vectors: of all layers.
        layers: which of them.
        labeling: the label of each point. Clusters get no share of nearest points, since they were found by nearness.
        method: of `project`.
        seed: of UMAP, and of the points that are compared.
    """
    planes, measured = [], []
    chosen = choose(labeling.labels, seed)
    compared = [str(labeling.labels[number]) for number in chosen.tolist()]
    with stage("drawing layers", len(layers)):
        for done, layer in enumerate(layers, 1):
            of_layer = vectors.at(layer)
            planes.append(project(of_layer, method, seed))
            separation = separate(of_layer[chosen], compared) if compared else None
            if separation is not None and labeling.are_clusters:
                separation = replace(separation, nearest=None, interval=None)
            measured.append(MappedLayer(layer, planes[-1].explained, separation))
            get_progress().update(done, {"layer": layer})
    return align(planes), measured


def describe(layer: MappedLayer) -> str:
    """Say what is measured at a layer, in one line."""
    said = [] if layer.explained is None else [f"{sum(layer.explained):.0%} of variance"]
    if layer.separation is not None and layer.separation.silhouette is not None:
        said.append(f"Euclidean silhouette {layer.separation.silhouette:.2f}")
    return ", ".join(said)


def layer_rows(measured: Sequence[MappedLayer], *, are_clusters: bool) -> list[dict[str, str]]:
    """Return what is measured as rows of a table; clusters have no share of nearest points."""
    rows = []
    for layer in measured:
        row = {"layer": str(layer.layer)}
        if layer.explained is not None:
            row |= {"1st component": f"{layer.explained[0]:.1%}", "2nd component": f"{layer.explained[1]:.1%}"}
        if layer.separation is not None:
            labels = layer.separation
            row["silhouette (Euclidean)"] = "n/a" if labels.silhouette is None else f"{labels.silhouette:.3f}"
            if not are_clusters:
                row["nearest has the label"] = "n/a" if labels.nearest is None else f"{labels.nearest:.4f}"
                row["95% interval"] = "n/a" if labels.interval is None else "{:.4f} to {:.4f}".format(*labels.interval)
        rows.append(row)
    return rows
