"""Pruned models before and after training again: parameters, size, latency and scores at several shapes.

    python -m benchmarks.pruning --model RUN [--epochs 1] [--rows 512] [--shapes ...] [--seeds 1 2 3] [--output FILE]

RUN is a finished run. Each shape is pruned once, then fine-tuned again and distilled from RUN with each seed. RUN
itself is fine-tuned as long, as a control. Every case is one line of the output file; one that is there already is not
repeated, so the same command goes on where it was stopped. `python -m benchmarks.report` writes the table into
docs/pruning.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, environment
from benchmarks.deploy import change_text
from benchmarks.load import machine
from benchmarks.schedules import read_runs

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
RESULTS = ROOT / "benchmarks" / "results" / "pruning.jsonl"


def options_of(shape: str, width: int) -> list[str]:
    """Return the options of a shape, for a model whose feed-forward has this width.

    >>> options_of("intermediate 1/2", 1536)
    ['--intermediate', '768']
    """
    options = SHAPES[shape]
    return [str(int(float(word) * width)) if before == "--intermediate" else word for before, word in _pairs(options)]


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    return list(zip(["", *words], words, strict=False))


def run(*arguments: str, folder: Path) -> dict[str, Any]:
    """Run a command in a process of its own, with one thread, and return what it prints as JSON."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "bertkit", *arguments, "--json"]
    ended = subprocess.run(
        command, cwd=folder, env=environment(1, PYTHONPATH=path), capture_output=True, text=True, check=False
    )
    if ended.returncode:
        sys.exit(ended.stderr.strip().splitlines()[-1])
    printed: dict[str, Any] = json.loads(ended.stdout)
    return printed


def train_again(model: Path, pruned: Path, epochs: str, seed: int) -> dict[str, Any]:
    """Fine-tune a pruned model, and distill the one that it was made of into it; return the scores of both."""
    recipe = str(model / "recipe.yaml")
    common = ["--model", str(pruned), "--epochs", epochs, "--seed", str(seed)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tuned = run("finetune", recipe, *common, "-o", str(folder / "tuned"), folder=model.parent)
        found = {"tuned": tuned["results"][0]["scores"]}
        if pruned != model:
            taught = run(
                *("distill", recipe, "--teacher", str(model), *common, "-o", str(folder / "taught")),
                folder=model.parent,
            )
            found["distilled"] = taught["results"][0]["scores"]
        return found


def pruning_part(cases: Sequence[dict[str, Any]]) -> str:
    """Build the table: what each shape costs, and its scores before and after it is trained again."""
    heads = ("kept", "parameters", "MB", "speed", "score", "difference (95% CI)", "fine-tuned again", "distilled again")
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    pruned = {case["shape"]: case for case in cases if case["seed"] is None}
    first = next(iter(pruned.values()))
    metric = first["best_metric"]
    for shape in SHAPES:
        side = first["before"] if shape == FULL else pruned.get(shape, {}).get("after")
        if side is None:
            continue
        change = "" if shape == FULL else change_text(pruned[shape]["differences"][metric], digits=3)
        before = 1.0 if shape == FULL else pruned[shape]["before"]["rows_per_second"]
        speed = 1.0 if shape == FULL else side["rows_per_second"] / before
        again = [case for case in cases if case["shape"] == shape and case["seed"] is not None]
        trained = [_over_seeds([case[way][metric] for case in again if way in case]) for way in ("tuned", "distilled")]
        size = [f"{side['parameters'] / 1e6:.1f} M", f"{side['disk_bytes'] / 1e6:.1f}", f"{speed:.2f}"]
        cells = [_name(shape, pruned.get(shape)), *size, f"{side['scores'][metric]:.3f}", change, *trained]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _name(shape: str, case: dict[str, Any] | None) -> str:
    if case is None:
        return "all"
    found = [f"layers {', '.join(map(str, case['layers']))}"] if case["layers"] else []
    found += [f"{case['intermediate']:,} neurons"] if case["intermediate"] else []
    found += [f"{case['vocabulary']:,} tokens, those of `{SHAPES[shape][-1]}`"] if case["vocabulary"] else []
    return "; ".join(found)


def _over_seeds(scores: Sequence[float]) -> str:
    return f"{statistics.mean(scores):.3f} ({min(scores):.3f} to {max(scores):.3f})" if scores else ""


def main() -> None:
    """Measure every case that the output file does not have yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--epochs", default="1")
    parser.add_argument("--rows", default="512")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--seeds", nargs="*", type=int, default=[])
    asked = parser.parse_args()
    model = asked.model.resolve()
    width = json.loads((model / "config.json").read_text())["intermediate_size"]
    done = {(line["shape"], line["seed"]) for line in read_runs(asked.output)}
    for shape in asked.shapes:
        missing = [seed for seed in [None, *asked.seeds] if (shape, seed) not in done]
        if not missing:
            continue
        with tempfile.TemporaryDirectory() as name:
            pruned, first = model, {}
            if shape != FULL:
                pruned = Path(name) / "pruned"
                options = [*options_of(shape, width), "--rows", asked.rows]
                first = run("prune", str(model), "-o", str(pruned), *options, folder=model.parent)
                first = {name: value for name, value in first.items() if name not in ("model", "folder")}  # paths
            for seed in missing:
                if seed is None and not first:
                    continue
                found = first if seed is None else train_again(model, pruned, asked.epochs, seed)
                line = {"shape": shape, "seed": seed, **found, "machine": machine(1)}
                with asked.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(shape, seed, found.get("tuned") or found["after"]["scores"], flush=True)


if __name__ == "__main__":
    main()
