"""The chart of layers against scores."""

from __future__ import annotations

from xml.etree import ElementTree

from bertkit.reports.probe import LayerPoint, layer_chart


def test_lines_have_whiskers_and_a_ring_at_the_best_layer():
    points = [LayerPoint(value, f"<{value}>", (value - 0.2, value + 0.2)) for value in (0.5, 0.8)]
    lines = {"a <b>": points, "control": [LayerPoint(0.3, "c")] * 2}
    tree = ElementTree.fromstring(layer_chart(lines, {"most frequent": 0.25}, name="x", y="accuracy", marked=1))
    by_class = {}
    for node in tree.iter():
        by_class.setdefault(node.get("class"), []).append(node)
    assert len(by_class["whisker"]) == 2 and len(by_class["dot"]) == 4
    (ring,) = by_class["ring"]
    best = by_class["dot"][1]
    assert (ring.get("cx"), ring.get("cy")) == (best.get("cx"), best.get("cy"))
    texts = [node.text for node in tree.iter() if node.text]
    assert "most frequent: 0.250" in texts and "a <b>" in texts and "<0.5>" in texts
