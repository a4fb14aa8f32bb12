"""The parts of the benchmarks page about training steps, from the reports of `benchmarks.speed`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.harness import Report, ratio, table
from benchmarks.load import describe_machine
from benchmarks.pictures import Bar, bars

PEERS = {"hf-default": "default flags", "hf-dynamic": "dynamic padding", "hf-tuned": "best flags"}
# minimum ratio of real tokens per second to each peer, and minimum share of the bf16 matrix peak
GOALS: dict[str, dict[str, float]] = {
    "cola": {"hf-default": 20, "hf-dynamic": 4, "hf-tuned": 1.3, "peak": 0.30},
    "stsb": {"hf-default": 12, "hf-dynamic": 6, "hf-tuned": 1.3, "peak": 0.40},
    "ner": {"hf-default": 5, "hf-dynamic": 5, "hf-tuned": 1.3, "peak": 0.35},
    "squad": {"hf-default": 8, "hf-dynamic": 5, "hf-tuned": 1.3, "peak": 0.40},
    "mlm": {"peak": 0.35},
}


def machine_part(reports: Sequence[Report]) -> str:
    """Describe the machine of the newest report."""
    machine = max((report["machine"] for report in reports), key=lambda machine: str(machine["date"]))
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return (
        f"{describe_machine(machine)}\n{machine['cores']} cores, {machine['memory_gib']} GiB of memory,"
        f" {machine['system']}, Python {machine['python']}, {versions}, commit {machine.get('commit', 'unknown')}."
    )


def gpu_part(reports: Sequence[Report]) -> str:
    """Name the GPU, and build one table of the engines of all cases; times are those of the middle of the rounds."""
    machine = reports[0]["machine"]
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("torch", "transformers"))
    peaks = [report["peak_gflops"]["bf16"] / 1000 for report in reports]
    rows = []
    for report in reports:
        peer = next(name for name in report["engines"] if name.startswith("hf-"))
        tuned = report["engines"][peer]["median_step"]
        for name, engine in report["engines"].items():
            rounds = sorted(1000 * each["seconds"] / each["steps"] for each in engine["rounds"])
            rows.append(
                [
                    report["task"],
                    f"`{name}`",
                    f"{1000 * engine['median_step']:.1f} ({rounds[0]:.1f} to {rounds[-1]:.1f})",
                    ratio(tuned, engine["median_step"]),
                    f"{engine['memory_mb']:,}",
                ]
            )
    titles = ["case", "engine", "ms per step", "speedup", "MB"]
    return (
        f"{machine['device']}, {versions}, {machine['date']}. Matrix products in bf16 reached {min(peaks):.0f} to"
        f" {max(peaks):.0f} TFLOP/s in the same runs.\n\n" + table(titles, rows, "llrrr")
    )


def speed_picture(reports: Sequence[Report]) -> str:
    """Draw the real tokens per second of every engine."""
    groups = []
    for report in reports:
        ours = report["engines"]["bertkit"]["tokens_per_second"]
        drawn = []
        for name, each in report["engines"].items():
            speed = each["tokens_per_second"]
            shown = f"{speed:,.0f}" if name == "bertkit" else f"{speed:,.0f} (bertkit: {ratio(ours, speed)})"
            drawn.append(Bar(name, speed, shown, name == "bertkit"))
        groups.append((report["task"], drawn))
    return bars(groups, "Real tokens per second in training, more is better")


def goals_part(reports: Sequence[Report]) -> str:
    """Compare the measured speeds with the goals."""
    columns: dict[str, Any] = {"task": "{task}"}
    columns["tokens/s"] = lambda report: f"{report['engines']['bertkit']['tokens_per_second']:,.0f}"
    columns["MB"] = lambda report: f"{report['engines']['bertkit']['memory_mb']:,}"
    for name, flags in PEERS.items():
        columns[f"{name} ({flags})"] = partial(_speedup, name)
    columns["bf16 peak"] = lambda report: _share(report["engines"]["bertkit"], "{:.0f}%", report["task"])
    return table(columns, reports)


def _speedup(peer: str, report: Report) -> str:
    """Format how many times the peer's tokens bertkit trains on, and whether that is the goal."""
    if peer not in report["engines"]:
        return ""
    ours, theirs = (report["engines"][name]["tokens_per_second"] for name in ("bertkit", peer))
    return _goal(ours / theirs, GOALS.get(report["task"], {}).get(peer), "{:.3g}x")


def _share(engine: Report, form: str, task: str = "") -> str:
    """Format the share of the peak, beside the goal of a task."""
    share, goal = engine["share_of_peak"].get("bf16"), GOALS.get(task, {}).get("peak")
    return "" if share is None else _goal(100 * share, 100 * goal if goal else None, form)


def _goal(value: float, goal: float | None, form: str) -> str:
    shown = form.format(value)
    if goal is None:
        return shown
    return f"{shown}, {'reached' if value >= goal else 'missed'} (goal {form.format(goal)})"
