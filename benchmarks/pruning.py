"""Pruned models before and after training again: parameters, size, latency and scores at several shapes.

    python -m benchmarks.pruning --model RUN [--epochs 1] [--rows 512] [--shapes ...] [--seeds 1 2 3] [--output FILE]

RUN is a finished run. Each shape is pruned once, then fine-tuned again and distilled from RUN with each seed. RUN
itself is fine-tuned as long, as a control. Every case is one line of the output file; one that is there already is not
repeated, so the same command goes on where it was stopped. `python -m benchmarks.report` writes the table into
docs/pruning.md.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    RESULTS,
    Report,
    add_line,
    find_line,
    read_lines,
    read_options,
    run_bertkit,
    table,
    with_ends,
)
from benchmarks.load import machine

FULL = "full"
SHAPES: dict[str, list[str]] = {
    FULL: [],
    "layers 5": ["--layers", "5"],
    "layers 4": ["--layers", "4"],
    "layers 3": ["--layers", "3"],
    "first 4 layers": ["--layers", "0,1,2,3"],
    "intermediate 3/4": ["--intermediate", "0.75"],
    "intermediate 1/2": ["--intermediate", "0.5"],
    "intermediate 1/4": ["--intermediate", "0.25"],
    "vocabulary rows": ["--vocabulary", "rows"],
    "vocabulary train": ["--vocabulary", "train"],
    "4 layers, 1/2, train": ["--layers", "4", "--intermediate", "0.5", "--vocabulary", "train"],
}
"""Name -> options of `bertkit prune`; a feed-forward is a share of the model's."""


def options_of(shape: str, width: int) -> list[str]:
    """Return the options of a shape, for a model whose feed-forward has this width.

    >>> options_of("intermediate 1/2", 1536)
    ['--intermediate', '768']
    """
    words = pairwise(["", *SHAPES[shape]])
    return [str(int(float(word) * width)) if before == "--intermediate" else word for before, word in words]


def train_again(model: Path, pruned: Path, epochs: str, seed: int) -> Report:
    """Fine-tune a pruned model, and distill the one that it was made of into it; return the scores of both."""
    recipe, common = model / "recipe.yaml", ("--model", pruned, "--epochs", epochs, "--seed", seed)
    with tempfile.TemporaryDirectory() as name:
        tuned = run_bertkit("finetune", recipe, *common, "-o", Path(name, "tuned"), folder=model.parent)
        scores = {"tuned": tuned["results"][0]["scores"]}
        if pruned != model:
            words = ("distill", recipe, "--teacher", model, *common, "-o", Path(name, "taught"))
            scores["distilled"] = run_bertkit(*words, folder=model.parent)["results"][0]["scores"]
        return scores


def pruning_part(cases: Sequence[Report]) -> str:
    """Build the table: what each shape costs, and its scores before and after it is trained again."""
    pruned = {case["shape"]: case for case in cases if case["seed"] is None}
    first = next(iter(pruned.values()))
    metric, rows = first["best_metric"], []
    for shape in SHAPES:
        case = pruned.get(shape, {})
        side = first["before"] if shape == FULL else case.get("after")
        if side is None:
            continue
        before = side if shape == FULL else case["before"]
        difference = case["differences"][metric] if case else {}
        again = [case for case in cases if case["shape"] == shape and case["seed"] is not None]
        trained = [[case[way][metric] for case in again if way in case] for way in ("tuned", "distilled")]
        rows.append(
            [
                _name(shape, case),
                f"{side['parameters'] / 1e6:.1f} M",
                f"{side['disk_bytes'] / 1e6:.1f}",
                f"{side['rows_per_second'] / before['rows_per_second']:.2f}",
                f"{side['scores'][metric]:.3f}",
                with_ends(difference["difference"], difference["interval"], "+.3f") if case else "",
                *(with_ends(statistics.mean(of), (min(of), max(of))) if of else "" for of in trained),
            ]
        )
    titles = (
        "kept",
        "parameters",
        "MB",
        "speed",
        "score",
        "difference (95% CI)",
        "fine-tuned again",
        "distilled again",
    )
    return table(titles, rows)


def _name(shape: str, case: dict[str, Any]) -> str:
    if not case:
        return "all"
    kept = [f"layers {', '.join(map(str, case['layers']))}"] if case["layers"] else []
    kept += [f"{case['intermediate']:,} neurons"] if case["intermediate"] else []
    kept += [f"{case['vocabulary']:,} tokens, those of `{SHAPES[shape][-1]}`"] if case["vocabulary"] else []
    return "; ".join(kept)


def main() -> None:
    own = {"epochs": "1", "rows": "512", "shapes": SHAPES, "seeds": [int], "output": RESULTS / "pruning.jsonl"}
    asked = read_options(__doc__, "model", **own)
    model = asked.model.resolve()
    width = json.loads((model / "config.json").read_text(encoding="utf-8"))["intermediate_size"]
    for shape in asked.shapes:
        seeds: list[int | None] = [*asked.seeds] if shape == FULL else [None, *asked.seeds]
        missing = [seed for seed in seeds if not find_line(asked.output, {"shape": shape, "seed": seed})]
        with tempfile.TemporaryDirectory() as name:
            pruned, first = model, {}
            if missing and shape != FULL:
                pruned = Path(name) / "pruned"
                options = [*options_of(shape, width), "--rows", asked.rows]
                first = run_bertkit("prune", model, "-o", pruned, *options, folder=model.parent)
                first = {name: value for name, value in first.items() if name not in ("model", "folder")}  # paths
            for seed in missing:
                took = first if seed is None else train_again(model, pruned, asked.epochs, seed)
                add_line(asked.output, {"shape": shape, "seed": seed, **took, "machine": machine(1)})
    print(pruning_part(read_lines(asked.output)))


if __name__ == "__main__":
    main()
