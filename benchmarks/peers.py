"""The peers: transformers.Trainer as its example scripts configure it, in the forms that people run.

    python -m benchmarks.peers VARIANT CASE.json OUTPUT [--fast-fp32]

Trains, keeps the best epoch, scores, saves, and prints one JSON object: scores, seconds and their parts.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from benchmarks.stages import Stages, began


@dataclass(frozen=True)
class Variant:
    """How a Trainer is set up; None pads where the example script of the family does."""

    pads: bool | None = False
    bf16: bool = False
    grouped: bool = False
    compiled: bool = False
    evaluation_batch: int = 64


# run_glue and run_qa pad to the maximum, run_ner does not; the library's own evaluation batch is 8
VARIANTS = {
    "hf-default": Variant(pads=None, evaluation_batch=8),
    "hf-dynamic": Variant(),
    "hf-grouped": Variant(grouped=True),  # tuned for a machine that is slower in bf16
    "hf-tuned": Variant(bf16=True, grouped=True),
    "hf-compiled": Variant(pads=True, bf16=True, compiled=True),  # fixed shapes: made for a GPU
}


def pads(variant: Variant, family: str) -> bool:
    """Return whether a variant pads every row to the recipe's length."""
    return family != "token_classification" if variant.pads is None else variant.pads


def training_arguments(case: Case, variant: Variant, output: str, *, evaluates: bool) -> Any:
    """Build the arguments of a case; with `evaluates`, each epoch is scored and saved and the best one kept."""
    import torch
    from transformers import TrainingArguments

    recipe = case.load()
    settings = recipe.training
    each_epoch: dict[str, Any] = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": recipe.best_metric,
        "greater_is_better": True,
    }
    return TrainingArguments(
        output_dir=output,
        learning_rate=settings.learning_rate,
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=variant.evaluation_batch,
        warmup_steps=settings.warmup_ratio,
        weight_decay=settings.weight_decay,
        seed=settings.seed,
        bf16=variant.bf16,
        train_sampling_strategy="group_by_length" if variant.grouped else "random",
        tf32=True if variant.bf16 and torch.cuda.is_available() else None,
        torch_compile=variant.compiled,
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
        disable_tqdm=True,
        **(each_epoch if evaluates else {"save_strategy": "no"}),
    )


def make_trainer(case: Case, variant: Variant, output: str, stages: Stages, *, evaluates: bool) -> Any:
    """Build the Trainer of a case in a variant: rows are read, the model is loaded, nothing is trained."""
    from transformers import PrinterCallback, Trainer, set_seed

    from benchmarks.peer_rows import load_material

    stages.end("import")
    set_seed(case.seed)
    material = load_material(case, pad=pads(variant, case.load().task))
    stages.end("rows and tokens")
    trainer = Trainer(
        model=material.load_model(),
        args=training_arguments(case, variant, output, evaluates=evaluates),
        train_dataset=material.train,
        eval_dataset=material.validation,
        processing_class=material.tokenizer,
        data_collator=material.collate,
        compute_metrics=stages.timed("decoding", material.measure),
    )
    trainer.remove_callback(PrinterCallback)
    stages.end("model")
    return trainer


def train_and_score(case: Case, variant: Variant, output: str) -> dict[str, Any]:
    """Train with the best epoch kept, save, and return scores, seconds and their parts."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):  # type: ignore[misc]
        """Notes when a step has ended."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            stages.start_steps()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            stages.step()

    stages = Stages(began())
    trainer = make_trainer(case, variant, output, stages, evaluates=True)
    trainer.add_callback(Clock())
    trainer.evaluate = stages.timed("evaluation", trainer.evaluate)
    trainer.train()
    evaluated = trainer.evaluate()
    stages.timed("save", trainer.save_model)(output)
    scores = {name: evaluated[f"eval_{name}"] for name in case.load().metrics if f"eval_{name}" in evaluated}
    return {"scores": scores, "seconds": round(stages.total(), 2), "stages": stages.parts()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("case", type=Path, help="JSON file: what to train")
    parser.add_argument("output", help="folder for checkpoints and the model")
    parser.add_argument("--fast-fp32", action="store_true", help="fp32 products through oneDNN: faster, as exact")
    arguments = parser.parse_args()
    if arguments.fast_fp32:
        compute_fp32_through_onednn()
    case = Case(**json.loads(arguments.case.read_text()))
    print(json.dumps(train_and_score(case, VARIANTS[arguments.variant], arguments.output)), flush=True)


def compute_fp32_through_onednn() -> None:
    """Leave fp32 products to oneDNN, which uses AVX-512 where MKL does not.

    The name of the setting says bf16, but without AMX oneDNN has no such product and computes in true fp32; a CPU with
    AMX would lose bits, so it is refused there.
    """
    import torch

    if "amx_bf16" in Path("/proc/cpuinfo").read_text():
        raise SystemExit("--fast-fp32 would compute in bf16 on this CPU (it has AMX); leave it out")
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


if __name__ == "__main__":
    main()
