"""Write the measured parts of docs/benchmarks.md and of other pages, and the pictures, from benchmarks/results.

    python -m benchmarks.report

A part is the text between `<!-- measured: NAME -->` and `<!-- end: NAME -->`. All other text is written by hand and
stays. A part without results or without its marks on the page stays as well.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.embedding import embedding_part
from benchmarks.encoders import encoders_part
from benchmarks.harness import RESULTS, ROOT, Report, format_ratio, make_table, read_lines, read_options
from benchmarks.load import describe_machine
from benchmarks.prediction import in_python_part, inference_part
from benchmarks.quality import PERCENT, compare_all, list_settings, name_rows
from benchmarks.reproduction import reproduction_part
from benchmarks.serving import serving_part
from benchmarks.whole import programs_part
from bertkit.recipe import load_recipe
from bertkit.reports.svg import Span, interval_strip

TASKS = ("cola", "stsb", "ner", "squad")  # the first tasks on a page, in this order
PEERS = {"hf-default": "default flags", "hf-dynamic": "dynamic padding", "hf-tuned": "best flags"}
GOALS: dict[str, dict[str, float]] = {
    "cola": {"hf-default": 20, "hf-dynamic": 4, "hf-tuned": 1.3, "peak": 0.30},
    "stsb": {"hf-default": 12, "hf-dynamic": 6, "hf-tuned": 1.3, "peak": 0.40},
    "ner": {"hf-default": 5, "hf-dynamic": 5, "hf-tuned": 1.3, "peak": 0.35},
    "squad": {"hf-default": 8, "hf-dynamic": 5, "hf-tuned": 1.3, "peak": 0.40},
    "mlm": {"peak": 0.35},
}
"""Minimum ratio of real tokens per second to each peer, and minimum fraction of the bf16 matrix peak."""

WIDTH = 640
STYLE = """<style>
text{font:13px system-ui,sans-serif;fill:#57606a}.strong{fill:#1f2328;font-weight:600}.value{text-anchor:end}
.middle{text-anchor:middle}.grid,.track{stroke:#d0d7de}.bar{fill:#afb8c1}.span{stroke-width:3}
rect.own,.own .mark{fill:#0969da}.other .mark{fill:#bc4c00}.own .span{stroke:#0969da}.other .span{stroke:#bc4c00}
@media (prefers-color-scheme:dark){text{fill:#9198a1}.strong{fill:#f0f6fc}.grid,.track{stroke:#3d444d}
.bar{fill:#656c76}rect.own,.own .mark{fill:#4493f8}.other .mark{fill:#f0883e}.own .span{stroke:#4493f8}
.other .span{stroke:#f0883e}}
</style>"""


# --- Parts about training steps ---


def machine_part(reports: Sequence[Report]) -> str:
    """Describe the machine of the newest report."""
    machine = max((report["machine"] for report in reports), key=lambda machine: str(machine["date"]))
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return (
        f"{describe_machine(machine)}\n{machine['cores']} cores, {machine['memory_gib']} GiB of memory,"
        f" {machine['system']}, Python {machine['python']}, {versions}, commit {machine.get('commit', 'unknown')}."
    )


def gpu_part(reports: Sequence[Report]) -> str:
    """Describe the GPU, and build one table of the engines of all cases."""
    machine = reports[0]["machine"]
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("torch", "transformers"))
    peaks = [report["peak_gflops"]["bf16"] / 1000 for report in reports]
    rows = []
    for report in reports:
        peer = next(name for name in report["engines"] if name.startswith("hf-"))
        tuned = report["engines"][peer]["median_step"]
        for name, engine in report["engines"].items():
            rounds = sorted(1000 * times["seconds"] / times["steps"] for times in engine["rounds"])
            step = f"{1000 * engine['median_step']:.1f} ({rounds[0]:.1f} to {rounds[-1]:.1f})"
            ratio = format_ratio(tuned, engine["median_step"])
            rows.append([report["task"], f"`{name}`", step, ratio, f"{engine['memory_mb']:,}"])
    titles = ["case", "engine", "ms per step", "speedup", "MB"]
    return (
        f"{machine['device']}, {versions}, {machine['date']}. Matrix products in bf16 reached {min(peaks):.0f} to"
        f" {max(peaks):.0f} TFLOP/s in the same runs.\n\n" + make_table(titles, rows, "llrrr")
    )


def goals_part(reports: Sequence[Report]) -> str:
    """Compare the measured speeds with the goals."""
    columns: dict[str, Any] = {"task": "{task}"}
    columns["tokens/s"] = lambda report: f"{report['engines']['bertkit']['tokens_per_second']:,.0f}"
    columns["MB"] = lambda report: f"{report['engines']['bertkit']['memory_mb']:,}"
    for name, flags in PEERS.items():
        columns[f"{name} ({flags})"] = partial(_format_speedup, name)
    columns["bf16 peak"] = _format_peak
    return make_table(columns, reports)


def _format_speedup(peer: str, report: Report) -> str:
    """Format the ratio of real tokens per second to a peer, and whether it reaches the goal."""
    if peer not in report["engines"]:
        return ""
    ours, theirs = (report["engines"][name]["tokens_per_second"] for name in ("bertkit", peer))
    return format_goal(ours / theirs, GOALS.get(report["task"], {}).get(peer), "{:.3g}x")


def _format_peak(report: Report) -> str:
    fraction = report["engines"]["bertkit"]["share_of_peak"].get("bf16")
    goal = GOALS.get(report["task"], {}).get("peak")
    return "" if fraction is None else format_goal(100 * fraction, 100 * goal if goal else None, "{:.0f}%")


def format_goal(value: float, goal: float | None, style: str) -> str:
    """Format a value, and whether it reaches its goal."""
    text = style.format(value)
    if goal is None:
        return text
    return f"{text}, {'reached' if value >= goal else 'missed'} (goal {style.format(goal)})"


# --- Pictures for light and dark pages ---


class Bar(NamedTuple):
    """Bar of a picture, its value as text, and whether it belongs to bertkit."""

    label: str
    value: float
    text: str
    is_ours: bool = False


def draw_bars(groups: Sequence[tuple[str, Sequence[Bar]]], name: str) -> str:
    """Draw groups of horizontal bars; each group has its own scale."""
    parts, y, x = [], 8, max(100, 8 * max(len(bar.label) for _, group in groups for bar in group))
    for title, group in groups:
        y += 20
        parts.append(f'<text class="strong" x="0" y="{y}">{escape(title)}</text>')
        y += 8
        longest = max(bar.value for bar in group)
        for bar in group:
            width = max(1.0, max(100, WIDTH - x - 150) * bar.value / longest)
            strong = ' class="strong"' if bar.is_ours else ""
            parts.append(
                f'<text{strong} x="0" y="{y + 15}">{escape(bar.label)}</text>'
                f'<rect class="{"own" if bar.is_ours else "bar"}" x="{x}" y="{y + 3}" width="{width:.1f}" height="16"'
                f' rx="2"/><text{strong} x="{x + width + 8:.1f}" y="{y + 15}">{escape(bar.text)}</text>'
            )
            y += 24
    head = f'<svg viewBox="0 0 {WIDTH} {y + 10}" role="img" aria-label="{escape(name)}">'
    return make_file("\n".join([head, *parts, "</svg>"]))


def make_file(picture: str) -> str:
    """Return a picture with its style, as the content of a file."""
    head, _, rest = picture.partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg" width="{WIDTH}">\n{STYLE}\n{rest}\n'


def speed_picture(reports: Sequence[Report]) -> str:
    """Draw the real tokens per second of every engine."""
    groups = []
    for report in reports:
        ours = report["engines"]["bertkit"]["tokens_per_second"]
        group = []
        for name, engine in report["engines"].items():
            speed = engine["tokens_per_second"]
            ratio = "" if name == "bertkit" else f" (bertkit: {format_ratio(ours, speed)})"
            group.append(Bar(name, speed, f"{speed:,.0f}{ratio}", name == "bertkit"))
        groups.append((report["task"], group))
    return draw_bars(groups, "Real tokens per second in training, more is better")


def quality_picture(runs: Sequence[Report]) -> str:
    """Draw the differences between bertkit and a plain Trainer in the recipes' best metrics, in points of a hundred."""
    spans = []
    for row in compare_all(runs):
        is_best = row["metric"] == load_recipe(row["recipe"]).best_metric
        if not is_best or row["peer"] != "hf-dynamic" or math.isinf(row["bound"]):
            continue
        points = 1 if row["recipe"] in PERCENT else 100
        difference, low = points * row["difference"], points * row["bound"]
        high = 2 * difference - low
        settings = [setting for setting in list_settings(row["engine"]) if not setting.startswith("precision")]
        label = ", ".join([name_rows(row), f"epochs={row['epochs']:g}", *settings])
        text = f"{difference:+.2f} ({low:+.2f} to {high:+.2f})"
        spans.append(Span(label, text, difference, low, high, row["no_worse"]))
    name = "Points by which bertkit scores above a plain Trainer, with 90% intervals"
    return make_file(interval_strip(spans, name=name))


# --- Pages ---

Write = Callable[[Sequence[Report]], str]
PARTS: dict[str, dict[str, tuple[str, Write]]] = {
    "benchmarks.md": {
        "machine": ("speed-*", machine_part),
        "goals": ("speed-*", goals_part),
        "whole": ("whole-*", programs_part),
        "inference": ("inference", inference_part),
        "in_python": ("in_python", in_python_part),
        "embedding": ("embedding-sst2-10000", embedding_part),
        "serving": ("serving", serving_part),
        "gpu": ("gpu/speed-*", gpu_part),
    },
    "encoders.md": {"encoders": ("encoders", encoders_part)},
    "reproduction.md": {"reproduction": ("reproduction", reproduction_part)},
}
"""Page -> mark -> pattern of the files of results, and the function that writes the part."""
PICTURES: dict[str, tuple[str, Write]] = {
    "speed.svg": ("speed-*", speed_picture),
    "quality.svg": ("quality", quality_picture),
}


def read_reports(results: Path, name: str) -> list[Report]:
    """Read the results of a measurement: a report per JSON file, or per line."""
    files = sorted(results.glob(f"{name}.json"))
    order = {f"{prefix}-{task}": index for prefix in ("speed", "whole") for index, task in enumerate(TASKS)}
    files.sort(key=lambda file: order.get(file.stem, len(order)))
    lines = read_lines(results / f"{name}.jsonl")
    return lines or [json.loads(file.read_text(encoding="utf-8")) for file in files]


def wrap(text: str) -> str:
    """Wrap the paragraphs of a part; the rows of tables stay on one line."""
    blocks = text.split("\n\n")
    fill = partial(textwrap.fill, width=120, break_long_words=False, break_on_hyphens=False)
    return "\n\n".join(block if block.startswith("|") else fill(block) for block in blocks)


def write_report(results: Path, docs: Path) -> None:
    """Write the measured parts of all existing pages, and the pictures into `images` next to them."""
    for page, parts in PARTS.items():
        if not (docs / page).exists():
            continue
        text = (docs / page).read_text(encoding="utf-8")
        for name, (files, write) in parts.items():
            before, start, rest = text.partition(f"<!-- measured: {name} -->\n")
            _, end, after = rest.partition(f"<!-- end: {name} -->")
            if end and (reports := read_reports(results, files)):
                text = f"{before}{start}\n{wrap(write(reports))}\n\n{end}{after}"
        (docs / page).write_text(text, encoding="utf-8")
    (docs / "images").mkdir(exist_ok=True)
    for picture, (files, draw) in PICTURES.items():
        if reports := read_reports(results, files):
            (docs / "images" / picture).write_text(draw(reports), encoding="utf-8")


def main() -> None:
    options = read_options(__doc__, "", results=RESULTS, docs=ROOT / "docs")
    write_report(options.results, options.docs)
    print(f"{options.docs}: written")


if __name__ == "__main__":
    main()
