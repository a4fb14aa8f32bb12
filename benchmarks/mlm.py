"""Tokens per second of masked language modeling: bertkit, its whole head, and the Trainer as run_mlm sets it up.

    python -m benchmarks.mlm --model DIR --data DIR

Live programs take turns, as in `benchmarks.speed`. Writes benchmarks/results/speed-mlm.json. One engine alone:
`python -m benchmarks.mlm ENGINE CASE.json FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import add_options, write_results
from benchmarks.engines import Gate, run_peak, train_behind
from benchmarks.load import machine, shape_of
from benchmarks.speed import add_round_options, measure, say, show, summarize_all

ENGINES = "peak,bertkit,bertkit:whole-head,bertkit:fp32,hf,hf-bf16"
_MANY = 100_000  # steps: no engine comes to the end


@dataclass(frozen=True)
class MlmCase:
    """What all engines train: blocks of text, from the same checkpoint."""

    model: str
    data: str
    batch_size: int
    length: int
    seed: int = 42

    def has_equal_steps(self, engine: str) -> bool:
        """Return True, since all blocks are full and every step costs the same."""
        return True

    def as_json(self) -> str:
        """Return the content of the file that an engine reads."""
        return json.dumps(asdict(self))


def run_bertkit(case: MlmCase, variant: str, folder: str) -> None:
    """Pretrain as `bertkit pretrain mlm` does; scoring waits for the end, which a measurement never reaches."""
    from bertkit.modeling import masked_head
    from bertkit.pretraining.objectives import mlm
    from bertkit.recipe import load_pretrain_recipe
    from bertkit.workflows.pretrain import pretrain

    changes = {
        "model": case.model,
        "data": {"source": case.data},
        "training.batch_size": case.batch_size,
        "training.max_length": case.length,
        "training.steps": _MANY,
        "training.evaluate_every": _MANY,
        "training.seed": case.seed,
        "training.precision": "fp32" if variant == "fp32" else "auto",
        "training.torch_compile": variant == "compiled",
    }
    gate = Gate()
    if variant == "whole-head":

        def run_whole(model: Any, batch: Any) -> Any:
            masked = batch["labels"] != masked_head.IGNORED
            outputs = model(**{name: values for name, values in batch.items() if name != "labels"})
            outputs["logits"] = outputs.logits[masked][None]
            return outputs, batch["labels"][masked]

        mlm.run_at_masked = run_whole  # type: ignore[assignment]
    make_collator = mlm.collator

    def collator(setup: Any) -> Any:
        collate = make_collator(setup)

        def counted(features: Any) -> Any:
            gate.count([len(feature["input_ids"]) for feature in features])
            return collate(features)

        return counted

    mlm.collator = collator
    pretrain(load_pretrain_recipe("mlm", changes), output=f"{folder}/run", progress=gate)


def run_trainer(case: MlmCase, *, bf16: bool, compiled: bool, folder: str) -> None:
    """Train as run_mlm does by default: texts joined and split into full blocks, masked by the library's collator."""
    import pyarrow.parquet
    import torch
    from transformers import (
        AutoModelForMaskedLM,
        AutoTokenizer,
        DataCollatorForLanguageModeling,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    set_seed(case.seed)
    tokenizer = AutoTokenizer.from_pretrained(case.model)
    texts = pyarrow.parquet.read_table(Path(case.data) / "train.parquet")["text"].to_pylist()
    tokenizer.model_max_length = 10**9
    joined = [token for ids in tokenizer(texts)["input_ids"] for token in ids]
    starts = range(0, len(joined) - case.length, case.length)
    blocks = [{"input_ids": joined[start : start + case.length]} for start in starts]
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=_MANY,
        per_device_train_batch_size=case.batch_size,
        learning_rate=5e-4,
        bf16=bf16,
        tf32=True if bf16 and torch.cuda.is_available() else None,
        torch_compile=compiled,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    collate = DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=0.15)
    model = AutoModelForMaskedLM.from_pretrained(case.model)
    train_behind(Gate(), Trainer(model=model, args=arguments, train_dataset=blocks, data_collator=collate))


def run_engine(engine: str, file: str, folder: str) -> None:
    case = MlmCase(**json.loads(Path(file).read_text(encoding="utf-8")))
    name, _, variant = engine.partition(":")
    if name == "peak":
        run_peak(case)
    elif name == "bertkit":
        run_bertkit(case, variant, folder)
    else:
        run_trainer(case, bf16=name != "hf", compiled=name == "hf-compiled", folder=folder)
    raise SystemExit(f"{engine} has trained all its steps before the measurement ended")


def main() -> None:
    if len(sys.argv) == 4 and not sys.argv[1].startswith("-"):
        run_engine(*sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--engines", default=ENGINES, help=f"comma-separated; usual: {ENGINES}")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=128, help="tokens of a block")
    add_round_options(parser)
    arguments = parser.parse_args()
    data = arguments.data / "mlm_text" if (arguments.data / "mlm_text").is_dir() else arguments.data
    case = MlmCase(str(Path(arguments.model).resolve()), str(data.resolve()), arguments.batch_size, arguments.length)
    began = time.monotonic()
    say(f"mlm: {Path(case.data).name}")
    with tempfile.TemporaryDirectory() as folder:
        found = measure(case, arguments.engines.split(","), arguments, Path(folder), "benchmarks.mlm")
    shape = shape_of(json.loads(Path(case.model, "config.json").read_text(encoding="utf-8")))
    report = {
        "task": "mlm",
        "model": shape,
        "settings": {"batch_size": case.batch_size, "max_length": case.length, "limit": None},
        "foreign_limit": arguments.foreign,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "machine": machine(arguments.threads),
        **summarize_all(found, shape),
    }
    write_results(report, arguments.output / "speed-mlm.json")
    show(report)


if __name__ == "__main__":
    main()
