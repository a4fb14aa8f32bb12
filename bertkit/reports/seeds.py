"""The page of a folder of seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.reports import svg
from bertkit.reports.templates import write_page
from bertkit.reports.text import score_text


def write_seeds_report(folder: Path, summary: Mapping[str, Any], command: str) -> None:
    """Write report.html for a folder of seeds.

    Args:
        folder: Folder of the seeds.
        summary: Content of ``seeds.json``; see `bertkit.evaluation.run_sets.SeedsSummary.to_dict`.
        command: Command that trained them.
    """
    splits = summary["splits"]
    names = dict.fromkeys([summary["best_metric"], *(metric for split in splits for metric in split["spreads"])])
    # Draw a picture per split and metric: all runs, their mean with its interval, and the null model.
    pictures = []
    for split in splits:
        for metric in names:
            spread = split["spreads"].get(metric)
            dots = [
                svg.Dot(score, 0, f"seed {run['seed']}: {score:.4f}", kind="failed" if run["failure"] else "")
                for run in summary["runs"]
                if (score := run["scores"].get(split["split"], {}).get(metric)) is not None
            ]
            # If all runs diverged, none has a score.
            if spread and dots:
                mean, baseline = spread["mean"], split["baseline"].get(metric)
                extremes = min(dots).x, max(dots).x
                low, high = spread["interval"] or (mean, mean)
                caption = f"{metric} on {split['split']}"
                spans = [svg.Span("runs", score_text(extremes), None, *extremes, dots=dots)]
                spans += [svg.Span("mean", score_text(mean), mean, low, high, is_reference=True)]
                if baseline is not None:
                    spans.append(svg.Span("null model", score_text(baseline), baseline, baseline, baseline))
                pictures.append((caption, svg.interval_strip(spans, name=caption)))
    write_page(
        folder / "report.html",
        "seeds.html.j2",
        summary=summary,
        command=command,
        failed=[run for run in summary["runs"] if run["failure"]],
        metrics=list(names),
        pictures=pictures,
        best=splits[0]["spreads"].get(summary["best_metric"]) if splits else None,
    )
