"""bertkit beside a plain fp32 Trainer: same rows, settings and seeds, one after the other; scores and seconds.

    python benchmarks/quality.py --model DIR --data GLUE_FOLDER cola:3:1,2,3 sst2:1:1 ...

Each item is RECIPE:EPOCHS:SEEDS. Prints a Markdown table, and writes every run's figures to quality.jsonl.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run(command: list[str]) -> tuple[dict, float]:
    started = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}\n{ended.stderr}")
    return json.loads(ended.stdout.strip().splitlines()[-1]), time.perf_counter() - started


def measure(engine: str, recipe: str, epochs: str, seed: str, model: str, data: Path) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        output = f"{folder}/run"
        if engine == "bertkit":
            options = ["--model", model, "--data", str(data), "--output", output, "--epochs", epochs, "--seed", seed]
            printed, seconds = run([sys.executable, "-m", "bertkit", "finetune", recipe, *options, "--json"])
            found = printed["results"][0]
        else:
            script = str(Path(__file__).parent / "plain_trainer.py")
            found, seconds = run([sys.executable, script, recipe, model, str(data), seed, output, epochs])
        interval = {name: list(ends) for name, ends in found.get("intervals", {}).items()}
    return {
        "engine": engine,
        "recipe": recipe,
        "seed": int(seed),
        "scores": found["scores"],
        "intervals": interval,
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--output", default="quality.jsonl", type=Path)
    parser.add_argument("items", nargs="+", metavar="RECIPE:EPOCHS:SEEDS")
    arguments = parser.parse_args()
    print("| recipe | metric | bertkit | plain Trainer | seconds | seconds, plain |")
    print("|---|---|---|---|---|---|")
    for item in arguments.items:
        recipe, epochs, seeds = item.split(":")
        runs: dict[str, list[dict]] = {"bertkit": [], "plain": []}
        for seed in seeds.split(","):
            for engine, found in runs.items():
                found.append(measure(engine, recipe, epochs, seed, arguments.model, arguments.data / recipe))
                with arguments.output.open("a") as stream:
                    stream.write(json.dumps(found[-1]) + "\n")
        for metric in runs["bertkit"][0]["scores"]:
            cells = []
            for found in runs.values():
                values = [each["scores"][metric] for each in found]
                cells.append(" ".join(f"{value:.4f}" for value in values) + f" (mean {statistics.mean(values):.4f})")
            seconds = [f"{statistics.median(each['seconds'] for each in found):.0f}" for found in runs.values()]
            print("|", " | ".join([recipe, metric, *cells, *seconds]), "|", flush=True)


if __name__ == "__main__":
    main()
