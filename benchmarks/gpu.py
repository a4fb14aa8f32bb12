"""Training steps on a GPU: shapes of BERT with random weights on generated rows, bertkit beside the Trainer.

    python -m benchmarks.gpu [--shapes base,large] [--lengths 128,384]

Engines take turns as in `benchmarks.speed`. `--device cpu --shapes tiny` tries the code where there is no GPU.
Writes benchmarks/results/gpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, Case, write_results, write_sentences
from benchmarks.load import machine, shape_of
from benchmarks.speed import measure, say, summarize_all

SHAPES = {"tiny": (2, 64, 2), "base": (12, 768, 12), "large": (24, 1024, 16)}  # layers, width, heads
ENGINES = ["peak", "bertkit", "hf-default", "hf-tuned"]
COMPILED = ["bertkit:training.extra.torch_compile=true", "hf-compiled"]
WORDS = 30_000


def make_model(shape: str, folder: Path) -> None:
    """Write an encoder of a shape with random weights, and a tokenizer that knows the words w0, w1, ..."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, BertTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *(f"w{number}" for number in range(WORDS))]
    tokenizer = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=512).save_pretrained(folder)
    layers, hidden, heads = SHAPES[shape]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(pieces),
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
    )
    BertModel(config).save_pretrained(folder)


def make_rows(rows: int, length: int, folder: Path) -> None:
    """Write rows that have just so many pieces, the special ones included."""
    draw = random.Random(0)
    write_sentences([" ".join(f"w{draw.randrange(WORDS)}" for _ in range(length - 2)) for _ in range(rows)], folder)


def measure_shape(shape: str, length: int, arguments: argparse.Namespace, folder: Path) -> tuple[list[Any], float]:
    """Give what every engine does at a shape and a length, and the bf16 peak; compiled ones drop out if they fail."""
    model, data = folder / "model", folder / "data"
    make_model(shape, model)
    make_rows(arguments.rows, length, data)
    case = Case("cola", str(model), str(data), batch_size=arguments.batch_size, epochs=1000, max_length=length)
    try:
        found = measure(case, ENGINES + arguments.compiled, arguments, folder / "all")
    except SystemExit as error:
        if not arguments.compiled:
            raise
        say(f"without compiled engines: {str(error).strip().splitlines()[-1]}")
        found = measure(case, ENGINES, arguments, folder / "some")
    summed = summarize_all(found, shape_of(json.loads((model / "config.json").read_text(encoding="utf-8"))))
    runs = [
        {
            "shape": shape,
            "length": length,
            "engine": name,
            "examples_per_second": each["examples_per_second"],
            "share": each["share_of_peak"]["bf16"],
            "median_step": each["median_step"],
        }
        for name, each in summed["engines"].items()
    ]
    return runs, summed["peak_gflops"]["bf16"] / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="base,large", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--lengths", default="128,384", help="pieces of every row")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--foreign", type=float, default=1.0, help="cores that others may use in a clean round")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--compiled", action=argparse.BooleanOptionalAction, default=True, help="torch.compile too")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    arguments.compiled = COMPILED if arguments.compiled else []
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device here: nothing was measured (--device cpu --shapes tiny tries the code)")
    runs, peak = [], 0.0
    for shape in arguments.shapes.split(","):
        for length in map(int, arguments.lengths.split(",")):
            say(f"{shape}, {length} pieces:")
            with tempfile.TemporaryDirectory() as folder:
                found, rate = measure_shape(shape, length, arguments, Path(folder))
            runs += found
            peak = max(peak, rate)
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    report = {"device": device, "peak_tflops": round(peak, 2), "runs": runs, "machine": machine(arguments.threads)}
    write_results(report, arguments.output / "gpu.json")
    for each in runs:
        print(
            f"{each['shape']:6} {each['length']:4} {each['engine']:48} {each['examples_per_second']:9.1f} rows/s"
            f" {100 * each['share']:5.1f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
