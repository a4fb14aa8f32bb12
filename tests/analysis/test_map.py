"""Points, labels, planes and layers of maps."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import scipy.linalg
import scipy.spatial

from bertkit.analysis import map as map_module
from bertkit.analysis.layer_vectors import LayerVectors
from bertkit.analysis.map import (
    Plane,
    align,
    check_method,
    choose_points,
    describe_layer,
    get_unit,
    layer_rows,
    measure_layers,
    project,
    read_layers,
    read_points,
    separate,
)
from bertkit.errors import DataError, UnavailableError, UsageError
from bertkit.recipe import DataConfig
from bertkit.vectors.text_files import TextSource
from tests.conftest import write_csv, write_jsonl

# --- Points ---

TEXTS = ["An apple. Apple's APPLE-pie!", "pineapple, apples", "the New York bank", "a new  york? new york apple"]


def source(file, **data):
    return TextSource(file, None, DataConfig(**data))


@pytest.fixture
def texts(tmp_path):
    rows = [{"id": f"r{n}", "text": text, "sense": "xy z"[n]} for n, text in enumerate(TEXTS)]
    return write_csv(tmp_path / "a.csv", rows)


def words_of(found):
    return [(one.id, one.text[slice(*one.span)]) for one in found]


def test_each_occurrence_of_a_word_is_a_point_whole_and_in_any_case(texts):
    found, rows = read_points(source(texts), words=["apple"], label="sense")
    assert words_of(found) == [("r0", "apple"), ("r0", "Apple"), ("r0", "APPLE"), ("r3", "apple")]
    assert [one.label for one in found] == ["x", "x", "x", "z"]
    assert rows[1] == {"text": TEXTS[0], "target": [10, 15]}


def test_several_words_are_labels_of_their_own(texts, caplog):
    caplog.set_level("INFO")
    found, _ = read_points(source(texts), words=["York", "new york", "Apple", "zebra"])
    assert words_of(found)[3:] == [("r2", "New York"), ("r3", "york"), ("r3", "new york"), ("r3", "apple")]
    assert [one.label for one in found][2:] == ["Apple", "new york", "York", "new york", "Apple"]
    assert "no row has the word 'zebra'" in caplog.text


def test_whole_texts_are_points_and_an_empty_cell_is_no_label(texts):
    found, rows = read_points(source(texts), label="sense")
    assert [one.text for one in found] == TEXTS
    assert [one.label for one in found] == ["x", "y", None, "z"]
    assert rows[0] == {"text": TEXTS[0]} and found[0].span is None
    assert len(read_points(source(texts, limit=2))[0]) == 2


def test_targets_are_points_in_lists_of_words_and_in_texts(tmp_path):
    rows = [{"tokens": ["eat", "an", "Apple"], "target": 2}, {"tokens": ["a", "bank"], "target": 1}]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    found, rows = read_points(source(file), "target")
    assert words_of(found) == [(0, "Apple"), (1, "bank")]
    assert rows[0] == {"tokens": ["eat", "an", "Apple"], "target": 2}
    assert words_of(read_points(source(file), "target", ["apple"])[0]) == [(0, "Apple")]
    assert words_of(read_points(source(file), "text", ["a", "an"])[0]) == [(0, "an"), (1, "a")]
    file = write_jsonl(tmp_path / "b.jsonl", [{"text": "an apple, or two", "target": [3, 8]}])
    assert words_of(read_points(source(file), "target")[0]) == [(0, "apple")]


def test_what_cannot_be_found_is_named(texts):
    with pytest.raises(DataError, match=r"no row has the word 'bananas'"):
        read_points(source(texts), words=["bananas"])
    with pytest.raises(DataError, match=r"no column 'senses' \(.*a.csv.*did you mean sense"):
        read_points(source(texts), label="senses")
    with pytest.raises(UsageError, match="--word without a word"):
        get_unit("text", [" "])


# --- Planes ---


def make_vectors(rows=40, width=6, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, width)) * [5, 3, 1, 0.5, 0.2, 0.1][:width] + 1


def test_the_plane_is_that_of_a_singular_value_decomposition():
    vectors = make_vectors()
    plane = project(vectors)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    left, values, _ = np.linalg.svd(unit - unit.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(plane.points), np.abs(left[:, :2] * values[:2]), atol=1e-5)
    np.testing.assert_allclose(plane.explained, values[:2] ** 2 / (values**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(plane.points.mean(axis=0), 0, atol=1e-6)


@pytest.mark.parametrize("vectors", [np.ones((4, 3)), np.ones((3, 1)), np.zeros((3, 2))], ids=["same", "line", "zero"])
def test_vectors_without_variance_are_one_point(vectors):
    plane = project(vectors)
    assert plane.points.tolist() == [[0, 0]] * len(vectors)
    assert plane.explained == (0, 0)


def test_planes_are_turned_to_the_last_one_and_keep_their_distances():
    points = project(make_vectors()).points
    mirrored = points @ np.array([[0.6, 0.8], [0.8, -0.6]])
    noisy = points[:, ::-1] * 0.3 + np.random.default_rng(1).normal(size=points.shape) * 0.01
    first, second, last = align([Plane(noisy, None), Plane(mirrored, (0.5, 0.25)), Plane(points, None)])
    np.testing.assert_array_equal(last.points, points)
    np.testing.assert_allclose(second.points, points, atol=1e-9)
    assert second.explained == (0.5, 0.25)
    turn, _ = scipy.linalg.orthogonal_procrustes(noisy, points)
    np.testing.assert_allclose(first.points, noisy @ turn, atol=1e-9)
    np.testing.assert_allclose(scipy.spatial.distance.pdist(first.points), scipy.spatial.distance.pdist(noisy))


def test_umap_is_asked_for_neighbors_by_cosine_and_its_points_are_centered(monkeypatch):
    asked = {}

    class UMAP:
        def __init__(self, **options):
            asked.update(options)

        def fit_transform(self, vectors):
            return vectors[:, :2] + 7

    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=UMAP, __spec__="umap"))
    check_method("umap")
    plane = project(make_vectors(rows=5), "umap", seed=3)
    assert asked == {"n_neighbors": 4, "metric": "cosine", "random_state": 3}
    assert plane.explained is None
    np.testing.assert_allclose(plane.points.mean(axis=0), 0, atol=1e-6)


def test_umap_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_method("pca")
    for ask in (lambda: check_method("umap"), lambda: project(make_vectors(), "umap")):
        with pytest.raises(UnavailableError, match=r"pip install .*\[map\]"):
            ask()


@pytest.mark.slow
def test_umap_keeps_groups_together():
    pytest.importorskip("umap")
    vectors = np.repeat(np.eye(2, 8), 30, axis=0) + np.random.default_rng(0).normal(size=(60, 8)) * 0.1
    points = project(vectors, "umap").points
    middles = points[:30].mean(axis=0), points[30:].mean(axis=0)
    nearer = [np.linalg.norm(point - middles[0]) < np.linalg.norm(point - middles[1]) for point in points]
    assert nearer == [True] * 30 + [False] * 30


# --- Separation of labels ---


def loop(vectors, labels):
    """Compute silhouette (Rousseeuw 1987) and the share of points whose nearest other point has their label."""
    vectors = [vector / np.linalg.norm(vector) for vector in vectors]
    silhouettes, hits = [], 0
    for own, label in enumerate(labels):
        distances = {other: np.linalg.norm(vectors[own] - vectors[other]) for other in range(len(labels))}
        groups = {}
        for other, distance in distances.items():
            if other != own:
                groups.setdefault(labels[other], []).append(distance)
        hits += labels[min((other for other in distances if other != own), key=lambda other: distances[other])] == label
        within = groups.pop(label, None)
        nearest = min(np.mean(group) for group in groups.values())
        silhouettes.append(0 if within is None else (nearest - np.mean(within)) / max(nearest, np.mean(within)))
    return np.mean(silhouettes), hits / len(labels)


def test_both_numbers_are_those_of_a_plain_loop():
    labels = ["a"] * 9 + ["b"] * 7 + ["alone"]
    vectors = np.random.default_rng(0).normal(size=(17, 5)) + [[label == "b", 0, 0, 0, 1] for label in labels]
    found = separate(vectors, labels)
    silhouette, nearest = loop(vectors, labels)
    assert found.points == 17
    assert found.silhouette == pytest.approx(silhouette, abs=1e-5)
    assert found.nearest == pytest.approx(nearest)
    assert found.interval[0] < nearest < found.interval[1]


@pytest.mark.parametrize("labels", [["a", "a", "a"], ["a", "b", "c"]])
def test_one_label_or_one_per_point_has_no_numbers(labels):
    found = separate(np.eye(3), labels)
    assert (found.silhouette, found.nearest, found.interval) == (None, None, None)


def test_only_labeled_points_are_compared_and_of_many_a_sample(monkeypatch):
    labels = ["a", None, "b", "a"] * 30
    assert choose_points(labels).tolist() == [number for number, label in enumerate(labels) if label]
    monkeypatch.setattr(map_module, "MAX_COMPARED", 10)
    some = choose_points(labels, seed=1).tolist()
    assert len(set(some)) == 10 and some == sorted(some) and all(labels[number] for number in some)


# --- Layers ---


def test_layers_are_all_the_last_or_some():
    assert read_layers("all", 2) == [0, 1, 2]
    assert read_layers("last", 2) == [2]
    assert read_layers("2,0,2", 2) == [0, 2]
    assert read_layers("all", None) == [] and read_layers("7", None) == [7]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("first", "--layers first - all, last, or"),
        ("0,3", r"no layer 3 - 0 \(the embeddings\) to 2"),
        ("-1", "no layer -1"),
    ],
)
def test_other_layers_are_refused(choice, message):
    with pytest.raises(UsageError, match=message):
        read_layers(choice, 2)


def test_a_layer_that_keeps_labels_apart_has_the_better_numbers():
    labels = ["a", "b", None] * 20
    chance = np.random.default_rng(0).normal(size=(60, 2, 4)).astype(np.float32)
    chance[:, 1, 0] += [{"a": 9, "b": -9, None: 0}[label] for label in labels]
    vectors = LayerVectors(chance, np.arange(60), np.zeros(60))
    planes, (first, last) = measure_layers(vectors, [0, 1], labels, "pca", 42)
    assert [plane.points.shape for plane in planes] == [(60, 2)] * 2
    assert last.separation.points == 40
    assert last.separation.nearest == 1 and first.separation.nearest < 0.8
    assert last.separation.silhouette > 0.7 > first.separation.silhouette
    rows = layer_rows([first, last])
    measured = ["silhouette (Euclidean)", "nearest has the label", "95% interval"]
    assert list(rows[1]) == ["layer", "1st component", "2nd component", *measured]
    assert rows[1]["nearest has the label"] == "1.0000" and rows[1]["95% interval"] == "0.9124 to 1.0000"
    assert describe_layer(last).startswith("8") and ", Euclidean silhouette 0.8" in describe_layer(last)
    _, (unlabeled,) = measure_layers(vectors, [1], [None] * 60, "pca", 42)
    assert unlabeled.separation is None and "silhouette" not in layer_rows([unlabeled])[0]
