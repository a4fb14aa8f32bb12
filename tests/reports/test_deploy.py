"""The page of ways to deploy: each in a row, the best in bold, all texts as texts."""

from __future__ import annotations

import re

from bertkit.reports.deploy import write_deployment
from bertkit.workflows.bench import Deployed, Deployment

HOSTILE = "<script>alert(1)</script>"


def make_way(way, model="runs/a", **changes):
    facts = {"row_milliseconds": 2.0, "rows_per_second": 1234.0, "score": 0.9, "difference": 0.0, "interval": None}
    return Deployed(model, way, 5_000_000, **{**facts, **changes})


def test_the_page_has_a_row_per_way_and_names_the_best(tmp_path):
    ways = [make_way("torch-fp32"), make_way("onnx", row_milliseconds=1.0, interval=(-0.1, 0.05), is_best=True)]
    write_deployment(tmp_path / "a.html", Deployment("sst2", "accuracy", "validation", 872, 2, ways, [HOSTILE]))
    page = (tmp_path / "a.html").read_text()
    assert re.findall(r'<tr( class="best")?><th scope="row" class="left">([\w-]+)</th><td>5\.0</td>', page) == [
        ("", "torch-fp32"),
        (' class="best"', "onnx"),
    ]
    assert "<td>1,234</td>" in page and "-0.1000" in page and "Not measured: &lt;script&gt;" in page
    assert "<script" not in page and page.count("<circle") == 2


def test_several_models_are_named(tmp_path):
    ways = [make_way("torch-fp32"), make_way("onnx", model=f"runs/{HOSTILE}", score=0.8)]
    write_deployment(tmp_path / "a.html", Deployment("sst2", "accuracy", "validation", 872, 2, ways))
    page = (tmp_path / "a.html").read_text()
    assert '<th scope="row">runs/a</th>' in page and "a, torch-fp32" in page and HOSTILE not in page
