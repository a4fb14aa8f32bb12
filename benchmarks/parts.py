"""The parts of the benchmarks page, as Markdown and SVG, from the reports of the measurements."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from benchmarks.pictures import Bar, Dot, Interval, bars, intervals, log_scatter
from benchmarks.quality import HEADER, PERCENT, compare, row, rows_of, settings_of
from bertkit.recipe import load_recipe

Report = dict[str, Any]
# column -> stages of a program; bertkit and its peers import and read in different orders, so that is one column
STAGES = {
    "import, rows, tokens": ("import", "import and rows", "rows and tokens", "tokens"),
    "model": ("model",),
    "first step": ("first step",),
    "other steps": ("other steps",),
    "evaluation": ("evaluation",),
    "decoding": ("decoding",),
    "save, report, rest": ("save", "rest"),
}
PEERS = {"hf-default": "default flags", "hf-dynamic": "dynamic padding", "hf-tuned": "best flags"}
# minimum ratio of real tokens per second to each peer, and minimum share of the bf16 matrix peak
GOALS: dict[str, dict[str, float]] = {
    "cola": {"hf-default": 20, "hf-dynamic": 4, "hf-tuned": 1.3, "peak": 0.30},
    "stsb": {"hf-default": 12, "hf-dynamic": 6, "hf-tuned": 1.3, "peak": 0.40},
    "ner": {"hf-default": 5, "hf-dynamic": 5, "hf-tuned": 1.3, "peak": 0.35},
    "squad": {"hf-default": 8, "hf-dynamic": 5, "hf-tuned": 1.3, "peak": 0.40},
    "mlm": {"peak": 0.35},
}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Build a Markdown table; all columns but the first are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def ratio(ours: float, theirs: float) -> str:
    """Format one number divided by another."""
    quotient = ours / theirs
    return f"{quotient:.1f}x" if quotient >= 10 else f"{quotient:.2f}x"


def machine_part(reports: Sequence[Report]) -> str:
    """Describe the machine of the newest report."""
    machine = max((report["machine"] for report in reports), key=lambda machine: str(machine["date"]))
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    flags = ", ".join(machine["flags"]) or "no AVX-512, bf16 or AMX"
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {threads} used, {machine['memory_gib']} GiB"
        f" of memory, {flags}.\n"
        f"{machine['system']}, Python {machine['python']}, {versions}. Measured on {machine['date']},"
        f" at commit {machine.get('commit', 'unknown')}."
    )


def speed_part(reports: Sequence[Report]) -> str:
    """Build a table of the engines of each task."""
    parts = []
    for report in reports:
        ours = report["engines"]["bertkit"]
        rows = []
        for name, each in report["engines"].items():
            share = each["share_of_peak"].get("bf16")
            rows.append(
                [
                    f"**{name}**" if name == "bertkit" else name,
                    f"{1000 * each['median_step']:.0f}",
                    f"{1000 * each['least_step']:.0f}",
                    f"{each['tokens_per_second']:,.0f}",
                    f"{each['examples_per_second']:,.0f}",
                    ratio(ours["tokens_per_second"], each["tokens_per_second"]),
                    f"{100 * share:.1f}%" if share is not None else "",
                    f"{each['memory_mb']:,}",
                    f"{each['first_step']:.2f}",
                    f"{each['clean_rounds']} of {len(each['rounds'])}",
                ]
            )
        head = [
            "engine",
            "median ms/step",
            "min ms/step",
            "real tokens/s",
            "rows/s",
            "speedup of bertkit",
            "share of bf16 peak",
            "MB",
            "first step, s",
        ]
        settings, peaks = report["settings"], report["peak_gflops"]
        layers, width = report["model"]["layers"], report["model"]["hidden"]
        rates = ", ".join(f"{precision} {rate:,.0f} GFLOP/s" for precision, rate in peaks.items())
        limit = f", first {settings['limit']:,} rows" if settings["limit"] else ""
        parts.append(
            f"**{report['task']}**: {layers} layers of width {width}, batches of {settings['batch_size']}{limit}."
            f" Matrix peak in the same run: {rates}.\n\n" + table([*head, "clean rounds"], rows)
        )
    return "![Real tokens per second](images/speed.svg)\n\n" + "\n\n".join(parts)


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
    rows = []
    for report in reports:
        goals, engines = GOALS.get(report["task"], {}), report["engines"]
        ours, cells = engines["bertkit"], []
        for name in PEERS:
            speedup = ours["tokens_per_second"] / engines[name]["tokens_per_second"] if name in engines else None
            cells.append(_goal(speedup, goals.get(name), "{:.3g}x"))
        share = ours["share_of_peak"].get("bf16")
        cells.append(_goal(None if share is None else 100 * share, 100 * goals.get("peak", 0) or None, "{:.0f}%"))
        rows.append([report["task"], *cells])
    return table(["task", *(f"{name} ({flags})" for name, flags in PEERS.items()), "share of bf16 peak"], rows)


def _goal(value: float | None, goal: float | None, form: str) -> str:
    if value is None:
        return ""
    if goal is None:
        return form.format(value)
    return f"{form.format(value)}, {'reached' if value >= goal else 'missed'} (goal {form.format(goal)})"


def whole_part(reports: Sequence[Report]) -> str:
    """Build a table of the seconds of whole programs and of their stages."""
    parts = []
    for report in reports:
        engines, settings = report["engines"], report["settings"]
        ours = engines["bertkit"]["seconds"]
        rows = []
        for name, each in engines.items():
            seconds = each["stages"]
            cells = [f"{sum(seconds.get(stage, 0) for stage in names):.1f}" for names in STAGES.values()]
            rows.append(
                [name, f"{each['seconds']:.1f}", f"{each['seconds'] / ours:.2f}x", f"{each['memory_mb']:,}", *cells]
            )
        limit = f", first {settings['limit']:,} rows" if settings["limit"] else ""
        epochs = f"{settings['epochs']:g} epoch{'' if settings['epochs'] == 1 else 's'}"
        title = f"**{report['task']}**: {epochs}{limit}. The columns after MB are seconds per stage.\n\n"
        parts.append(title + table(["engine", "seconds", "relative to bertkit", "MB", *STAGES], rows))
    return "\n\n".join(parts)


def inference_part(reports: Sequence[Report]) -> str:
    """Build a table of the time that it takes to label sentences."""
    [report] = reports
    ours, rows = report["engines"]["bertkit"], []
    for name, each in report["engines"].items():
        rows.append(
            [
                name,
                f"{each['seconds']:.1f}",
                ratio(each["seconds"], ours["seconds"]),
                f"{each['work_rows_per_second']:,.0f}",
                ratio(each["work_seconds"], ours["work_seconds"]),
                f"{each['memory_mb']:,}",
                f"{100 * each['agreement']:.2f}%",
            ]
        )
    head = [
        "engine",
        "seconds, whole program",
        "speedup of bertkit",
        "rows/s, model loaded",
        "speedup of bertkit",
        "MB",
        "same labels",
    ]
    return f"{report['rows']:,} sentences of SST-2.\n\n" + table(head, rows)


def decoding_part(reports: Sequence[Report]) -> str:
    """Describe the time that it takes to choose answers, beside a plain loop."""
    [report] = reports
    ours, theirs = report["seconds"]["bertkit"], report["seconds"]["plain loop"]
    logits = "the model's" if report["logits"] == "model" else "random"
    return (
        f"{report['machine']['cpu']}. The {report['n_best']} best answers of {report['questions']:,} questions in"
        f" {report['windows']:,} windows from {logits} logits: bertkit took {ours:.2f} seconds of processor time, a"
        f" loop over windows {theirs:.2f} ({ratio(theirs, ours)}). Texts, offsets and probabilities are equal."
    )


def linear_part(reports: Sequence[Report]) -> str:
    """Describe how the seconds of an epoch grow with its tokens."""
    [report] = reports
    tokens = [point["tokens"] for point in report["points"]]
    return (
        "![Seconds of an epoch by its real tokens](images/linear.svg)\n\n"
        f"From {min(tokens):,} to {max(tokens):,} real tokens, the time grows as the number of tokens to the power of"
        f" {report['exponent']:.2f}."
    )


def linear_picture(report: Report) -> str:
    """Draw the seconds of epochs over their tokens."""
    dots = [
        Dot(
            each["tokens"],
            each["seconds"],
            f"{each['tokens']:,} tokens: {each['seconds']:.2f} s",
            each["kind"] == "rows",
        )
        for each in report["points"]
    ]
    line = report["factor"], report["exponent"]
    name = "Seconds of a training epoch by its real tokens"
    return log_scatter(
        dots, line=line, x="real tokens of an epoch", y="seconds", legend=("more rows", "longer rows"), name=name
    )


def comparisons(runs: Sequence[Report], margin: float = 0.02) -> list[dict[str, Any]]:
    """Compare the scores of every engine of bertkit with those of every peer with the same recipe, rows and model."""
    groups: dict[str, dict[str, list[Report]]] = {}
    for run in runs:
        key = run["key"]
        case = json.dumps([key[name] for name in ("recipe", "epochs", "limit", "batch_size", "model")])
        groups.setdefault(case, {}).setdefault(key["engine"], []).append(run)
    compared = []
    for engines in groups.values():
        own = [name for name in engines if name.startswith("bertkit")]
        for name, peer in product(sorted(own), sorted(engines.keys() - own)):
            ours, theirs = engines[name], engines[peer]
            metrics = [metric for metric in ours[0]["scores"] if metric in theirs[0]["scores"]]
            factor = 100 if ours[0]["key"]["recipe"] in PERCENT else 1
            compared += [compare(ours, theirs, metric, margin * factor) for metric in metrics]
    return compared


def quality_part(runs: Sequence[Report]) -> str:
    """Build a table of how the scores compare."""
    picture = "![Differences of scores and their intervals](images/quality.svg)"
    return "\n".join([picture, "", HEADER, *map(row, comparisons(runs))])


def quality_picture(runs: Sequence[Report]) -> str:
    """Draw the differences between bertkit and a plain Trainer in the recipes' best metrics, in points of a hundred."""
    drawn = []
    for each in comparisons(runs):
        best = each["metric"] == load_recipe(each["recipe"]).best_metric
        if not best or each["peer"] != "hf-dynamic" or math.isinf(each["bound"]):
            continue
        points = 1 if each["recipe"] in PERCENT else 100
        difference, low = points * each["difference"], points * each["bound"]
        settings = [f"epochs={each['epochs']:g}", *settings_of(each["engine"])]
        label = ", ".join([rows_of(each), *(setting for setting in settings if not setting.startswith("precision"))])
        drawn.append(Interval(label, low, difference, 2 * difference - low, each["no_worse"]))
    name = "Points by which bertkit scores above a plain Trainer, with 90% intervals"
    return intervals(drawn, margin=2, x="points above a plain Trainer, 90% interval; dashed line: margin", name=name)


def gpu_part(reports: Sequence[Report]) -> str:
    """Build a table of the measurements on a GPU."""
    [report] = reports
    rows = [
        [
            each["task"],
            each["shape"],
            str(each["length"]),
            each["engine"],
            f"{each['examples_per_second']:,.1f}",
            f"{each['tokens_per_second']:,.0f}",
            f"{100 * each['share']:.1f}%",
            f"{each['memory_mb']:,}",
        ]
        for each in report["runs"]
    ]
    head = ["task", "model", "tokens", "engine", "rows/s", "tokens/s", "share of bf16 peak", "peak MB"]
    return f"{report['device']}, bf16 peak {report['peak_tflops']:,.1f} TFLOP/s.\n\n" + table(head, rows)
