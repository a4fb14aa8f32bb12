"""The table of docs/encoders.md and the picture of three encoders, from the report of `benchmarks.encoders`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.parts import Report, ratio, table
from benchmarks.pictures import Bar, bars

TASKS = {"cola": "CoLA", "stsb": "STS-B", "ner": "CoNLL-2003"}
SHAPES = {"small": "6 layers of width 384, the shape of MiniLM:", "base": "Base size, with the published vocabulary:"}
DRAWN = {
    ("bert", "small"): "BERT 6 x 384 (MiniLM)",
    ("bert", "base"): "BERT base",
    ("modernbert", "base"): "ModernBERT base",
}


def encoders_part(reports: Sequence[Report]) -> str:
    """Build a table of model types for each shape."""
    [report] = reports
    newest = max((case["machine"] for case in report["cases"]), key=lambda machine: str(machine["date"]))
    threads = f"{newest['threads']} thread{'s' if newest['threads'] > 1 else ''}"
    parts = [f"{newest['cpu']}, {threads}, {', '.join(newest['flags'])}. Measured on {newest['date']}."]
    for shape, title in SHAPES.items():
        rows = []
        cases = [case for case in report["cases"] if case["shape"] == shape]
        for model_type in sorted({case["type"] for case in cases}):
            by_task = {case["task"]: case for case in cases if case["type"] == model_type}
            size = f" {next(iter(by_task.values()))['layers']} x 768" if shape == "base" else ""
            cells = [_speed(by_task.get(task)) for task in TASKS]
            rows.append([f"`{model_type}`{size}", *cells, _memory(list(by_task.values()))])
        if rows:
            parts.append(f"{title}\n\n" + table(["model type", *TASKS.values(), "memory"], rows))
    return "\n\n".join(parts)


def encoders_picture(report: Report) -> str:
    """Draw the real tokens per second of bertkit and the tuned Trainer for three encoders."""
    groups = []
    for (model_type, shape), title in DRAWN.items():
        for case in report["cases"]:
            if (case["type"], case["shape"]) == (model_type, shape) and case["task"] in TASKS:
                ours, theirs = (each["tokens_per_second"] for each in case["engines"].values())
                shown = f"{ours:,.0f} ({ratio(ours, theirs)})"
                drawn = [Bar("bertkit", ours, shown, True), Bar("tuned Trainer", theirs, f"{theirs:,.0f}")]
                groups.append((f"{title}, {TASKS[case['task']]}", drawn))
    return bars(groups, "Real tokens per second in training, more is better")


def _speed(case: dict[str, Any] | None) -> str:
    if case is None:
        return ""
    ours, theirs = (each["tokens_per_second"] for each in case["engines"].values())
    return f"{ours:,.0f} / {theirs:,.0f} = **{ratio(ours, theirs)}**"


def _memory(cases: Sequence[dict[str, Any]]) -> str:
    """Format the range of the tasks' peak memory, relative to the tuned Trainer's."""
    shares = [ours["memory_mb"] / theirs["memory_mb"] for ours, theirs in (case["engines"].values() for case in cases)]
    low, high = f"{min(shares):.2f}", f"{max(shares):.2f}"
    return f"{low}x" if low == high else f"{low} to {high}x"
