"""Write the measured parts of docs/benchmarks.md and its pictures from benchmarks/results.

    python -m benchmarks.report

A part stands between `<!-- measured: NAME -->` and `<!-- end: NAME -->`; what is outside of these is left as it is.
A part without results, or a page without its marks, stays as it is too; a page that is missing is begun.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import parts
from benchmarks.cases import ROOT
from benchmarks.parts import Report

TASKS = ("cola", "stsb", "ner", "squad")
# mark -> title, what writes the part, and the kind of results it is written from
PARTS: dict[str, tuple[str, Callable[[Sequence[Report]], str], str]] = {
    "machine": ("The machine", parts.machine_part, "speed"),
    "speed": ("Training steps", parts.speed_part, "speed"),
    "goals": ("Goals", parts.goals_part, "speed"),
    "whole": ("Whole programs", parts.whole_part, "whole"),
    "inference": ("Predicting", parts.inference_part, "inference"),
    "decoding": ("Answers from logits", parts.decoding_part, "decoding"),
    "linear": ("Seconds and tokens", parts.linear_part, "linear"),
    "quality": ("Quality", parts.quality_part, "quality"),
    "gpu": ("On a GPU", parts.gpu_part, "gpu"),
}


def replace_part(page: str, name: str, text: str) -> str:
    """Put a part between its marks."""
    pattern = rf"(<!-- measured: {name} -->\n).*?(<!-- end: {name} -->)"
    return re.sub(pattern, lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page, flags=re.DOTALL)


def blank_page() -> str:
    """Begin a page with every part's marks."""
    marks = [f"## {part[0]}\n\n<!-- measured: {name} -->\n<!-- end: {name} -->\n" for name, part in PARTS.items()]
    return "# Benchmarks\n\n" + "\n".join(marks)


def read_reports(results: Path) -> dict[str, list[Report]]:
    """Read all results by kind."""
    found: dict[str, list[Report]] = {}
    for kind in ("speed", "whole"):
        files = [results / f"{kind}-{task}.json" for task in TASKS]
        files += sorted(set(results.glob(f"{kind}-*.json")) - set(files))
        found[kind] = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
    for kind in ("inference", "decoding", "linear", "gpu"):
        file = results / f"{kind}.json"
        found[kind] = [json.loads(file.read_text(encoding="utf-8"))] if file.exists() else []
    runs = results / "quality.jsonl"
    lines = runs.read_text(encoding="utf-8").splitlines() if runs.exists() else []
    found["quality"] = [json.loads(line) for line in lines]
    return found


def write_report(results: Path, page: Path) -> None:
    """Write the page's measured parts, and its pictures into `images` beside it."""
    found = read_reports(results)
    text = page.read_text(encoding="utf-8") if page.exists() else blank_page()
    for name, (_, write, kind) in PARTS.items():
        if found[kind]:
            text = replace_part(text, name, write(found[kind]))
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    images = page.parent / "images"
    images.mkdir(exist_ok=True)
    if found["speed"]:
        (images / "speed.svg").write_text(parts.speed_picture(found["speed"]), encoding="utf-8")
    if found["quality"]:
        (images / "quality.svg").write_text(parts.quality_picture(found["quality"]), encoding="utf-8")
    if found["linear"]:
        (images / "linear.svg").write_text(parts.linear_picture(found["linear"][0]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks.md")
    arguments = parser.parse_args()
    write_report(arguments.results, arguments.page)
    print(arguments.page)


if __name__ == "__main__":
    main()
