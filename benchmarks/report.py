"""Write the measured parts of docs/benchmarks.md and of other pages, and the pictures, from benchmarks/results.

    python -m benchmarks.report

A part is everything between `<!-- measured: NAME -->` and `<!-- end: NAME -->`. All other text is written by hand and
stays. A part without results, or without its marks on the page, stays as it is too. A missing page is created with all
marks.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import encoder_parts, parts
from benchmarks.cases import ROOT
from benchmarks.deploy import deploy_part, deploy_picture
from benchmarks.embedding import embedding_part
from benchmarks.few_shot import few_shot_part
from benchmarks.label_errors import counts_part
from benchmarks.long_texts import long_texts_part
from benchmarks.own_data import own_data_part
from benchmarks.parts import Report
from benchmarks.pruning import pruning_part
from benchmarks.schedules import read_runs, schedules_part
from benchmarks.seeds import seeds_part
from benchmarks.serving import serving_part

TASKS = ("cola", "stsb", "ner", "squad")
# mark -> title, function that writes the part, and the results it reads
PARTS: dict[str, tuple[str, Callable[[Sequence[Report]], str], str]] = {
    "machine": ("The machine", parts.machine_part, "speed"),
    "speed": ("Training steps", parts.speed_part, "speed"),
    "goals": ("Goals", parts.goals_part, "speed"),
    "whole": ("Whole programs", parts.whole_part, "whole"),
    "inference": ("Prediction", parts.inference_part, "inference"),
    "embedding": ("Vectors", embedding_part, "embedding"),
    "decoding": ("Choosing answers", parts.decoding_part, "decoding"),
    "linear": ("Time and tokens", parts.linear_part, "linear"),
    "quality": ("Quality", parts.quality_part, "quality"),
    "long_texts": ("Long texts", long_texts_part, "long_texts"),
    "seeds": ("Seeds", seeds_part, "seeds"),
    "deploy": ("Ways to deploy", deploy_part, "deploy"),
    "serving": ("Servers", serving_part, "serving"),
    "few_shot": ("Few examples", few_shot_part, "few_shot"),
    "schedules": ("Schedules for small sets", schedules_part, "schedules"),
    "gpu": ("On a GPU", parts.gpu_part, "gpu"),
}
# mark and name of the results -> the page beside that of benchmarks, and function that writes the part
OTHER_PAGES: dict[str, tuple[str, Callable[[Sequence[Report]], str]]] = {
    "encoders": ("encoders.md", encoder_parts.encoders_part),
    "pruning": ("pruning.md", pruning_part),
    "own_data": ("training.md", own_data_part),
    "label_errors": ("check.md", counts_part),
}


def replace_part(page: str, name: str, text: str) -> str:
    """Replace the text between the marks of a part."""
    pattern = rf"(<!-- measured: {name} -->\n).*?(<!-- end: {name} -->)"
    return re.sub(pattern, lambda match: f"{match[1]}\n{text}\n\n{match[2]}", page, flags=re.DOTALL)


def blank_page() -> str:
    """Build a page that has the marks of every part."""
    marks = [f"## {part[0]}\n\n<!-- measured: {name} -->\n<!-- end: {name} -->\n" for name, part in PARTS.items()]
    return "# Benchmarks\n\n" + "\n".join(marks)


def read_reports(results: Path) -> dict[str, list[Report]]:
    """Read all results, by the name of their measurement."""
    reports: dict[str, list[Report]] = {}
    for name in ("speed", "whole"):
        files = [results / f"{name}-{task}.json" for task in TASKS]
        files += sorted(set(results.glob(f"{name}-*.json")) - set(files))
        reports[name] = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
    for name in ("inference", "decoding", "linear", "gpu", "encoders"):
        file = results / f"{name}.json"
        reports[name] = [json.loads(file.read_text(encoding="utf-8"))] if file.exists() else []
    for name in ("embedding", "deploy"):
        files = sorted(results.glob(f"{name}-*.json"))
        reports[name] = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    of_lines = ("quality", "long_texts", "seeds", "few_shot", "serving", "schedules", "pruning", "own_data")
    for name in (*of_lines, "label_errors"):
        reports[name] = read_runs(results / f"{name}.jsonl")
    return reports


def write_report(results: Path, page: Path) -> None:
    """Write the page's measured parts, and its pictures into `images` beside it."""
    reports = read_reports(results)
    text = page.read_text(encoding="utf-8") if page.exists() else blank_page()
    for name, (_, write, measurement) in PARTS.items():
        if reports[measurement]:
            text = replace_part(text, name, write(reports[measurement]))
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    for name, (other, write) in OTHER_PAGES.items():
        if reports[name]:
            file = page.with_name(other)
            file.write_text(
                replace_part(file.read_text(encoding="utf-8"), name, write(reports[name])), encoding="utf-8"
            )
    images = page.parent / "images"
    images.mkdir(exist_ok=True)
    if reports["encoders"]:
        (images / "encoders.svg").write_text(encoder_parts.encoders_picture(reports["encoders"][0]), encoding="utf-8")
    if reports["speed"]:
        (images / "speed.svg").write_text(parts.speed_picture(reports["speed"]), encoding="utf-8")
    if reports["quality"]:
        (images / "quality.svg").write_text(parts.quality_picture(reports["quality"]), encoding="utf-8")
    if reports["deploy"]:
        (images / "deploy.svg").write_text(deploy_picture(reports["deploy"]), encoding="utf-8")
    if reports["linear"]:
        (images / "linear.svg").write_text(parts.linear_picture(reports["linear"][0]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks.md")
    arguments = parser.parse_args()
    write_report(arguments.results, arguments.page)
    print(arguments.page)


if __name__ == "__main__":
    main()
