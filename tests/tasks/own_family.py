"""A task family of one's own, written with nothing but `bertkit.tasks`: whole stars, trained as one number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.tasks import (
    Answer,
    Collator,
    ColumnSpec,
    DataError,
    Feature,
    Option,
    Output,
    Prediction,
    Recipe,
    Row,
    RowScores,
    TaskContext,
    TaskReport,
    compute_metrics,
    encode_texts,
    load_pretrained,
    padding_collator,
    read_option,
)

COLUMNS = ColumnSpec(inputs=("text",), gold="label")
METRICS: tuple[str, ...] = ("mean_absolute_error", "accuracy", "spearmanr")
OPTIONS: Mapping[str, Any] = {"highest": Option(5, minimum=2)}


def read(row: Row, recipe: Recipe) -> Row:
    if "label" not in row:
        return row
    try:
        stars = int(row["label"])
    except (TypeError, ValueError):
        stars = 0
    if not 1 <= stars <= highest(recipe):
        raise DataError(f"{row['label']!r} is not a number of stars", "correct the row", column="label")
    return {**row, "label": stars}


def load_model(folder: Path, context: TaskContext, *, new_head: bool) -> Any:
    head, labels = "AutoModelForSequenceClassification", ("stars",)
    return load_pretrained(head, folder, context, labels=labels, new_head=new_head, problem_type="regression")


def encode(rows: Sequence[Row], context: TaskContext) -> list[Feature]:
    features = encode_texts(rows, context)
    for row, feature in zip(rows, features, strict=True):
        if "label" in row:
            feature["labels"] = float(row["label"])
    return features


def collator(context: TaskContext) -> Collator:
    return padding_collator(context, label_type="float32")


def decode(
    outputs: Sequence[Output], features: Sequence[Feature], rows: Sequence[Row], context: TaskContext
) -> list[Prediction]:
    numbers = [float(output["logits"][0]) for output in outputs]
    return [
        {"prediction": min(max(round(number), 1), highest(context.recipe)), "_number": number} for number in numbers
    ]


def compare(predictions: Sequence[Prediction], rows: Sequence[Row], context: TaskContext) -> RowScores:
    return {
        "gold": np.array([row["label"] for row in rows]),
        "predicted": np.array([record["prediction"] for record in predictions]),
    }


def score(row_scores: RowScores, context: TaskContext) -> dict[str, float]:
    return compute_metrics(context.recipe, row_scores["gold"], row_scores["predicted"])


def fit_baselines(training_rows: Sequence[Row], context: TaskContext) -> dict[str, Any]:
    ((frequent, _),) = Counter(row["label"] for row in training_rows).most_common(1)
    return {"stars": frequent}


def baselines(state: Mapping[str, Any], rows: Sequence[Row], context: TaskContext) -> dict[str, list[Prediction]]:
    return {"most frequent": [{"prediction": state["stars"]} for _ in rows]}


def details(predictions: Sequence[Prediction], rows: Sequence[Row], context: TaskContext) -> TaskReport:
    pairs = [(row["label"], record["prediction"]) for row, record in zip(rows, predictions, strict=True)]
    return TaskReport(answers=[Answer(f"{gold} stars", f"{stars} stars", gold == stars) for gold, stars in pairs])


def highest(recipe: Recipe) -> int:
    return int(read_option(OPTIONS, recipe, "highest"))
