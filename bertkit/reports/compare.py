"""The page that compares runs: scores and differences, curves, settings that differ, rows won and lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from bertkit.metrics.basic import LOWER_IS_BETTER
from bertkit.reports import svg
from bertkit.reports.html import Log, draw_logs
from bertkit.reports.templates import write_page
from bertkit.reports.text import is_finite, score_text

MAX_CURVES = 4  # in one picture; more could not be told apart
COLORS = ("var(--accent)", "var(--other)", "var(--good)", "var(--bad)")


@dataclass(frozen=True)
class ComparedPage:
    """The content of the page; systems, differences and changes as `bertkit.workflows.compare` returns them."""

    title: str
    split: str
    rows: int
    metric: str
    """The best metric of the recipe, which comes first."""
    baseline: str
    systems: Sequence[Any]
    differences: Mapping[str, Mapping[str, Any]]
    changes: Mapping[str, Any]
    settings: Sequence[Mapping[str, str]]
    notes: Sequence[str]
    logs: Mapping[str, Sequence[Log]]
    """Name of a system -> the training log of each of its runs."""


def write_compared(file: Path, page: ComparedPage) -> None:
    """Write the page with everything inline."""
    write_page(
        file,
        "compare.html.j2",
        page=page,
        verdict=name_worse,
        worse_side="right" if page.metric in LOWER_IS_BETTER else "left",
        headline=_headline(page),
        differences=_differences(page),
        curves=_curves(page),
        colors=list(zip([system.name for system in page.systems], COLORS, strict=False)),
        metrics=list(dict.fromkeys([page.metric, *page.systems[0].scores])),
    )


def name_worse(found: Any, name: str, page: ComparedPage) -> str:
    """Say which of two systems is worse by the best metric, and whether the rows show it beyond chance."""
    if not found.difference:
        return f"Neither is worse in {page.metric}."
    is_worse = (found.difference > 0) == (page.metric in LOWER_IS_BETTER)
    worse, better = (name, page.baseline) if is_worse else (page.baseline, name)
    is_shown = found.interval is not None and found.interval[0] * found.interval[1] > 0
    beyond = "beyond chance" if is_shown else "though not beyond chance"
    return f"{worse} is worse than {better} in {page.metric}, {beyond}."


def _headline(page: ComparedPage) -> Markup | None:
    """Draw each system's best metric with its interval over rows, or its range over seeds."""
    spans = []
    for system in page.systems:
        value, is_baseline = system.scores.get(page.metric), system.name == page.baseline
        seeds = system.seed_scores.get(page.metric)
        ends = (min(seeds), max(seeds)) if seeds else system.intervals.get(page.metric) or (value, value)
        if is_finite(value, *ends):
            spans.append(svg.Span(system.name, score_text(value), value, ends[0], ends[1], is_baseline))
    return svg.interval_strip(spans, name=f"{page.metric} of each system") if spans else None


def _differences(page: ComparedPage) -> Markup | None:
    """Draw each system's difference from the baseline in the best metric, with its interval, beside zero."""
    by_name = {name: of_system[page.metric] for name, of_system in page.differences.items() if page.metric in of_system}
    return svg.difference_strip("no difference", by_name.items(), name=f"difference in {page.metric}")


def _curves(page: ComparedPage) -> list[tuple[str, Markup]]:
    """Draw the logs of the first systems, of each its first run, as (caption, picture)."""
    panels = {
        f"{page.metric} on the evaluation rows": f"eval_{page.metric}",
        "Training loss": "loss",
        "Evaluation loss": "eval_loss",
        "Learning rate": "learning_rate",
    }
    first = {name: logs[0] for name, logs in list(page.logs.items())[:MAX_CURVES] if logs}
    logs = {caption: {name: (log, key) for name, log in first.items()} for caption, key in panels.items()}
    return draw_logs(logs, has_legend=False)
