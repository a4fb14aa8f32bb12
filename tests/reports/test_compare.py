"""The page that compares runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bertkit.metrics.paired import Difference
from bertkit.reports.cases import Case
from bertkit.reports.compare import name_worse, write_comparison


def test_the_page_has_scores_curves_settings_and_rows_and_escapes_them(tmp_path):
    systems = [
        SimpleNamespace(name=name, seeds=[1], scores={"f1": score}, intervals={"f1": (0.1, 0.9)}, seed_scores={})
        for name, score in (("a", 0.5), ("b", 0.75))
    ]
    row = SimpleNamespace(id="7", text="<b> & é", gold="x", first="y", second="x")
    changes = SimpleNamespace(
        changed=3, judged=3, won=2, lost=1, metric="f1", slice_metric="f1", slices=[], won_rows=[row], lost_rows=[]
    )
    compared = SimpleNamespace(
        recipe="classify",
        split="validation",
        rows=9,
        best_metric="f1",
        systems=systems,
        differences={"b": {"f1": Difference(0.5, 0.75, 0.25, (0.1, 0.4), 0.0004, "permutation", rows_needed=4)}},
        changes={"b": changes},
        settings=[{"setting": "training.seed", "a": "1", "b": "2"}],
        notes=["a note"],
        gates=[Case("s-b", "f1", "failed", "it is worse")],
    )
    logs = {"a": [[{"step": 1, "loss": 2.0}, {"step": 2, "loss": None}]], "b": [[]]}
    write_comparison(tmp_path / "page.html", compared, logs)
    text = (tmp_path / "page.html").read_text()
    for part in (
        "classify: a, b",
        "&lt;b&gt; &amp; &#233;",
        "training.seed",
        "a note",
        "Gate failed: s-b, f1: it is worse",
        "&lt;0.001",
        "+0.2500",
        "Training loss",
        "a is significantly worse than b in f1",
        "left of 0",
    ):
        assert part in text
    assert "http" not in text.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("metric", "difference", "interval", "said"),
    [
        ("f1", 0.25, (0.1, 0.4), "a is significantly worse than b in f1."),
        ("f1", -0.25, (-0.4, 0.1), "b is worse than a in f1, though not significantly."),
        ("mean_absolute_error", 0.25, (0.1, 0.4), "b is significantly worse than a in mean_absolute_error."),
        ("f1", 0.25, None, "a is worse than b in f1, though not significantly."),
        ("f1", 0.0, (-0.1, 0.1), "Neither is worse in f1."),
    ],
)
def test_the_worse_side_is_named(metric, difference, interval, said):
    found = SimpleNamespace(difference=difference, interval=interval)
    assert name_worse(found, "b", baseline="a", metric=metric) == said
