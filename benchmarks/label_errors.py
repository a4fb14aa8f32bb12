"""Labels of SST-2 that were flipped, and how many of them `check --label-errors` ranks first.

    python -m benchmarks.label_errors --model DIR --data DIR [--rows N ...] [--seeds N]

`--data` has glue/sst2/train.parquet in the columns of the hub. Adds one JSON line per case to
benchmarks/results/label_errors.jsonl; a case that is there is not measured again. Vectors are kept in bertkit's cache.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import ROOT

SHARE = 0.05
RESULTS = ROOT / "benchmarks" / "results" / "label_errors.jsonl"


def flip_labels(labels: list[int], seed: int) -> tuple[list[int], set[int]]:
    """Flip a share of labels that are 0 or 1, and return them with the indices of those.

    >>> flipped, indices = flip_labels([0, 1] * 50, seed=0)
    >>> len(indices), sum(old != new for old, new in zip([0, 1] * 50, flipped, strict=True))
    (5, 5)
    """
    chosen = np.random.default_rng(seed).choice(len(labels), round(SHARE * len(labels)), replace=False)
    indices = set(chosen.tolist())
    return [1 - label if number in indices else label for number, label in enumerate(labels)], indices


def measure(model: Any, file: Path, rows: int, seed: int) -> dict[str, Any]:
    """Return which share of the rows at the top of the ranking were flipped."""
    from pyarrow import parquet

    from bertkit.data.rows import Columns, Split
    from bertkit.findings.label_errors import find_label_errors

    table = parquet.read_table(file).slice(0, rows)
    labels, flipped = flip_labels(table["label"].to_pylist(), seed)
    texts = table["sentence"].to_pylist()
    canonical = [{"text": text, "label": str(label)} for text, label in zip(texts, labels, strict=True)]
    split = Split("train", file.name, canonical, list(range(len(canonical))))
    start = time.process_time()
    _, errors = find_label_errors(split, Columns(given=("text",), gold="label"), model)
    is_flipped = np.array([error.row in flipped for error in errors])
    return {
        "rows": len(canonical),
        "seed": seed,
        "flipped": len(flipped),
        "found": len(errors),
        "precision": round(float(is_flipped[: len(flipped)].mean()), 4),
        "precision_of_upper_half": round(float(is_flipped[: len(flipped) // 2].mean()), 4),
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def main() -> None:
    from bertkit.vectors.embedder import Embedder

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 67_349])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.is_file() else []
    done = {(case["rows"], case["seed"]) for case in map(json.loads, lines)}
    for rows in arguments.rows:
        for seed in range(arguments.seeds):
            if (rows, seed) not in done:
                case = measure(Embedder(arguments.model), arguments.data / "glue/sst2/train.parquet", rows, seed)
                with RESULTS.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(case) + "\n")
                print(case)


if __name__ == "__main__":
    main()
