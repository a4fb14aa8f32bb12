"""The page that compares runs: scores and differences, curves, settings that differ, rows won and lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from bertkit.metrics.basic import LOWER_IS_BETTER, with_direction
from bertkit.reports import svg
from bertkit.reports.examples import is_finite
from bertkit.reports.html import MAX_POINTS, score_text
from bertkit.reports.templates import load_template, write_page

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
    logs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]
    """Name of a system -> the training log of each of its runs."""


def write_compared(file: Path, page: ComparedPage) -> None:
    """Write the page with everything inline."""
    filters: dict[str, Any] = {"score": score_text, "p": p_text, "directed": with_direction, "verdict": name_worse}
    text = load_template("compare.html.j2", **filters).render(
        page=page,
        worse_side="right" if page.metric in LOWER_IS_BETTER else "left",
        headline=_headline(page),
        differences=_differences(page),
        curves=_curves(page),
        colors=list(zip([system.name for system in page.systems], COLORS, strict=False)),
        metrics=list(dict.fromkeys([page.metric, *page.systems[0].scores])),
    )
    write_page(file, text)


def p_text(p: float | None) -> str:
    """Return a p to three digits after the point, or that it is less than these can say.

    >>> p_text(0.0412), p_text(0.0004), p_text(None)
    ('0.041', '<0.001', 'n/a')
    """
    return "n/a" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


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
        value, own = system.scores.get(page.metric), system.name == page.baseline
        seeds = system.seed_scores.get(page.metric)
        ends = (min(seeds), max(seeds)) if seeds else system.intervals.get(page.metric) or (value, value)
        if is_finite(value, *ends):
            spans.append(svg.Span(system.name, score_text(value), value, ends[0], ends[1], own))
    return svg.interval_strip(spans, name=f"{page.metric} of each system") if spans else None


def _differences(page: ComparedPage) -> Markup | None:
    """Draw each system's difference from the baseline in the best metric, with its interval, beside zero."""
    spans = [svg.Span("no difference", "0", 0.0, 0.0, 0.0, own=True)]
    for name, of_system in page.differences.items():
        found = of_system.get(page.metric)
        if found is not None and found.interval is not None:
            spans.append(svg.Span(name, f"{found.difference:+.4f}", found.difference, *found.interval))
    return svg.interval_strip(spans, name=f"difference in {page.metric}") if len(spans) > 1 else None


def _curves(page: ComparedPage) -> list[tuple[str, Markup]]:
    """Draw the logs of the first systems, of each its first run, as (caption, picture)."""
    drawn = []
    panels = {
        f"{page.metric} on the evaluation rows": f"eval_{page.metric}",
        "Training loss": "loss",
        "Evaluation loss": "eval_loss",
        "Learning rate": "learning_rate",
    }
    for caption, key in panels.items():
        lines = {}
        for name, logs in list(page.logs.items())[:MAX_CURVES]:
            entries = [entry for log in logs[:1] for entry in log if is_finite(entry.get("step"), entry.get(key))]
            if entries:
                lines[name] = svg.thin([(entry["step"], entry[key]) for entry in entries], MAX_POINTS)
        if lines:
            drawn.append((caption, svg.line_chart(lines, name=caption, x="step", has_legend=False)))
    return drawn
