"""The page of a folder of seeds."""

from __future__ import annotations

from xml.etree import ElementTree

from bertkit.reports.seeds import write_seeds_report
from tests.cli.commands.test_finetune import summary_of


def test_a_page_has_a_dot_per_run_and_names_the_failed_ones(tmp_path):
    summary = summary_of([0.6, 0.7, 0.5], recipe="a <b>").to_dict()
    summary["runs"][2]["failure"] = "It gives every row the same answer."
    write_seeds_report(tmp_path, summary, "bertkit finetune a --seeds 3")
    page = (tmp_path / "report.html").read_text()
    picture = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    titles = [node.text for node in picture.iter("title")]
    assert titles[:4] == ["runs: 0.5000 – 0.7000", "seed 1: 0.6000", "seed 2: 0.7000", "seed 3: 0.5000"]
    assert titles[4:] == ["mean: 0.6000", "null model: 0.5000"]
    assert len([node for node in picture.iter("circle") if node.get("class") == "dot failed"]) == 1
    assert "Seed 3 failed. It gives every row the same answer." in page
    assert "a &lt;b&gt; over 3 seeds" in page and "prefers-color-scheme: dark" in page
    assert "The best of 3 runs is seed" in page


def test_a_page_without_any_finished_run_names_what_happened(tmp_path):
    summary = summary_of([], splits=[], best_seed=None).to_dict()
    summary["runs"] = [{"seed": 1, "status": "diverged", "failure": "the loss is nan", "seconds": 1.0, "scores": {}}]
    write_seeds_report(tmp_path, summary, "bertkit finetune a --seeds 1")
    assert "Seed 1 failed. the loss is nan" in (tmp_path / "report.html").read_text()
