"""Training steps of BERT base and ModernBERT base on a GPU, with random weights: bertkit beside its peers.

    python -m benchmarks.gpu --tokenizer DIR --data DIR [--cases bert-cola modernbert-mlm-1024]

`--data` is the one of `benchmarks.speed`. All engines of a case keep their memory on the GPU at once. Every case is one
file in benchmarks/results/gpu, written when it is measured; one that is there is not measured again.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.encoders import make_model
from benchmarks.harness import read_options, say, write_results
from benchmarks.speed import ROUNDS, measure_task, print_engines

FINE_TUNING = "peak,bertkit,bertkit:graphs,hf-tuned,bare:bf16"
PRETRAINING = "peak,bertkit,bertkit:compiled,bertkit:compiled-graphs,hf-bf16,hf-bf16-compiled"
CASES: dict[str, dict[str, Any]] = {
    "bert-mlm-128": {"task": "mlm", "batch_size": 128, "max_length": 128, "engines": PRETRAINING},
    "bert-cola": {"task": "cola", "batch_size": 32, "engines": FINE_TUNING},
    "bert-squad": {"task": "squad", "batch_size": 32, "limit": 3000, "engines": FINE_TUNING},
    "modernbert-cola": {"task": "cola", "batch_size": 32, "engines": FINE_TUNING},
    "modernbert-mlm-1024": {
        "task": "mlm",
        "batch_size": 8,
        "max_length": 1024,
        "engines": "peak,bertkit,bertkit:unpadded,bertkit:compiled-graphs,hf-bf16",
    },
    "modernbert-squad": {"task": "squad", "batch_size": 32, "limit": 3000, "engines": FINE_TUNING},
}
WARM_UP = 50  # steps: a GPU's libraries choose a kernel when they first see a shape, and take memory when they need it


def main() -> None:
    own = {"tokenizer": (Path, "folder of a tokenizer"), "cases": (CASES, "usual: all"), **ROUNDS, "warm_up": WARM_UP}
    asked = read_options(__doc__, "data threads foreign output", **own)
    for name in asked.cases:
        file = asked.output / "gpu" / f"speed-{name}.json"
        if file.exists():
            continue
        say(f"{name}:")
        case = {"limit": None, "max_length": None, **CASES[name]}
        with tempfile.TemporaryDirectory() as folder:
            make_model(name.split("-")[0], "base", asked.tokenizer, Path(folder))
            options = argparse.Namespace(**{**vars(asked), **case, "model": Path(folder)})
            report = measure_task(case["task"], options)
        write_results({**report, "task": name}, file)
        print_engines(name, report)


if __name__ == "__main__":
    main()
