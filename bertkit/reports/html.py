"""report.html: the page about a run, which opens from disk."""

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
    """Content of a report. The page leaves out sections whose fields are empty or None."""

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
    """Names of the checkpoints that taught the model."""
    seconds: float | None = None
    peak_memory: int | None = None
    """Peak memory in bytes."""
    device: str = ""
    seed: int | None = None
    score_notes: list[str] = field(default_factory=list)
    """Sentences about scores that are computed for one label, such as f1."""
    intervals: Mapping[str, tuple[float, float] | None] = field(default_factory=dict)
    """Metric -> ends of its 95% interval over rows, or None without an interval."""
    interval_methods: Mapping[str, str] = field(default_factory=dict)
    no_interval: Mapping[str, str] = field(default_factory=dict)
    """Metric -> reason why it has no interval."""
    baselines: Baselines = field(default_factory=dict)
    lead: Mapping[str, Any] | None = None
    """Comparison with the strongest baseline; see `bertkit.evaluation.baselines.BaselineComparison`."""
    published: list[dict[str, Any]] = field(default_factory=list)
    """Published scores: ``model``, ``split``, ``source``, and metric -> number or [low, high]."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Log of the trainer: entries with ``step``, and with ``loss`` or ``eval_loss`` and ``eval_<metric>``."""
    best_step: int | None = None
    examples: list[Example] = field(default_factory=list)
    decisions: tuple[str, np.ndarray, np.ndarray] | None = None
    """Unit of decisions (``row``, ``label`` or ``entity``), confidence of each decision, and whether it is right."""
    labels: list[str] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Title -> rows with the same keys, for tables that the task reports along with its scores."""
    compared_models: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table of teachers, student and baseline, with the same keys; values can be None."""
    warnings: list[str] = field(default_factory=list)
    other_splits: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    next_commands: list[str] = field(default_factory=list)
    """Suggested commands to run next."""
    provenance: dict[str, str] = field(default_factory=dict)
    """Name -> value of everything that is needed to reproduce the run, such as versions and checksums."""

    @property
    def methods(self) -> str:
        """Sentence with the method of each interval, and the reason why a metric has none."""
        return describe_methods(self.interval_methods, self.no_interval)

    @property
    def baseline(self) -> dict[str, float | None]:
        """Metric -> score of its strongest baseline."""
        return find_best_baseline_scores(self.baselines)

    @property
    def chosen_by(self) -> str:
        """Metric that selected the best step: the best metric, or the loss if that is undefined."""
        return self.best_metric if is_finite(self.scores.get(self.best_metric)) else "loss"


def write_report(folder: Path, report: ReportData) -> Path:
    """Write `report.html` with everything inline, and return its path."""
    path = folder / "report.html"
    label_answers, number_answers = find_labeled(report.examples, report.labels), find_numeric(report.examples)
    mistakes = find_mistakes(report.examples, label_answers, number_answers)
    gold, predicted = [gold for _, gold, _ in label_answers], [predicted for _, _, predicted in label_answers]
    label_scores = reliability.label_scores(gold, predicted, report.labels) if label_answers else []
    write_page(
        path,
        "report.html.j2",
        scripts=["tables.js"] if report.examples else [],
        report=report,
        run=shlex.quote(name_paths(str(folder))),
        metrics=metric_names(report),
        headline=_draw_headline(report),
        curves=_draw_curves(report),
        tables={**report.tables, "trained parameters": _list_stages(report.history)},
        confusion=_count_confusion(label_answers, report.labels),
        label_scores=label_scores,
        reliability=None
        if report.decisions is None or report.decisions[0] == "entity"
        else (calibration_errors(*report.decisions[1:])["ece"], draw_reliability(*report.decisions[1:])),
        risk=_draw_risk(report),
        numbers=_draw_numbers(number_answers),
        mistakes=mistakes,
        predictions=_list_predictions(report.examples, mistakes),
        cut_spans=cut_spans,
    )
    return path


def metric_names(report: ReportData) -> list[str]:
    """Return the names of all scores, the best metric first."""
    other_names = [name for scores in report.other_splits.values() for name in scores]
    return list(dict.fromkeys([report.best_metric, *report.scores, *other_names]))


def _draw_headline(report: ReportData) -> Markup | None:
    """Draw this run's best metric along with the baselines and published scores, on one axis."""
    metric = report.best_metric
    other_scores: list[tuple[str, Any]] = [
        (f"Baseline: {name}", scores.get(metric)) for name, scores in report.baselines.items()
    ]
    for entry in report.published:
        label = " · ".join(str(entry[key]) for key in ("model", "split", "source") if entry.get(key))
        other_scores.append((label, entry.get(metric)))
    spans = []
    value = report.scores.get(metric)
    if value is not None and is_finite(value):
        ends = report.intervals.get(metric) or (value, value)
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


def _draw_curves(report: ReportData) -> list[tuple[str, Markup]]:
    """Draw the training log as curves, each as (caption, picture)."""
    metric = report.best_metric
    panels = {
        "Loss": {"training": "loss", "evaluation": "eval_loss"},
        f"{metric} on the evaluation rows": {metric: f"eval_{metric}"},
        "Learning rate": {"learning rate": "learning_rate"},
        "Gradient norm": {"gradient norm": "grad_norm"},
    }
    logs = {caption: {label: (report.history, key) for label, key in keys.items()} for caption, keys in panels.items()}
    return draw_logs(logs, best_x=report.best_step)


def draw_logs(panels: Mapping[str, Mapping[str, tuple[Log, str]]], **style: Any) -> list[tuple[str, Markup]]:
    """Draw values of logs over the steps, each panel as (caption, picture); panels without values are left out.

    Args:
        panels: Caption -> name of each line -> entries of a log, and key of the values.
        style: See `bertkit.reports.svg.line_chart`.
    """
    pictures = []
    for caption, logs in panels.items():
        lines = {}
        for label, (entries, key) in logs.items():
            points = [(entry["step"], entry[key]) for entry in entries if is_finite(entry.get("step"), entry.get(key))]
            if points:
                # A long log has more points than the picture has pixels.
                lines[label] = sample_evenly(points, MAX_POINTS)
        if lines:
            pictures.append((caption, svg.line_chart(lines, name=caption, x="step", **style)))
    return pictures


def _list_stages(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per change in the number of trained parameters, or no rows if all were always trained."""
    key = "trainable_parameters"
    return [{"from step": str(entry["step"]), "parameters": entry[key]} for entry in history if key in entry]


def _count_confusion(answers: Sequence[LabelAnswer], labels: Sequence[str]) -> list[tuple[str, dict[str, int]]]:
    """Count predicted labels per gold label if every row has one label; rare labels share one line."""
    # In multi-label rows, it is unknown which label a wrong label was confused with.
    if any(not isinstance(example.gold, str) for example, _, _ in answers):
        return []
    pairs = [(*gold, *predicted) for _, gold, predicted in answers]
    return reliability.confusion_table([gold for gold, _ in pairs], [predicted for _, predicted in pairs], labels)


def _draw_risk(report: ReportData) -> tuple[float, Markup] | None:
    """Draw the risk over the coverage if all answers have a confidence; see `draw_risk`."""
    if report.decisions:
        return draw_risk(*report.decisions[1:]) if report.decisions[0] != "label" else None
    pairs: list[tuple[Any, Any]] = [(example.confidence, example.correct) for example in report.examples]
    if not pairs or not all(right is not None and is_finite(confidence) for confidence, right in pairs):
        return None
    return draw_risk(*np.array(pairs, dtype=float).T)


def _list_predictions(
    examples: Sequence[Example], mistakes: Sequence[tuple[Example, str]] | None
) -> list[tuple[Example, str]]:
    """Return rows and their verdicts, wrong rows first; verdicts are empty if answers cannot be compared."""
    # Compare objects, because the ids of rows can repeat in a file.
    wrong_ids = {id(example) for example, _ in mistakes or ()}
    verdict = "" if mistakes is None else "right"
    right_rows = [(example, verdict) for example in examples if id(example) not in wrong_ids]
    wrong_rows = [(example, ", ".join(filter(None, ("wrong", note)))) for example, note in mistakes or ()]
    return [*wrong_rows, *right_rows][:MAX_ROWS]


def _draw_numbers(answers: Sequence[NumberAnswer]) -> tuple[str, Markup] | None:
    """Draw predicted over gold numbers, as (caption, picture)."""
    if not answers:
        return None
    rows = sample_evenly(answers, MAX_POINTS)
    note = f" ({len(rows):,} of {len(answers):,} rows)" if len(rows) < len(answers) else ""
    dots = [svg.Dot(g, p, f"row {e.id}: gold {g:.4g}, predicted {p:.4g}") for e, g, p in rows]
    low, high = min(dots).x, max(dots).x
    caption = "Predicted vs. gold"
    # Predictions on the diagonal are right.
    return caption + note, svg.scatter(dots, name=caption, x="gold", y="predicted", guide=((low, low), (high, high)))
