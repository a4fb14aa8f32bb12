"""Training steps on a GPU: shapes of BERT with random weights on generated rows, bertkit beside the Trainer.

    python -m benchmarks.gpu [--tasks cola,mlm] [--shapes base,large] [--lengths 128,384]

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
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, Case, write_columns, write_results, write_sentences
from benchmarks.load import machine, shape_of
from benchmarks.mlm import MlmCase
from benchmarks.speed import measure, say, summarize_all

SHAPES = {"tiny": (2, 64, 2), "base": (12, 768, 12), "large": (24, 1024, 16)}  # layers, width, heads
ENGINES = {"cola": ["peak", "bertkit", "hf-default", "hf-tuned"], "mlm": ["peak", "bertkit", "hf", "hf-bf16"]}
COMPILED = {"cola": ["bertkit:training.extra.torch_compile=true", "hf-compiled"], "mlm": []}
LENGTHS = {"cola": [128, 384], "mlm": [128, 512]}
WORDS = 30_000


def make_model(shape: str, folder: Path) -> None:
    """Write an encoder of a shape with random weights, and a tokenizer that knows the words w0, w1, ..."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [*special, *(f"w{number}" for number in range(WORDS))]
    tokenizer = Tokenizer(models.WordPiece({token: n for n, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=512).save_pretrained(folder)
    layers, hidden, heads = SHAPES[shape]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokens),
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
    )
    BertForMaskedLM(config).save_pretrained(folder)


def make_case(task: str, rows: int, batch_size: int, length: int, folder: Path) -> Case | MlmCase:
    """Write rows, and return the case that trains on them.

    Rows to fine-tune on have exactly `length` tokens, the special ones included; documents to pretrain on have from a
    quarter of that to four times as many.
    """
    draw, model, data = random.Random(0), str(folder / "model"), folder / "data"
    sizes = [length - 2 if task == "cola" else draw.randint(length // 4, 4 * length) for _ in range(rows)]
    texts = [" ".join(f"w{draw.randrange(WORDS)}" for _ in range(size)) for size in sizes]
    if task == "cola":
        write_sentences(texts, data)
        return Case(task, model, str(data), batch_size=batch_size, epochs=1000, max_length=length)
    held_out = max(1, rows // 100)
    write_columns("validation", {"text": texts[:held_out]}, data)
    write_columns("train", {"text": texts[held_out:]}, data)
    return MlmCase(model, str(data), batch_size, length)


def measure_shape(
    task: str, shape: str, length: int, arguments: argparse.Namespace, folder: Path
) -> tuple[list[Any], float]:
    """Return the runs of every engine at a shape and a length, and the bf16 peak.

    Compiled engines drop out if they fail.
    """
    make_model(shape, folder / "model")
    case = make_case(task, arguments.rows, arguments.batch_size, length, folder)
    module = "benchmarks.mlm" if task == "mlm" else "benchmarks.engines"
    compiled = COMPILED[task] if arguments.compiled else []
    try:
        measured = measure(case, ENGINES[task] + compiled, arguments, folder / "all", module)
    except SystemExit as error:
        if not compiled:
            raise
        say(f"without compiled engines: {str(error).strip().splitlines()[-1]}")
        measured = measure(case, ENGINES[task], arguments, folder / "some", module)
    config = folder / "model" / "config.json"
    summed = summarize_all(measured, shape_of(json.loads(config.read_text(encoding="utf-8"))))
    runs = [
        {
            "task": task,
            "shape": shape,
            "length": length,
            "engine": name,
            "examples_per_second": each["examples_per_second"],
            "tokens_per_second": each["tokens_per_second"],
            "share": each["share_of_peak"]["bf16"],
            "median_step": each["median_step"],
        }
        for name, each in summed["engines"].items()
    ]
    return runs, summed["peak_gflops"]["bf16"] / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default="cola,mlm", help="fine-tuning on rows of one length, pretraining")
    parser.add_argument("--shapes", default="base,large", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--lengths", help="tokens of every row or block; 128 and 384, or 128 and 512 for mlm")
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
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device here: nothing was measured (--device cpu --shapes tiny tries the code)")
    runs, peak = [], 0.0
    for task, shape in product(arguments.tasks.split(","), arguments.shapes.split(",")):
        for length in map(int, arguments.lengths.split(",")) if arguments.lengths else LENGTHS[task]:
            say(f"{task}, {shape}, {length} tokens:")
            with tempfile.TemporaryDirectory() as folder:
                found, rate = measure_shape(task, shape, length, arguments, Path(folder))
            runs += found
            peak = max(peak, rate)
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    report = {"device": device, "peak_tflops": round(peak, 2), "runs": runs, "machine": machine(arguments.threads)}
    write_results(report, arguments.output / "gpu.json")
    for each in runs:
        print(
            f"{each['task']:4} {each['shape']:6} {each['length']:4} {each['engine']:48}"
            f" {each['examples_per_second']:9.1f} rows/s {100 * each['share']:5.1f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
