"""Memory and time of a model of XLM-R's shape, with all word embeddings trained and with those that occur.

    python -m benchmarks.vocabulary --model DIR --data DIR [--layers 12]

The weights are random and the tokenizer is that of `--model`, since only the size counts. Writes
benchmarks/results/vocabulary.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, add_options, environment, make_case, write_results

ROWS = 250_002  # of XLM-R's vocabulary


def write_model(tokenizer: str, layers: int, folder: Path) -> None:
    """Write a random model of XLM-R's base shape with another model's tokenizer."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    config = AutoConfig.for_model("xlm-roberta", vocab_size=ROWS, num_hidden_layers=layers, pad_token_id=0)
    AutoModel.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)


def measure(options: list[str], threads: int) -> dict[str, Any]:
    """Return what `bertkit bench --json` prints of its one configuration."""
    command = [sys.executable, "-m", "bertkit", "bench", "cola", *options, "--json"]
    ended = subprocess.run(command, cwd=ROOT, env=environment(threads), capture_output=True, text=True)
    if ended.returncode:
        sys.exit(ended.stderr)
    speeds: list[dict[str, Any]] = json.loads(ended.stdout)["speeds"]
    return speeds[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    case = make_case("cola", arguments.model, arguments.data, limit=arguments.limit)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_model(arguments.model, arguments.layers, Path(folder))
        options = ["--model", folder, "--data", case.data, "--precision", "bf16", "--steps", str(arguments.steps)]
        for trims in (False, True):
            speed = measure(
                [*options, "--set", f"training.occurring_embeddings={str(trims).lower()}"], arguments.threads
            )
            row = {"occurring_embeddings": trims, **{key: speed[key] for key in ("step_seconds", "peak_memory_bytes")}}
            rows.append(row)
            memory = row["peak_memory_bytes"] / 1e6
            print(f"occurring_embeddings {trims}: {row['step_seconds']:.2f} s a step, {memory:,.0f} MB")
    write_results(
        {"layers": arguments.layers, "rows": ROWS, "measured": rows}, ROOT / "benchmarks/results/vocabulary.json"
    )


if __name__ == "__main__":
    main()
