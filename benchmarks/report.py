"""Write the measured parts of docs/benchmarks.md and of other pages, and the pictures, from benchmarks/results.

    python -m benchmarks.report

A part is everything between `<!-- measured: NAME -->` and `<!-- end: NAME -->`. All other text is written by hand and
stays. A part without results, or without its marks on the page, stays as it is too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import encoders, parts, prediction, quality, whole
from benchmarks.embedding import embedding_part
from benchmarks.harness import RESULTS, ROOT, Report, read_lines, read_options
from benchmarks.reproduction import reproduction_part
from benchmarks.serving import serving_part

TASKS = ("cola", "stsb", "ner", "squad")  # the first ones, in this order
Write = Callable[[Sequence[Report]], str]
# mark -> files of results without their endings, `*` for any task, and function that writes the part
PARTS: dict[str, tuple[str, Write]] = {
    "machine": ("speed-*", parts.machine_part),
    "goals": ("speed-*", parts.goals_part),
    "whole": ("whole-*", whole.whole_part),
    "inference": ("inference", prediction.inference_part),
    "in_python": ("in_python", prediction.in_python_part),
    "embedding": ("embedding-sst2-10000", embedding_part),
    "serving": ("serving", serving_part),
    "gpu": ("gpu/speed-*", parts.gpu_part),
}
# the same of the pages beside that of benchmarks
OTHER_PAGES: dict[str, dict[str, tuple[str, Write]]] = {
    "encoders.md": {"encoders": ("encoders", encoders.encoders_part)},
    "reproduction.md": {"reproduction": ("reproduction", reproduction_part)},
}
PICTURES: dict[str, tuple[str, Write]] = {
    "encoders.svg": ("encoders", encoders.encoders_picture),
    "speed.svg": ("speed-*", parts.speed_picture),
    "quality.svg": ("quality", quality.quality_picture),
}


def read_reports(results: Path, name: str) -> list[Report]:
    """Read the results of a measurement: one report per JSON file, or one per line."""
    lines = read_lines(results / f"{name}.jsonl")
    files = sorted(results.glob(f"{name}.json"))
    order = {f"{name}-{task}": place for name in ("speed", "whole") for place, task in enumerate(TASKS)}
    files.sort(key=lambda file: order.get(file.stem, len(order)))
    return lines or [json.loads(file.read_text(encoding="utf-8")) for file in files]


def write_parts(results: Path, page: Path, written: dict[str, tuple[str, Write]]) -> None:
    """Write the measured parts of a page whose results are there."""
    text = page.read_text(encoding="utf-8")
    for name, (files, write) in written.items():
        if reports := read_reports(results, files):
            pattern = rf"(<!-- measured: {name} -->\n).*?(<!-- end: {name} -->)"
            part = f"\n{write(reports)}\n\n"
            text = re.sub(pattern, lambda match, part=part: f"{match[1]}{part}{match[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
    page.write_text(text, encoding="utf-8")


def write_report(results: Path, docs: Path) -> None:
    """Write the measured parts of all pages that are there, and the pictures into `images` beside them."""
    for page, written in {"benchmarks.md": PARTS, **OTHER_PAGES}.items():
        if (docs / page).exists():
            write_parts(results, docs / page, written)
    (docs / "images").mkdir(exist_ok=True)
    for picture, (files, draw) in PICTURES.items():
        if reports := read_reports(results, files):
            (docs / "images" / picture).write_text(draw(reports), encoding="utf-8")


def main() -> None:
    asked = read_options(__doc__, "", results=RESULTS, docs=ROOT / "docs")
    write_report(asked.results, asked.docs)
    print(asked.docs)


if __name__ == "__main__":
    main()
