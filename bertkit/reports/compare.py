"""The page that compares runs: scores and differences, curves, settings that differ, rows won and lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from bertkit.metrics.registry import is_lower_better
from bertkit.reports import svg
from bertkit.reports.html import Log, draw_logs
from bertkit.reports.templates import write_page
from bertkit.reports.text import is_finite, score_text

MAX_CURVES = svg.COLORS  # in one picture, because more curves would share colors


def write_comparison(file: Path, comparison: Any, logs: Mapping[str, Sequence[Log]]) -> None:
    """Write the page as one file.

    Args:
        file: Page to write.
        comparison: Result of `bertkit.workflows.compare.compare`.
        logs: Name of a system -> training log of each of its runs.
    """
    systems, metric = comparison.systems, comparison.best_metric
    # Put the best metric first, because the headline and the verdict are about it.
    metrics = list(dict.fromkeys([metric, *systems[0].scores]))
    differences = {name: changes[metric] for name, changes in comparison.differences.items() if metric in changes}
    write_page(
        file,
        "compare.html.j2",
        page=comparison,
        verdict=partial(name_worse, baseline=systems[0].name, metric=metric),
        worse_side="right" if is_lower_better(metric) else "left",
        headline=_draw_headline(systems, metric),
        differences=svg.difference_strip("no difference", differences.items(), name=f"difference in {metric}"),
        curves=_draw_curves(logs, metric),
        max_curves=MAX_CURVES,
        metrics=metrics,
        scores={name: [system.scores.get(name) for system in systems] for name in metrics},
    )


def name_worse(comparison: Any, name: str, *, baseline: str, metric: str) -> str:
    """Return a sentence that names the system with the worse best metric, and whether the difference is significant."""
    if not comparison.difference:
        return f"Neither is worse in {metric}."
    is_worse = (comparison.difference > 0) == is_lower_better(metric)
    worse, better = (name, baseline) if is_worse else (baseline, name)
    # A difference is significant if its interval does not contain 0.
    if comparison.interval is not None and comparison.interval[0] * comparison.interval[1] > 0:
        return f"{worse} is significantly worse than {better} in {metric}."
    return f"{worse} is worse than {better} in {metric}, though not significantly."


def _draw_headline(systems: Sequence[Any], metric: str) -> Markup | None:
    """Draw each system's best metric with its interval over rows, or its range over seeds."""
    spans = []
    for system in systems:
        value, seeds = system.scores.get(metric), system.seed_scores.get(metric)
        # A range over seeds is not an interval, but it shows at a glance whether two systems overlap.
        low, high = (min(seeds), max(seeds)) if seeds else system.intervals.get(metric) or (value, value)
        if is_finite(value, low, high):
            spans.append(svg.Span(system.name, score_text(value), value, low, high, system is systems[0]))
    return svg.interval_strip(spans, name=f"{metric} of each system") if spans else None


def _draw_curves(logs: Mapping[str, Sequence[Log]], metric: str) -> list[tuple[str, Markup]]:
    """Draw the log of the first run of each system, for at most `MAX_CURVES` systems, as (caption, picture)."""
    panels = {
        f"{metric} on the evaluation rows": f"eval_{metric}",
        "Training loss": "loss",
        "Evaluation loss": "eval_loss",
        "Learning rate": "learning_rate",
    }
    # One curve per system, because the curves of all seeds would be indistinguishable.
    first_logs = {name: run_logs[0] for name, run_logs in list(logs.items())[:MAX_CURVES] if run_logs}
    panel_lines = {caption: {name: (log, key) for name, log in first_logs.items()} for caption, key in panels.items()}
    return draw_logs(panel_lines)
