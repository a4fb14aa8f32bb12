"""report.html: one page about a run that opens from disk, with the sections that the run has facts for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from bertkit.metrics import reliability
from bertkit.metrics.baselines import Baselines, find_best_baseline_scores
from bertkit.metrics.intervals import describe_methods
from bertkit.metrics.reliability import calibration_errors, sample_evenly
from bertkit.reports import svg
from bertkit.reports.confidence import draw_reliability, draw_risk
from bertkit.reports.examples import (
    Example,
    LabelAnswer,
    NumberAnswer,
    cut_spans,
    find_labeled,
    find_mistakes,
    find_numeric,
)
from bertkit.reports.templates import name_paths, write_page
from bertkit.reports.text import is_finite, score_text

MAX_POINTS, MAX_ROWS = 1500, 500
Log = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ReportData:
    """The content of a report as plain data; a section whose fields are empty or None is left out."""

    name: str
    command: str
    model: str
    split: str
    rows: int
    best_metric: str
    scores: Mapping[str, float | None]
    """Metric -> score, or None if it is undefined."""
    about: str = ""
    teachers: list[str] = field(default_factory=list)
    """Names of the checkpoints that the model was distilled from."""
    seconds: float | None = None
    peak_memory: int | None = None
    """Peak memory in bytes."""
    device: str = ""
    seed: int | None = None
    score_notes: list[str] = field(default_factory=list)
    """Sentence on the scores that are computed for one label."""
    intervals: Mapping[str, tuple[float, float] | None] = field(default_factory=dict)
    """Metric -> ends of its 95% interval over rows, or None without an interval."""
    interval_methods: Mapping[str, str] = field(default_factory=dict)
    no_interval: Mapping[str, str] = field(default_factory=dict)
    """Metric -> why it has no interval."""
    baselines: Baselines = field(default_factory=dict)
    lead: Mapping[str, Any] | None = None
    """How far the model is ahead of the strongest of them; see `bertkit.evaluation.baselines.BaselineComparison`."""
    published: list[dict[str, Any]] = field(default_factory=list)
    """Entries of `model`, `split`, `source`, and metric -> number or [low, high]."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """The trainer's log: entries of `step` with `loss`, or with `eval_loss` and `eval_<metric>`."""
    best_step: int | None = None
    examples: list[Example] = field(default_factory=list)
    decisions: tuple[str, np.ndarray, np.ndarray] | None = None
    """Unit of decisions (``row``, ``label`` or ``entity``), confidence of each decision, and whether it is right."""
    labels: list[str] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Title -> rows with the same keys; tables that the task family reports along with its scores."""
    compared: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table of teachers, student and baseline, with the same keys; a missing number has the value None."""
    warnings: list[str] = field(default_factory=list)
    other_splits: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    next_commands: list[str] = field(default_factory=list)
    """Suggested commands to run next."""
    provenance: dict[str, str] = field(default_factory=dict)
    """Versions, fingerprint of the data, and other facts that are needed to reproduce the run."""

    @property
    def methods(self) -> str:
        """Sentence with the method of each interval, and the reason why a metric has none."""
        return describe_methods(self.interval_methods, self.no_interval)

    @property
    def baseline(self) -> dict[str, float | None]:
        """The score of the strongest baseline for each metric."""
        return find_best_baseline_scores(self.baselines)

    @property
    def chosen_by(self) -> str:
        """Metric that selected the best step: the best metric, or the loss if that is undefined."""
        return self.best_metric if is_finite(self.scores.get(self.best_metric)) else "loss"


def write_report(folder: Path, facts: ReportData) -> Path:
    """Write `report.html` with everything inline, and return its path."""
    # Rows are compared by names or by numbers, if their answers allow it.
    named, measured = find_labeled(facts.examples, facts.labels), find_numeric(facts.examples)
    path, mistakes = folder / "report.html", find_mistakes(facts.examples, named, measured)
    write_page(
        path,
        "report.html.j2",
        scripts=["tables.js"] if facts.examples else [],
        facts=facts,
        run=shlex.quote(name_paths(str(folder))),
        metrics=metric_names(facts),
        headline=_draw_headline(facts),
        curves=_draw_curves(facts),
        tables={**facts.tables, "trained parameters": _list_stages(facts.history)},
        confusion=_count_confusion(named, facts.labels),
        label_scores=reliability.label_scores([row[1] for row in named], [row[2] for row in named], facts.labels)
        if named
        else [],
        reliability=None
        if facts.decisions is None or facts.decisions[0] == "entity"
        else (calibration_errors(*facts.decisions[1:])["ece"], draw_reliability(*facts.decisions[1:])),
        risk=_draw_risk(facts),
        numbers=_draw_numbers(measured),
        mistakes=mistakes,
        predictions=_list_predictions(facts.examples, mistakes),
        cut_spans=cut_spans,
    )
    return path


def metric_names(facts: ReportData) -> list[str]:
    """Return the names of all scores, the best metric first."""
    other_names = [name for scores in facts.other_splits.values() for name in scores]
    return list(dict.fromkeys([facts.best_metric, *facts.scores, *other_names]))


def _draw_headline(facts: ReportData) -> Markup | None:
    """Draw this run's best metric along with the baselines and published scores, on one axis."""
    metric = facts.best_metric
    # Use one axis for all: a score means little without baselines and the scores of other models.
    other_scores: list[tuple[str, Any]] = [
        (f"Baseline: {name}", scores.get(metric)) for name, scores in facts.baselines.items()
    ]
    for entry in facts.published:
        label = " · ".join(str(entry[key]) for key in ("model", "split", "source") if entry.get(key))
        other_scores.append((label, entry.get(metric)))
    spans = []
    value = facts.scores.get(metric)
    if value is not None and is_finite(value):
        ends = facts.intervals.get(metric) or (value, value)
        low, high = ends if is_finite(*ends) else (value, value)
        spans.append(svg.Span("This run", score_text(value), value, low, high, is_reference=True))
    for label, score in other_scores:
        low, high = score if isinstance(score, list | tuple) else (score, score)
        if is_finite(low, high):
            spans.append(svg.Span(label, score_text(score), None if low != high else low, low, high))
    return (
        svg.interval_strip(spans, name=f"{metric} of this run, baselines and published scores")
        if len(spans) > 1
        else None
    )


def _draw_curves(facts: ReportData) -> list[tuple[str, Markup]]:
    """Draw the training log as curves, each as (caption, picture)."""
    metric = facts.best_metric
    panels = {
        "Loss": {"training": "loss", "evaluation": "eval_loss"},
        f"{metric} on the evaluation rows": {metric: f"eval_{metric}"},
        "Learning rate": {"learning rate": "learning_rate"},
        "Gradient norm": {"gradient norm": "grad_norm"},
    }
    logs = {caption: {label: (facts.history, key) for label, key in keys.items()} for caption, keys in panels.items()}
    return draw_logs(logs, marked=facts.best_step)


def draw_logs(panels: Mapping[str, Mapping[str, tuple[Log, str]]], **style: Any) -> list[tuple[str, Markup]]:
    """Draw a key of each log over the steps, each panel as (caption, picture); panels without values are left out.

    Args:
        panels: Caption -> name of each line -> the entries of a log, and the key.
        style: See `bertkit.reports.svg.line_chart`.
    """
    pictures = []
    for caption, logs in panels.items():
        lines = {}
        for label, (entries, key) in logs.items():
            points = [(entry["step"], entry[key]) for entry in entries if is_finite(entry.get("step"), entry.get(key))]
            if points:
                # A log of many steps has more points than the picture has pixels, and the page is one file.
                lines[label] = sample_evenly(points, MAX_POINTS)
        if lines:
            pictures.append((caption, svg.line_chart(lines, name=caption, x="step", **style)))
    return pictures


def _list_stages(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per change of the number of trained parameters; empty if all were trained throughout."""
    key = "trainable_parameters"
    return [{"from step": str(entry["step"]), "parameters": entry[key]} for entry in history if key in entry]


def _count_confusion(named: Sequence[LabelAnswer], labels: Sequence[str]) -> list[tuple[str, dict[str, int]]]:
    """Count predicted labels per gold label, if every row has one label; rare labels share one line."""
    # In multi-label rows, a wrong label cannot be matched with the one that it was confused with.
    if any(not isinstance(example.gold, str) for example, _, _ in named):
        return []
    pairs = [(*gold, *predicted) for _, gold, predicted in named]
    return reliability.confusion_table([gold for gold, _ in pairs], [predicted for _, predicted in pairs], labels)


def _draw_risk(facts: ReportData) -> tuple[float, Markup] | None:
    """Draw the fraction of wrong answers over the fraction that is answered, if each has a confidence."""
    if facts.decisions:
        return draw_risk(*facts.decisions[1:]) if facts.decisions[0] != "label" else None
    pairs: list[tuple[Any, Any]] = [(example.confidence, example.correct) for example in facts.examples]
    if not pairs or not all(correct is not None and is_finite(confidence) for confidence, correct in pairs):
        return None
    return draw_risk(*np.array(pairs, dtype=float).T)


def _list_predictions(
    examples: Sequence[Example], mistakes: Sequence[tuple[Example, str]] | None
) -> list[tuple[Example, str]]:
    """Return rows and their verdicts, the wrong ones first; verdicts are empty if answers cannot be compared."""
    wrong = mistakes or []
    # Ids of rows in a file can repeat, so objects are compared.
    wrong_ids = {id(example) for example, _ in wrong}
    verdict = "" if mistakes is None else "right"
    correct_rows = [(example, verdict) for example in examples if id(example) not in wrong_ids]
    return [*((example, ", ".join(filter(None, ("wrong", note)))) for example, note in wrong), *correct_rows][:MAX_ROWS]


def _draw_numbers(measured: Sequence[NumberAnswer]) -> tuple[str, Markup] | None:
    """Draw predicted over gold numbers, as (caption, picture)."""
    if not measured:
        return None
    rows = sample_evenly(measured, MAX_POINTS)
    note = f" ({len(rows):,} of {len(measured):,} rows)" if len(rows) < len(measured) else ""
    points = [svg.Point(g, p, f"row {e.id}: gold {g:.4g}, predicted {p:.4g}") for e, g, p in rows]
    low, high = min(points)[0], max(points)[0]
    # On the diagonal, a prediction is right.
    diagonal = (low, low), (high, high)
    caption = "Predicted vs. gold"
    return caption + note, svg.scatter(points, name=caption, x="gold", y="predicted", guide=diagonal)
