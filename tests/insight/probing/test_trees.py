"""Items from trees: depths, arcs with others at the same distance, relations, features."""

from __future__ import annotations

from collections import Counter

from bertkit.insight.probing import built_in

ROW = {
    "words": ["The", "dog", "chased", "a", "black", "cat"],
    "head": [2, 3, 0, 6, 6, 3],
    "deprel": ["det", "nsubj", "root", "det", "amod", "obj:x"],
}


def test_relations_are_those_of_words_to_their_heads():
    items = built_in.relations([ROW], 0)
    assert items.labels == ["det", "nsubj", "det", "amod", "obj"]
    assert items.addresses[-1].tolist() == [[0, 5], [0, 2]] and items.groups[-1] == "cat"
    assert items.combination == "edge" and items.rows == [{"tokens": ROW["words"]}]


def test_arcs_stand_beside_as_many_pairs_at_the_same_distances():
    items = built_in.arcs([ROW] * 30, 1)
    distances = {label: Counter() for label in (built_in.ARC, built_in.NO_ARC)}
    for (first, second), label in zip(items.addresses.tolist(), items.labels, strict=True):
        assert first[0] == second[0] and 0 <= second[1] < 6
        assert (ROW["head"][first[1]] == second[1] + 1) == (label == built_in.ARC)
        distances[label][second[1] - first[1]] += 1
    assert distances[built_in.ARC] == distances[built_in.NO_ARC] and len(items) == len(items.groups)
    assert items.labels != built_in.arcs([ROW] * 30, 2).labels or (
        items.addresses.tolist() != built_in.arcs([ROW] * 30, 2).addresses.tolist()
    )
    assert len(built_in.arcs([{"words": ["a"], "head": [0]}], 0)) == 0


def test_features_are_those_of_conllu():
    read = built_in.READ["feats"]
    feats = read(["Number=Sing|Person=3", "_", None, "Tense=Past"], 4)
    items = built_in.feature("Tense", [{"words": ["a", "b", "c", "Went"], "feats": feats}], 0)
    assert items.labels == ["Past"] and items.groups == ["went"] and items.addresses.tolist() == [[[0, 3]]]
