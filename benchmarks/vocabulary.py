"""Memory and time of a model of XLM-R's shape, with all word embeddings trained and with those that occur.

    python -m benchmarks.vocabulary --model DIR --data DIR [--layers 12]

The weights are random and the tokenizer is that of `--model`, since only the size counts. Writes
benchmarks/results/vocabulary.json.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.cases import make_case
from benchmarks.harness import read_options, run_bertkit, write_results

ROWS = 250_002  # of XLM-R's vocabulary


def write_model(tokenizer: Path, layers: int, folder: str) -> None:
    """Write a random model of XLM-R's base shape with another model's tokenizer."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    config = AutoConfig.for_model("xlm-roberta", vocab_size=ROWS, num_hidden_layers=layers, pad_token_id=0)
    AutoModel.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)


def main() -> None:
    asked = read_options(__doc__, "model data limit threads output", layers=12, steps=8)
    case = make_case("cola", asked.model, asked.data, limit=asked.limit)
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        write_model(asked.model, asked.layers, folder)
        options = ["--model", folder, "--data", case.data, "--precision", "bf16", "--steps", asked.steps]
        for trims in (False, True):
            trimming = ("--set", f"training.occurring_embeddings={str(trims).lower()}")
            [speed] = run_bertkit("bench", "cola", *options, *trimming, threads=asked.threads)["speeds"]
            figures = {key: speed[key] for key in ("step_seconds", "peak_memory_bytes")}
            measured.append({"occurring_embeddings": trims, **figures})
            print(measured[-1], flush=True)
    write_results({"layers": asked.layers, "rows": ROWS, "measured": measured}, asked.output / "vocabulary.json")


if __name__ == "__main__":
    main()
