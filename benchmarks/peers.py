"""The peers: transformers.Trainer with the settings of its example scripts, and with other common settings.

    python -m benchmarks.peers VARIANT CASE.json FOLDER [--fast-fp32]

Trains, keeps the best epoch, scores, saves, and prints one JSON object, in the format of `bertkit finetune --json`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import MAX_STEPS, Case
from benchmarks.harness import Report, read_column, read_options
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


# run_glue and run_qa pad to the maximum length, run_ner does not; the default evaluation batch is 8.
VARIANTS = {
    "hf-default": Variant(pads=None, evaluation_batch=8),
    "hf-dynamic": Variant(),
    "hf-grouped": Variant(grouped=True),
    "hf-tuned": Variant(bf16=None, grouped=True),
    "hf": Variant(),  # for pretraining, because all rows are full
    "hf-bf16": Variant(bf16=True),
    "hf-bf16-compiled": Variant(bf16=True, compiled=True),
}


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
    """Read the rows, load the model, and build the Trainer of a case.

    With `evaluates`, each epoch is scored and saved, and the best epoch is kept.
    """
    from transformers import PrinterCallback, Trainer, set_seed

    from benchmarks.peer_rows import load_rows

    set_seed(case.seed)
    recipe = case.load()
    pads = recipe.task != "token_classification" if variant.pads is None else variant.pads
    rows, settings = load_rows(case, pad=pads), recipe.training
    if evaluates and not rows.measure:
        raise SystemExit(f"the scores of {case.recipe} are not measured for peers")
    evaluation: dict[str, Any] = {
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
        **(evaluation if evaluates else {"save_strategy": "no"}),
    )
    trainer = Trainer(
        model=rows.load_model(),
        args=arguments,
        train_dataset=rows.train,
        eval_dataset=rows.validation,
        processing_class=rows.tokenizer,
        data_collator=rows.collate,
        compute_metrics=rows.measure,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def make_pretrainer(case: Case, variant: Variant, output: str) -> Any:
    """Build the Trainer of run_mlm: texts are joined and split into full blocks, and the collator masks tokens."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer, set_seed

    set_seed(case.seed)
    length = case.max_length or 0
    tokenizer = AutoTokenizer.from_pretrained(case.model)
    tokenizer.model_max_length = 10**9
    texts = read_column(Path(case.data, "train.parquet"), "text")
    joined = [token for ids in tokenizer(texts)["input_ids"] for token in ids]
    starts = range(0, len(joined) - length, length)
    size = {"max_steps": MAX_STEPS, "per_device_train_batch_size": case.batch_size}
    return Trainer(
        model=AutoModelForMaskedLM.from_pretrained(case.model),
        args=training_arguments(variant, output, learning_rate=5e-4, save_strategy="no", **size),
        train_dataset=[{"input_ids": joined[start : start + length]} for start in starts],
        data_collator=DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=0.15),
    )


def train_and_score(case: Case, variant: Variant, output: str) -> Report:
    """Train, save the best epoch, and return the scores, the number of threads and the precision."""
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


def compute_fp32_through_onednn() -> None:
    """Compute fp32 products with oneDNN, which uses AVX-512 where MKL does not.

    The setting is called bf16, but oneDNN computes in true fp32 on a CPU without AMX. A CPU with AMX would lose bits,
    so this is an error there.
    """
    import torch

    if "amx_bf16" in cpu_flags():
        raise SystemExit("--fast-fp32 would compute in bf16 on this CPU (it has AMX) - leave it out")
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def main() -> None:
    fast = (False, "compute fp32 products with oneDNN, which is faster and as exact")
    options = read_options(__doc__, "variant case folder", fast_fp32=fast)
    if options.fast_fp32:
        compute_fp32_through_onednn()
    report = train_and_score(Case.read(options.case), VARIANTS[options.variant], options.folder)
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
