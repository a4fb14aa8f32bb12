"""Recipe keys under other names: those of the last release, which are read with a warning, and those of other tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.progress import log

KEYS = {
    "training.short_last_layer": "training.cls_only_last_layer",
    "training.trim_vocabulary": "training.occurring_embeddings",
    "training.copies": "training.dupe_factor",
}
"""Old dotted key -> new one, in the same section."""
VALUES = {"training.packing": {"apart": "documents"}}
"""Dotted key -> old value -> new one."""

TRAINING_ARGUMENTS = {
    "num_train_epochs": "training.epochs",
    "max_steps": "training.steps",
    "per_device_train_batch_size": "training.batch_size",
    "learning_rate": "training.learning_rate",
    "lr_scheduler_type": "training.schedule",
    "warmup_steps": "training.warmup_ratio",
    "weight_decay": "training.weight_decay",
    "max_grad_norm": "training.max_grad_norm",
    "seed": "training.seed",
    "data_seed": "training.seed",
    "bf16": "training.precision",
    "gradient_accumulation_steps": "training.gradient_accumulation",
    "gradient_checkpointing": "training.gradient_checkpointing",
    **dict.fromkeys(("torch_compile", "torch_compile_backend", "torch_compile_mode"), "training.torch_compile"),
    "label_smoothing_factor": "training.label_smoothing",
    "logging_steps": "training.log_every",
    "eval_strategy": "training.evaluate_every",
    "eval_steps": "training.evaluate_every",
    "save_strategy": "training.evaluate_every",
    "save_steps": "training.evaluate_every",
    "metric_for_best_model": "best_metric",
    "output_dir": "--output",
    "greater_is_better": "best_metric",
    **dict.fromkeys(("use_cpu", "logging_nan_inf_filter", "remove_unused_columns", "disable_tqdm"), "bertkit itself"),
}
"""Fields of transformers' TrainingArguments that bertkit decides -> what decides them."""
OTHER_NAMES = {
    **{name: key for name, key in TRAINING_ARGUMENTS.items() if key != "bertkit itself"},
    **dict.fromkeys(("lr", "peak_lr"), "training.learning_rate"),
    **dict.fromkeys(("num_epochs", "n_epochs", "max_epochs"), "training.epochs"),
    **dict.fromkeys(("bs", "train_batch_size", "per_gpu_train_batch_size"), "training.batch_size"),
    **dict.fromkeys(("max_seq_length", "max_seq_len"), "training.max_length"),
    **dict.fromkeys(("fp16", "fp32", "mixed_precision", "dtype"), "training.precision"),
    **dict.fromkeys(("early_stopping", "early_stopping_patience"), "training.patience"),
    **dict.fromkeys(("evaluation_strategy", "eval_every"), "training.evaluate_every"),
    **dict.fromkeys(("save_total_limit", "save_only_model"), "training.keep_all_checkpoints"),
    **dict.fromkeys(("lr_scheduler", "scheduler"), "training.schedule"),
    **dict.fromkeys(("warmup", "warmup_proportion"), "training.warmup_ratio"),
    **dict.fromkeys(("max_train_samples", "max_samples"), "data.limit"),
    **dict.fromkeys(("model_name_or_path", "model_name", "base_model", "pretrained_model"), "model"),
    **dict.fromkeys(("train_file", "dataset_name", "dataset"), "data.source"),
    **dict.fromkeys(("optim", "report_to", "run_name", "dataloader_num_workers"), "training.extra"),
    "gradient_clipping": "training.max_grad_norm",
    "text_column": "data.columns.text",
    "label_column": "data.columns.label",
    "metric": "metrics",
}
"""What other tools call a key of a recipe, whatever section they have it in -> bertkit's key."""


def rename_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides (dotted key -> value) under the new names, with a warning for each old one."""
    return dict(_rename(key, value) for key, value in changes.items())


def rename_keys(values: Mapping[str, Any], *, warn: bool = True) -> dict[str, Any]:
    """Return a recipe's values under the new names; with `warn`, log a warning for each old one."""
    renamed: dict[str, Any] = {}
    for section, content in values.items():
        if not isinstance(content, Mapping):
            renamed[section] = content
            continue
        renamed[section] = {}
        for key, value in content.items():
            new_key, new_value = _rename(f"{section}.{key}", value, warn=warn)
            renamed[section][new_key.removeprefix(f"{section}.")] = new_value
    return renamed


def _rename(key: str, value: Any, *, warn: bool = True) -> tuple[str, Any]:
    """Return a dotted key and its value under their new names."""
    new_key = KEYS.get(key, key)
    new_value = VALUES.get(key, {}).get(value, value) if isinstance(value, str) else value
    if warn and (new_key, new_value) != (key, value):
        old, new = (key, new_key) if new_key != key else (f"{key}={value}", f"{key}={new_value}")
        log.warning(f"{old} is now called {new}; the next release will not read the old name")
    return new_key, new_value
