"""The page about what layers know."""

from __future__ import annotations

from types import SimpleNamespace

from bertkit.reports.probe import describe_control, write_probe

HOSTILE = "<script>alert(1)</script>"


def make_result(**changes):
    from bertkit.analysis.probes import LayerScore, ProbedLayers

    layers = [
        LayerScore(layer, 0.5 + layer / 10, (0.4, 0.8), 0.3, 0.2, 10.0, (-0.1, 0.2), layer > 0) for layer in range(3)
    ]
    probed = ProbedLayers(layers, 2, {"most frequent label": 0.25}, (0.1, 0.3), 4, 900, 400, 1.3, [HOSTILE])
    fields = {"task": HOSTILE, "about": "a & b", "model": "m", "source": "s", "metric": "accuracy"}
    fields["unit"] = "pair of words"
    fields |= {"control": "types", "group": "word", "train_rows": 100, "test_rows": 50, "probed": probed}
    return SimpleNamespace(**{**fields, **changes})


def test_a_page_has_the_table_and_runs_nothing(tmp_path):
    write_probe(tmp_path / "a.html", make_result())
    page = (tmp_path / "a.html").read_text(encoding="ascii")
    assert "<script" not in page and page.count("&lt;script&gt;") >= 3
    assert "900 pairs of words of 100 rows" in page and "<dd>1.30</dd>" in page
    assert "0.7000" in page and "<td>+0.2000</td>" in page and "Not significantly worse</dt><dd>1, 2<" in page
    assert "prefers-color-scheme: dark" in page and 'class="whisker"' in page


def test_control_tasks_are_explained():
    assert "memorize" in describe_control("types", "word")
    assert describe_control("shuffled", "length") == (
        "the training labels shuffled within each length, scored on the true labels: the score of the length alone"
    )
    assert describe_control("shuffled", "").endswith("shuffled, scored on the true labels: the score of chance")
