"""The page and the README of a folder of seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.reports import svg
from bertkit.reports.templates import load_template, write_page
from bertkit.storage.files import write_text


def write_seeds_report(folder: Path, summary: Mapping[str, Any], command: str) -> None:
    """Write report.html and README.md of a folder of seeds.

    Args:
        folder: that of the seeds.
        summary: Content of ``seeds.json``; see `bertkit.evaluation.run_sets.SeedsSummary.to_dict`.
        command: the command that trained them.
    """
    names = dict.fromkeys([summary["best_metric"], *(metric for of in summary["splits"] for metric in of["spreads"])])
    plots = []
    for of_split in summary["splits"]:
        for metric in names:
            spread = of_split["spreads"].get(metric)
            dots = [
                svg.RunDot(score, f"seed {run['seed']}: {score:.4f}", bool(run["failure"]))
                for run in summary["runs"]
                if (score := run["scores"].get(of_split["split"], {}).get(metric)) is not None
            ]
            if spread and dots:
                caption, mean, interval = f"{metric} on {of_split['split']}", spread["mean"], spread["interval"]
                marked = of_split["baseline"].get(metric)
                picture = svg.strip_plot(dots, name=caption, mean=mean, interval=interval, marked=marked)
                plots.append((caption, picture))
    facts: dict[str, Any] = {
        "summary": summary,
        "command": command,
        "failed": [run for run in summary["runs"] if run["failure"]],
        "metrics": list(names),
        "plots": plots,
        "best": summary["splits"][0]["spreads"].get(summary["best_metric"]) if summary["splits"] else None,
    }
    write_page(folder / "report.html", "seeds.html.j2", **facts)
    write_text(folder / "README.md", load_template("seeds.md.j2").render(facts))
