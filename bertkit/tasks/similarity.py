"""Train an encoder whose vectors measure the similarity of two texts, from pairs with a score (bi-encoder).

Each text is read alone (Reimers and Gurevych 2019), so its vector can be stored and compared with millions of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.data.columns import ColumnSpec
from bertkit.errors import DataError
from bertkit.metrics.intervals import UNDECLARED_METRIC, Metric
from bertkit.metrics.registry import EVALUATE_PREFIX, REGRESSION_METRICS
from bertkit.modeling.heads.targets import Target, build_vector_target
from bertkit.modeling.info import Model
from bertkit.modeling.sentence import library_losses, texts
from bertkit.modeling.sentence.library_losses import BINARY, SCORE, make_loss_option
from bertkit.recipe.records import Recipe, read_option
from bertkit.recipe.sections import Row
from bertkit.tasks import (
    Outputs,
    Prediction,
    Predictions,
    TaskReport,
    add_labels,
    compare_values,
    score_values,
    text_regression,
)
from bertkit.tokens.features import Collator, Feature, Features, Rows, TaskContext
from bertkit.tokens.multi_text import hash_text, multi_text_collator

COLUMNS = ColumnSpec(inputs=("text", "text_pair"), gold="label")
TYPES: Mapping[str, Any] = {"prediction": float}
_CORRELATIONS = {name: REGRESSION_METRICS[name] for name in ("spearmanr", "pearsonr")}
METRICS: Mapping[str, Metric] = {**_CORRELATIONS, EVALUATE_PREFIX: UNDECLARED_METRIC}
OPTIONS: Mapping[str, Any] = {"loss": make_loss_option(("cosent", "cosine", "simcse"), SCORE, BINARY), **texts.OPTIONS}

compare, score, check_training = compare_values, score_values, library_losses.check_training
fit_baselines, baselines = text_regression.fit_baselines, text_regression.baselines


def read(row: Row, recipe: Recipe) -> Row:
    """Check the texts and read the label as a number; for the cosine loss, it must be from -1 to 1.

    Raises:
        DataError: If a value is not text, or a label is not a finite number or out of range.
    """
    row = text_regression.read(row, recipe)
    needs_cosines = _get_loss(recipe) in ("cosine", "CosineSimilarityLoss") and recipe.data.label_range is None
    if "label" in row and needs_cosines and abs(row["label"]) > 1:
        message = f"label {row['label']:g} is outside -1 to 1, and the cosine loss learns cosines"
        raise DataError(message, "state the range of your labels: --set data.label_range=[0,5]", column="label")
    return row


def load_model(folder: Path, context: TaskContext, *, new_head: bool) -> Model:
    """Load an encoder whose vectors are trained; no weights are added to it."""
    return texts.load_encoder(folder, context, new_head=new_head, loss=_get_loss(context.recipe))


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode the two texts; ``labels`` is the score, scaled to 0 to 1 if the recipe has a range.

    If other texts of a batch are negatives, as for SimCSE, ``texts`` has the ids of the two texts.
    """
    # CoSENT only uses the order of the scores; the cosine loss requires scores that a cosine can reach.
    low, high = context.recipe.data.label_range or (0.0, 1.0)
    pairs = [[row["text"], row["text_pair"]] for row in rows]
    features = texts.encode_rows(pairs, context)
    if _get_loss(context.recipe) == "simcse":
        for pair, feature in zip(pairs, features, strict=True):
            feature["texts"] = list(map(hash_text, pair))
    return add_labels(features, rows, lambda row: (row["label"] - low) / (high - low))


def collator(context: TaskContext) -> Collator:
    """Build the collator. Shape of a batch: (rows, 2, tokens)."""
    return multi_text_collator(context, "float32")


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Return the cosine of each row's two vectors, or their dot product if the model compares by dot products."""
    dot = texts.uses_dot_product(context)
    vectors = [texts.normalize(output["vectors"], dot=dot) for output in outputs]
    return [{"prediction": float(first @ second), "_vectors": (first, second)} for first, second in vectors]


def targets(
    prediction: Prediction, outputs: Outputs, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Return the explainable outputs: the similarity of the two texts."""
    return [build_vector_target(0, dot=texts.uses_dot_product(context))]


def details(predictions: Predictions, rows: Rows, context: TaskContext) -> TaskReport:
    """Report the scores of truncated vectors, if they were trained for truncation."""
    dimensions = read_option(OPTIONS, context.recipe, "dimensions")
    # Truncation changes the length of a vector, so truncated vectors are compared by the cosine.
    table = []
    for count in sorted(dimensions, reverse=True):
        pairs = [[texts.normalize(item[:count], dot=False) for item in record["_vectors"]] for record in predictions]
        truncated = [{"prediction": float(first @ second)} for first, second in pairs]
        table.append({"dimension": str(count), **score(compare(truncated, rows, context), context)})
    return TaskReport({"by dimension": table} if table else {})


def _get_loss(recipe: Recipe) -> str:
    return str(read_option(OPTIONS, recipe, "loss"))
