"""Predict a number for a text or a pair of texts, such as stars or similarity (Devlin et al. 2019, section 4.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.columns import ColumnSpec
from bertkit.data.rows import check_texts, read_number
from bertkit.errors import DataError
from bertkit.metrics.intervals import UNDECLARED_METRIC, Metric
from bertkit.metrics.linear import (
    TFIDF,
    find_pair_features,
    find_scale,
    fit_linear,
    fit_tfidf,
    get_max_rows,
    sample_rows,
    score_linear,
    score_tfidf,
)
from bertkit.metrics.probabilities import mean_logits
from bertkit.metrics.registry import EVALUATE_PREFIX, REGRESSION_METRICS
from bertkit.modeling.heads.targets import Target
from bertkit.modeling.info import Model
from bertkit.modeling.load import load_pretrained
from bertkit.recipe.records import Option, Recipe
from bertkit.recipe.sections import Row
from bertkit.tasks import Outputs, Prediction, add_labels, compare_values, score_values
from bertkit.tasks.text_classification import choose_head, combine_models, read_windows
from bertkit.tokens import truncation
from bertkit.tokens.features import Batch, Collator, Feature, Features, Rows, TaskContext, Tensor, padding_collator
from bertkit.tokens.multi_text import multi_text_collator

COLUMNS = ColumnSpec(inputs=("text",), gold="label", optional=("text_pair",))
TYPES: Mapping[str, Any] = {"prediction": float}
METRICS: Mapping[str, Metric] = {**REGRESSION_METRICS, EVALUATE_PREFIX: UNDECLARED_METRIC}
# Windows can vote for a label, but not for a number.
OPTIONS: Mapping[str, Any] = {
    **truncation.OPTIONS,
    "long_text": Option("head", choices=tuple(name for name in truncation.STRATEGIES if name != "windows_vote")),
}

_MEAN, _SHARED, _SCALE = "mean", "shared words", "scale"

compare, score = compare_values, score_values


def read(row: Row, recipe: Recipe) -> Row:
    """Check the texts and read the label as a number.

    Raises:
        DataError: If a value is not text, or a label is not a finite number in ``data.label_range``.
    """
    check_texts(row, "text", "text_pair")
    if "label" not in row:
        return row
    label = read_number(row, "label", "give a number, or leave the row out")
    low, high = recipe.data.label_range or (-math.inf, math.inf)
    if not low <= label <= high:
        message = f"label {label:g} is not in the range of this recipe, {low:g} to {high:g}"
        raise DataError(message, "correct it, or change data.label_range", column="label")
    return {**row, "label": label}


def load_model(folder: Path, context: TaskContext, *, new_head: bool) -> Model:
    """Load an encoder with one linear output over its pooled output, whose loss is the squared error."""
    head = choose_head(folder, context, new_head=new_head)
    model = load_pretrained(head, folder, context, labels=("value",), new_head=new_head, problem_type="regression")
    read_windows(model, context)
    # By default, the CrossEncoder of sentence-transformers applies a sigmoid to a single output.
    model.config.sentence_transformers = {"activation_fn": "torch.nn.modules.linear.Identity"}
    return model


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode the texts; ``labels`` is the gold number."""
    return add_labels(truncation.encode_long(rows, context), rows, lambda row: row["label"])


def collator(context: TaskContext) -> Collator:
    """Build the padding collator, or the collator for several texts if texts are read in windows."""
    build = multi_text_collator if truncation.reads_windows(context.recipe) else padding_collator
    return build(context, label_type="float32")


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Return the predicted number of each row; with windows, the mean or maximum over windows."""
    strategy, logits = truncation.long_text(context.recipe), [output["logits"] for output in outputs]
    if strategy in truncation.WINDOWS:
        windows = (output["logits"][: int(output["windows"])] for output in outputs)
        logits = [truncation.combine_windows(values, strategy) for values in windows]
    return [{"prediction": float(values[0])} for values in logits]


def targets(
    prediction: Prediction, outputs: Outputs, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Return the explainable output: the predicted number; with windows, the mean or maximum over windows."""
    strategy = truncation.long_text(context.recipe)

    def score(outputs: Batch) -> Tensor:
        values = outputs["logits"][..., 0].float()
        if strategy not in truncation.WINDOWS:
            return values
        # The same combination as in `decode`, but with a gradient. Shape of `values`: (inputs, windows).
        return values.amax(dim=-1) if strategy == "windows_max" else values.mean(dim=-1)

    return [Target("value", score, "value")]


def combine(outputs: Outputs, feature: Feature, context: TaskContext) -> dict[str, Any]:
    """Return the mean of the numbers of several models."""
    return combine_models(mean_logits, outputs)


def fit_baselines(training_rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Compute the mean, and fit a model of the words; for pairs, also a model of the fraction of shared words."""
    labels = [float(row["label"]) for row in training_rows]
    # Ridge regression shrinks weights toward 0, so targets far from 0 are standardized.
    mean, scale = find_scale(labels)
    state: dict[str, Any] = {_MEAN: float(np.mean(labels)), _SCALE: [mean, scale]}
    rows = sample_rows(training_rows, get_max_rows(1))
    targets = np.array([float(row["label"]) - mean for row in rows]) / scale
    state[TFIDF] = fit_tfidf(rows, targets[:, None])
    if pairs := find_pair_features(rows):
        state[_SHARED] = fit_linear(pairs[_SHARED], targets.tolist())
    return state


def baselines(state: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, list[Prediction]]:
    """Predict the mean, and by words; for pairs, also by the fraction of shared words."""
    mean, scale = state.get(_SCALE, (0.0, 1.0))
    outputs = {}
    if words := state.get(TFIDF):
        outputs[TFIDF] = score_tfidf(words, rows)[:, 0]
    pairs, model = find_pair_features(rows), state.get(_SHARED)
    if pairs and model:
        outputs[_SHARED] = score_linear(model, pairs[_SHARED])[:, 0]
    predicted_values = {_MEAN: [state[_MEAN]] * len(rows)}
    predicted_values |= {name: (values * scale + mean).tolist() for name, values in outputs.items()}
    return {name: [{"prediction": value} for value in values] for name, values in predicted_values.items()}
