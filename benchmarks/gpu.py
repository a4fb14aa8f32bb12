"""Training steps of BERT base and ModernBERT base on a GPU, with random weights: bertkit compared with its peers.

    python -m benchmarks.gpu --tokenizer DIR --data DIR [--cases bert-cola modernbert-mlm-1024]

`--data` is the folder of `benchmarks.speed`. All engines of a case hold GPU memory at the same time. The same command
resumes: each case is a file in benchmarks/results/gpu.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.encoders import make_model
from benchmarks.harness import log, read_options, write_results
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
WARM_UP = 50  # steps, because libraries select kernels and allocate memory at the first use of a shape


def main() -> None:
    settings = {"tokenizer": (Path, "folder of a tokenizer"), "cases": (CASES, "default: all"), **ROUNDS}
    options = read_options(__doc__, "data threads foreign output", **{**settings, "warm_up": WARM_UP})
    for name in options.cases:
        file = options.output / "gpu" / f"speed-{name}.json"
        if file.exists():
            continue
        log(f"{name}:")
        case = {"limit": None, "max_length": None, **CASES[name]}
        with tempfile.TemporaryDirectory() as folder:
            make_model(name.split("-")[0], "base", options.tokenizer, Path(folder))
            task_options = argparse.Namespace(**{**vars(options), **case, "model": Path(folder)})
            report = measure_task(case["task"], task_options)
        write_results({**report, "task": name}, file)
        print_engines(name, report)


if __name__ == "__main__":
    main()
