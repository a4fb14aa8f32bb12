"""The peers: transformers.Trainer as its example scripts configure it, in the forms that people run.

    python -m benchmarks.peers VARIANT CASE.json FOLDER [--fast-fp32]

Trains, keeps the best epoch, scores, saves, and prints one JSON object, in the shape of `bertkit finetune --json`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import MANY, Case
from benchmarks.harness import Report, read_columns, read_options
from benchmarks.load import cpu_flags
from bertkit.hardware.device import find_device


@dataclass(frozen=True)
class Variant:
    """Configuration of a Trainer; None pads as the example script does, and uses bf16 if the device has it."""

    pads: bool | None = False
    bf16: bool | None = False
    grouped: bool = False
    compiled: bool = False
    evaluation_batch: int = 64


# run_glue and run_qa pad to the maximum, run_ner does not; the library's own evaluation batch is 8
VARIANTS = {
    "hf-default": Variant(pads=None, evaluation_batch=8),
    "hf-dynamic": Variant(),
    "hf-grouped": Variant(grouped=True),
    "hf-tuned": Variant(bf16=None, grouped=True),
    "hf": Variant(),  # of pretraining, where all rows are full
    "hf-bf16": Variant(bf16=True),
    "hf-bf16-compiled": Variant(bf16=True, compiled=True),
}


def pads(variant: Variant, family: str) -> bool:
    """Return whether a variant pads every row to the recipe's length."""
    return family != "token_classification" if variant.pads is None else variant.pads


def training_arguments(variant: Variant, output: str, **more: Any) -> Any:
    """Build the arguments of a variant."""
    from transformers import TrainingArguments

    device = find_device()
    # A CPU without bf16 instructions emulates them and takes six times as long as in fp32.
    has_bf16 = not device.is_cpu or {"avx512_bf16", "amx_bf16", "bf16"} & cpu_flags()
    bf16 = bool(has_bf16) if variant.bf16 is None else variant.bf16
    return TrainingArguments(
        output_dir=output,
        per_device_eval_batch_size=variant.evaluation_batch,
        bf16=bf16,
        train_sampling_strategy="group_by_length" if variant.grouped else "random",
        tf32=None if device.is_cpu or not bf16 else True,
        torch_compile=variant.compiled,
        use_cpu=device.is_cpu,
        report_to=[],
        disable_tqdm=True,
        **more,
    )


def make_trainer(case: Case, variant: Variant, output: str, *, evaluates: bool = False) -> Any:
    """Build the Trainer of a case: rows are read, the model is loaded, nothing is trained.

    With `evaluates`, each epoch is scored and saved and the best one kept.
    """
    from transformers import PrinterCallback, Trainer, set_seed

    from benchmarks.peer_rows import load_material

    set_seed(case.seed)
    recipe = case.load()
    material = load_material(case, pad=pads(variant, recipe.task))
    settings = recipe.training
    each_epoch: dict[str, Any] = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": recipe.best_metric,
        "greater_is_better": True,
    }
    arguments = training_arguments(
        variant,
        output,
        learning_rate=settings.learning_rate,
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        warmup_steps=settings.warmup_ratio,
        weight_decay=settings.weight_decay,
        seed=settings.seed,
        **(each_epoch if evaluates else {"save_strategy": "no"}),
    )
    trainer = Trainer(
        model=material.load_model(),
        args=arguments,
        train_dataset=material.train,
        eval_dataset=material.validation,
        processing_class=material.tokenizer,
        data_collator=material.collate,
        compute_metrics=material.measure,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def make_pretrainer(case: Case, variant: Variant, output: str) -> Any:
    """Build the Trainer as run_mlm does by default: texts joined and split into full blocks, masked by the collator."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer, set_seed

    set_seed(case.seed)
    length = case.max_length or 0
    tokenizer = AutoTokenizer.from_pretrained(case.model)
    tokenizer.model_max_length = 10**9
    texts = [row["text"] for row in read_columns(Path(case.data, "train.parquet"), "text")]
    joined = [token for ids in tokenizer(texts)["input_ids"] for token in ids]
    starts = range(0, len(joined) - length, length)
    size = {"max_steps": MANY, "per_device_train_batch_size": case.batch_size}
    return Trainer(
        model=AutoModelForMaskedLM.from_pretrained(case.model),
        args=training_arguments(variant, output, learning_rate=5e-4, save_strategy="no", **size),
        train_dataset=[{"input_ids": joined[start : start + length]} for start in starts],
        data_collator=DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=0.15),
    )


def train_and_score(case: Case, variant: Variant, output: str) -> Report:
    """Train with the best epoch kept, save, and return the scores, the number of threads and the precision."""
    import torch

    trainer = make_trainer(case, variant, output, evaluates=True)
    trainer.train()
    evaluated = trainer.evaluate()
    trainer.save_model(output)
    scores = {name: evaluated[f"eval_{name}"] for name in case.load().metrics if f"eval_{name}" in evaluated}
    precision = "bf16" if trainer.args.bf16 else "fp32"
    return {"results": [{"scores": scores}], "threads": torch.get_num_threads(), "precision": precision}


def load_pipeline(run: str, dtype: str, batch_size: int, **options: Any) -> Any:
    """Load a run that classifies texts into the pipeline of transformers."""
    from transformers import pipeline

    return pipeline("text-classification", model=run, dtype=dtype, batch_size=batch_size, **options)


def main() -> None:
    fast = (False, "fp32 products through oneDNN: faster, as exact")
    asked = read_options(__doc__, "variant case folder", fast_fp32=fast)
    if asked.fast_fp32:
        compute_fp32_through_onednn()
    print(json.dumps(train_and_score(Case.read(asked.case), VARIANTS[asked.variant], asked.folder)), flush=True)


def compute_fp32_through_onednn() -> None:
    """Leave fp32 products to oneDNN, which uses AVX-512 where MKL does not.

    The name of the setting says bf16, but without AMX oneDNN has no such product and computes in true fp32; a CPU with
    AMX would lose bits, so it is refused there.
    """
    import torch

    if "amx_bf16" in cpu_flags():
        raise SystemExit("--fast-fp32 would compute in bf16 on this CPU (it has AMX); leave it out")
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


if __name__ == "__main__":
    main()
