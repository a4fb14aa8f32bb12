"""Training steps on a GPU: shapes of encoders with random weights on generated rows, bertkit beside the Trainer.

    python -m benchmarks.gpu [--tasks fixed,mixed,mlm] [--shapes bert-base,modernbert-base] [--lengths 128,512]

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

_BERT = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
SHAPES: dict[str, tuple[str, tuple[int, ...]]] = {
    "tiny": ("bert", (2, 64, 2, 256)),
    "tiny-modernbert": ("modernbert", (3, 64, 2, 96)),
    "bert-base": ("bert", (12, 768, 12, 3072)),
    "bert-large": ("bert", (24, 1024, 16, 4096)),
    "modernbert-base": ("modernbert", (22, 768, 12, 1152)),
}
COMPILED = "bertkit:training.torch_compile=true"
UNPADDED = "bertkit:training.unpad=true;training.batching=random"  # for models without dropout in attention
ENGINES = {
    "fixed": ["peak", "bertkit", "hf-tuned"],
    "mixed": ["peak", "bertkit", UNPADDED, "hf-tuned"],
    "mlm": ["peak", "bertkit", "hf-bf16"],
}
COMPILED_ENGINES = {
    "fixed": [COMPILED, "hf-compiled"],
    "mixed": [COMPILED, "hf-compiled"],
    "mlm": ["bertkit:compiled", "hf-compiled"],
}
LENGTHS = "128,512"
WORDS = 30_000
_WINDOW, _LOCAL = 129, 2 / 3  # tokens that a local layer of ModernBERT sees, and the share of such layers


def make_model(shape: str, folder: Path) -> None:
    """Write an encoder of a shape with random weights, and a tokenizer that knows the words w0, w1, ..."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import AutoConfig, AutoModelForMaskedLM, BertTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [*special, *(f"w{number}" for number in range(WORDS))]
    tokenizer = Tokenizer(models.WordPiece({token: n for n, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=512).save_pretrained(folder)
    model_type, sizes = SHAPES[shape]
    ids = {"pad_token_id": 0, "cls_token_id": 2, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3}
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, vocab_size=len(tokens), **dict(zip(_BERT, sizes, strict=True)), **ids)
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)


def make_case(task: str, rows: int, batch_size: int, length: int, folder: Path) -> Case | MlmCase:
    """Write rows, and return the case that trains on them.

    Rows to fine-tune on have exactly `length` tokens, the special ones included, or, where they are mixed, from a
    sixteenth of that up to all. Documents to pretrain on have from a quarter of that to four times as many.
    """
    draw, model, data = random.Random(0), str(folder / "model"), folder / "data"
    ranges = {"fixed": (length, length), "mixed": (length // 16, length), "mlm": (length // 4, 4 * length)}
    sizes = [max(1, draw.randint(*ranges[task]) - 2) for _ in range(rows)]
    texts = [" ".join(f"w{draw.randrange(WORDS)}" for _ in range(size)) for size in sizes]
    if task != "mlm":
        write_sentences(texts, data)
        return Case("cola", model, str(data), batch_size=batch_size, epochs=1000, max_length=length)
    held_out = max(1, rows // 100)
    write_columns("validation", {"text": texts[:held_out]}, data)
    write_columns("train", {"text": texts[held_out:]}, data)
    return MlmCase(model, str(data), batch_size, length)


def count_modernbert(measured: dict[str, Any], shape: dict[str, int]) -> dict[str, int]:
    """Count what ModernBERT computes where BERT's layers are counted: windows, and three products for two.

    Changes the squares of the measured rounds, and returns the shape with the width that its gated layers count as.
    """
    for engine in measured.values():
        for each in engine["rounds"] if "squares" in engine["rounds"][0] else []:
            within = min(each["squares"], _WINDOW * each["tokens"])
            each["squares"] = (1 - _LOCAL) * each["squares"] + _LOCAL * within
    return {**shape, "intermediate": shape["intermediate"] * 3 // 2}


def measure_shape(
    task: str, shape: str, length: int, arguments: argparse.Namespace, folder: Path
) -> tuple[list[Any], float]:
    """Return the runs of every engine at a shape and a length, and the bf16 peak.

    Compiled engines drop out if they fail.
    """
    make_model(shape, folder / "model")
    case = make_case(task, arguments.rows, arguments.batch_size, length, folder)
    module = "benchmarks.mlm" if task == "mlm" else "benchmarks.engines"
    is_modern = SHAPES[shape][0] == "modernbert"
    engines = [name for name in ENGINES[task] if is_modern or name != UNPADDED]
    compiled = COMPILED_ENGINES[task] if arguments.compiled else []
    try:
        measured = measure(case, engines + compiled, arguments, folder / "all", module)
    except SystemExit as error:
        if not compiled:
            raise
        say(f"without compiled engines: {str(error).strip().splitlines()[-1]}")
        measured = measure(case, engines, arguments, folder / "some", module)
    sizes = shape_of(json.loads((folder / "model" / "config.json").read_text(encoding="utf-8")))
    summed = summarize_all(measured, count_modernbert(measured, sizes) if is_modern else sizes)
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
            "memory_mb": each["memory_mb"],
        }
        for name, each in summed["engines"].items()
    ]
    return runs, summed["peak_gflops"]["bf16"] / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tasks = "fine-tuning on rows of one length and of mixed ones, pretraining"
    parser.add_argument("--tasks", default=",".join(ENGINES), help=tasks)
    parser.add_argument("--shapes", default="bert-base,bert-large,modernbert-base", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--lengths", default=LENGTHS, help="tokens of the longest row, or of a block")
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
        for length in map(int, arguments.lengths.split(",")):
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
            f"{each['task']:5} {each['shape']:15} {each['length']:4} {each['engine']:52}"
            f" {each['tokens_per_second']:10.0f} tokens/s {100 * each['share']:5.1f} % {each['memory_mb']:7} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
