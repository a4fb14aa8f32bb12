"""The peer: transformers.Trainer in fp32 with dynamic padding and random order, as its example scripts set it up.

    python benchmarks/plain_trainer.py RECIPE MODEL DATA_FOLDER SEED OUTPUT [EPOCHS]

Takes the settings of a bertkit recipe, evaluates after each epoch, keeps the best one, and prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from datasets import load_dataset
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from bertkit.recipe import Recipe, load_recipe

METRICS = {
    "matthews_correlation": matthews_corrcoef,
    "accuracy": accuracy_score,
    "f1": f1_score,
    "pearsonr": lambda gold, predicted: pearsonr(gold, predicted).statistic,
    "spearmanr": lambda gold, predicted: spearmanr(gold, predicted).statistic,
}


def training_arguments(recipe: Recipe, output: str, seed: int, epochs: float | None) -> TrainingArguments:
    """The settings of a recipe, evaluated after each epoch, the best one kept."""
    settings = recipe.training
    return TrainingArguments(
        output_dir=output,
        learning_rate=settings.learning_rate,
        num_train_epochs=epochs or settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=64,
        warmup_steps=settings.warmup_ratio,
        weight_decay=settings.weight_decay,
        seed=seed,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model=recipe.best_metric,
        greater_is_better=True,
        disable_tqdm=True,
        use_cpu=True,
    )


def main(name: str, model_folder: str, data_folder: str, seed: int, output: str, epochs: float | None) -> None:
    started = time.perf_counter()
    recipe = load_recipe(name)
    settings, columns = recipe.training, recipe.data.columns
    set_seed(seed)
    validation = recipe.data.splits.get("validation", "validation")
    files = {"train": f"{data_folder}/train.parquet", "validation": f"{data_folder}/{validation}.parquet"}
    rows = load_dataset("parquet", data_files=files)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    texts = [columns[column] for column in ("text", "text_pair") if column in columns]
    encoded = rows.map(
        lambda batch: tokenizer(*(batch[text] for text in texts), truncation=True, max_length=settings.max_length),
        batched=True,
        remove_columns=[name for name in rows["train"].column_names if name != columns["label"]],
    ).rename_column(columns["label"], "labels")
    is_regression = recipe.labels is None
    model = AutoModelForSequenceClassification.from_pretrained(
        model_folder, num_labels=1 if is_regression else len(recipe.labels)
    )

    def compute_metrics(prediction: object) -> dict[str, float]:
        logits, gold = prediction.predictions, prediction.label_ids
        answers = np.squeeze(logits) if is_regression else logits.argmax(axis=1)
        return {metric: float(METRICS[metric](gold, answers)) for metric in recipe.metrics}

    trainer = Trainer(
        model=model,
        args=training_arguments(recipe, output, seed, epochs),
        train_dataset=encoded["train"],
        eval_dataset=encoded["validation"],
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=compute_metrics,
    )
    trainer.train()
    scores = trainer.evaluate()
    trainer.save_model(output)
    seconds = time.perf_counter() - started
    print(json.dumps({"scores": {metric: scores[f"eval_{metric}"] for metric in recipe.metrics}, "seconds": seconds}))


if __name__ == "__main__":
    recipe_name, model_name, data_name, seed_text, output_name, *rest = sys.argv[1:]
    Path(output_name).mkdir(parents=True, exist_ok=True)
    main(recipe_name, model_name, data_name, int(seed_text), output_name, float(rest[0]) if rest else None)
