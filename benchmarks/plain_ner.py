"""The peer of the recipe `ner`: transformers.Trainer in fp32 with the alignment and padding of its example script.

    python benchmarks/plain_ner.py MODEL DATA_FOLDER SEED OUTPUT [EPOCHS]

Every word's first piece has its label, texts are cut at max_length, words that were cut off are not scored. Prints
one JSON object with the scores of validation and test by seqeval.
"""

from __future__ import annotations

import json
import sys
import time

from datasets import load_dataset
from plain_trainer import training_arguments
from seqeval.metrics import f1_score, precision_score, recall_score
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    Trainer,
    set_seed,
)

from bertkit.recipe import load_recipe


def main(model_folder: str, data_folder: str, seed: int, output: str, epochs: float | None) -> None:
    started = time.perf_counter()
    recipe = load_recipe("ner")
    settings = recipe.training
    set_seed(seed)
    rows = load_dataset(
        "parquet", data_files={split: f"{data_folder}/{split}.parquet" for split in ("train", "validation", "test")}
    )
    names = rows["train"].features["ner_tags"].feature.names
    tokenizer = AutoTokenizer.from_pretrained(model_folder)

    def encode(batch: dict) -> dict:
        encoded = tokenizer(batch["tokens"], is_split_into_words=True, truncation=True, max_length=settings.max_length)
        encoded["labels"] = []
        for number, tags in enumerate(batch["ner_tags"]):
            before, labels = None, []
            for word in encoded.word_ids(number):
                labels.append(-100 if word is None or word == before else tags[word])
                before = word
            encoded["labels"].append(labels)
        return encoded

    encoded = rows.map(encode, batched=True, remove_columns=rows["train"].column_names)
    model = AutoModelForTokenClassification.from_pretrained(
        model_folder, id2label=dict(enumerate(names)), label2id={name: n for n, name in enumerate(names)}
    )

    def compute_metrics(prediction: object) -> dict[str, float]:
        gold, found = [], []
        for logits, labels in zip(prediction.predictions, prediction.label_ids, strict=True):
            kept = labels != -100
            gold.append([names[n] for n in labels[kept]])
            found.append([names[n] for n in logits.argmax(axis=1)[kept]])
        return {
            "f1": f1_score(gold, found),
            "precision": precision_score(gold, found),
            "recall": recall_score(gold, found),
        }

    trainer = Trainer(
        model=model,
        args=training_arguments(recipe, output, seed, epochs),
        train_dataset=encoded["train"],
        eval_dataset=encoded["validation"],
        data_collator=DataCollatorForTokenClassification(tokenizer),
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
    )
    trainer.train()
    scores = {}
    for split in ("validation", "test"):
        found = trainer.evaluate(encoded[split], metric_key_prefix=split)
        scores[split] = {name: found[f"{split}_{name}"] for name in ("f1", "precision", "recall")}
    print(json.dumps({"scores": scores, "seconds": round(time.perf_counter() - started, 1)}))


if __name__ == "__main__":
    main(*sys.argv[1:3], int(sys.argv[3]), sys.argv[4], float(sys.argv[5]) if len(sys.argv) > 5 else None)
