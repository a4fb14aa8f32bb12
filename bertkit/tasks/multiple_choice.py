"""Choose the text that continues a context, or answers a question about it (SWAG; Devlin et al. 2019, section 4.4).

The encoder reads each choice together with the context and computes one logit; the softmax is over the choices. Rows
can have different numbers of choices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.columns import ColumnSpec
from bertkit.data.formats.json import parse_json
from bertkit.data.labels import label_to_str, make_placeholder_names
from bertkit.data.rows import FILL_IN, NO_LABEL, check_texts, read_texts
from bertkit.errors import DataError
from bertkit.metrics import calibration
from bertkit.metrics.intervals import UNDECLARED_METRIC, Metric
from bertkit.metrics.linear import find_words, fit_linear, sample_rows, score_linear
from bertkit.metrics.probabilities import mean_probabilities
from bertkit.metrics.registry import CLASSIFICATION_METRICS, EVALUATE_PREFIX
from bertkit.modeling.heads.targets import Target, build_label_targets, compute_class_score
from bertkit.modeling.info import Model
from bertkit.modeling.load import load_pretrained
from bertkit.recipe.records import Recipe, read_option
from bertkit.recipe.sections import Row
from bertkit.tasks import Answer, Outputs, Prediction, Predictions, TaskReport, add_labels, compare_values, score_values
from bertkit.tokens.features import Feature, Features, Rows, TaskContext
from bertkit.tokens.multi_text import encode_multi_text, multi_text_collator

COLUMNS = ColumnSpec(
    inputs=("context", "choices"),
    gold="label",
    optional=("stem",),
    blank=("stem",),
    lists=("choices",),
    predicted=("choice", "choice_probabilities"),
)
TYPES: Mapping[str, Any] = {"prediction": int}
METRICS: Mapping[str, Metric] = {"accuracy": CLASSIFICATION_METRICS["accuracy"], EVALUATE_PREFIX: UNDECLARED_METRIC}
OPTIONS: Mapping[str, Any] = calibration.OPTIONS

_MAJORITY, _CHOICES = "most frequent position", "choices alone"
# Maximum number of rows to fit a baseline to.
_MAX_ROWS = 2500
_MIN_CHANCE = 1e-4

compare, score = compare_values, score_values
# Shapes: (rows, choices, tokens); ``labels`` (rows,).
collator = multi_text_collator


def read(row: Row, recipe: Recipe) -> Row:
    """Check the texts, and read the label as the index of a choice, from 0.

    Blank choices at the end are dropped, because a table has as many columns of choices as its longest row.

    Raises:
        DataError: If there are fewer than two choices, one is blank, or the label does not match any of them.
    """
    texts = read_texts(parse_json(row["choices"]), "choices", first=0)
    if len(texts) < 2:
        raise DataError(
            f"a row needs two or more choices, got {len(texts)}", "add choices, or leave the row out", column="choices"
        )
    check_texts(row, "context", "stem")
    if "label" not in row:
        return {**row, "choices": texts}
    label = label_to_str(row["label"])
    if label is None:
        raise DataError(NO_LABEL, FILL_IN, column="label")
    # `isdigit` is true for digits of any script and for superscripts, and `int` raises for thousands of digits.
    if not label.isascii() or not label.isdigit() or len(label) > 10 or int(label) >= len(texts):
        message = f"label {label!r} is not one of the {len(texts)} choices"
        raise DataError(message, f"count them from 0 to {len(texts) - 1}", column="label")
    return {**row, "choices": texts, "label": int(label)}


def find_row_warnings(rows: Rows, recipe: Recipe) -> list[str]:
    """Return a warning if labels seem to count from 1: no row has the label 0, which would be unlikely by chance."""
    if not rows or "label" not in rows[0]:
        return []
    # Probability that no random label is 0. With four choices per row, 33 rows are enough for a warning: 0.75 ** 33 =
    # 0.00008 is below the limit.
    chance = prod(1 - 1 / len(row["choices"]) for row in rows)
    if chance > _MIN_CHANCE or any(row["label"] == 0 for row in rows):
        return []
    return [f"None of {len(rows):,} rows has the label 0, the first choice. Subtract 1 if the labels count from 1."]


def load_model(folder: Path, context: TaskContext, *, new_head: bool) -> Model:
    """Load an encoder with one logit per choice; padded choices get probability 0."""
    from bertkit.modeling.heads.mixins import MaskedChoices, extend_model

    labels = make_placeholder_names(2)
    model = load_pretrained("AutoModelForMultipleChoice", folder, context, labels=labels, new_head=new_head)
    extend_model(model, MaskedChoices)
    return model


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode the context with each choice; ``input_ids`` has one list of token ids per choice."""
    pairs = []
    for row in rows:
        stem = f"{row['stem']} " if row.get("stem") else ""
        pairs.append([{"text": row["context"], "text_pair": f"{stem}{choice}"} for choice in row["choices"]])
    return add_labels(encode_multi_text(pairs, context), rows, lambda row: row["label"])


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Return the index and the text of each row's most probable choice, and the probability of each choice."""
    decoded, option = [], partial(read_option, OPTIONS, context.recipe)
    for row, output in zip(rows, outputs, strict=True):
        # Drop the padded choices at the end: their logit, the lowest float32, is not -inf in float64.
        logits = output["logits"][: len(row["choices"])].astype(np.float64)
        weights = np.exp((logits - logits.max()) / option("temperature"))
        index, probabilities = int(logits.argmax()), weights / weights.sum()
        record = {"prediction": index, "choice": row["choices"][index], "choice_probabilities": probabilities.tolist()}
        decoded.append(record | calibration.apply_options(probabilities, range(len(probabilities)), option))
    return decoded


def targets(
    prediction: Prediction, outputs: Outputs, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Return the explainable outputs: the log-odds of each choice among the row's choices."""
    names = [f"{index}: {choice}" for index, choice in enumerate(row["choices"])]
    return build_label_targets(names, [names[prediction["prediction"]]], compute_class_score)


def gold_probabilities(predictions: Predictions, rows: Rows, context: TaskContext) -> calibration.Decisions:
    """Return the probabilities of all choices, 0 for padded choices, and the gold choices."""
    padded = np.zeros((len(rows), max(len(row["choices"]) for row in rows)))
    for line, record in zip(padded, predictions, strict=True):
        line[: len(record["choice_probabilities"])] = record["choice_probabilities"]
    return calibration.Decisions(padded, np.array([row["label"] for row in rows]), np.arange(len(rows)))


def combine(outputs: Outputs, feature: Feature, context: TaskContext) -> dict[str, Any]:
    """Return logits whose probabilities are the mean over several models."""
    # The logits after this number belong to padding.
    num_choices = len(feature["input_ids"])
    return mean_probabilities([{"logits": output["logits"][:num_choices]} for output in outputs])


def fit_baselines(training_rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Sort positions by how often they are correct, and fit a model that reads the words of single choices."""
    positions = [index for index, _ in Counter(row["label"] for row in training_rows).most_common()]
    # Logistic regression predicts whether a choice is correct from its words, without the context.
    rows = sample_rows(training_rows, max_rows=_MAX_ROWS)
    words = [find_words(choice) for row in rows for choice in row["choices"]]
    is_gold = [int(index == row["label"]) for row in rows for index in range(len(row["choices"]))]
    return {_MAJORITY: positions, _CHOICES: fit_linear(words, is_gold)}


def baselines(state: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, list[Prediction]]:
    """Choose the position that is correct most often, the longest choice, or the choice with the best words."""
    choices_by_name = {
        _MAJORITY: [next((index for index in state[_MAJORITY] if index < len(row["choices"])), 0) for row in rows],
        "longest choice": [max(range(len(row["choices"])), key=lambda n: len(row["choices"][n])) for row in rows],
    }
    if state[_CHOICES]:
        words = [find_words(choice) for row in rows for choice in row["choices"]]
        # Rows of 2 and 3 choices have scores of shape (5,), which are split at [2].
        scores = np.split(
            score_linear(state[_CHOICES], words)[:, 1], np.cumsum([len(row["choices"]) for row in rows])[:-1]
        )
        choices_by_name[_CHOICES] = [int(row_scores.argmax()) for row_scores in scores]
    return {name: [{"prediction": index} for index in indices] for name, indices in choices_by_name.items()}


def details(predictions: Predictions, rows: Rows, context: TaskContext) -> TaskReport:
    """Report accuracy by number of choices, next to the accuracy of guessing, and the answers as text."""
    verdicts: dict[int, list[bool]] = {}
    answers = []
    for row, record in zip(rows, predictions, strict=True):
        gold, predicted = row["label"], record["prediction"]
        confidence = max(record.get("choice_probabilities", ()), default=None)
        answers.append(Answer(row["choices"][gold], row["choices"][predicted], gold == predicted, confidence))
        verdicts.setdefault(len(row["choices"]), []).append(gold == predicted)
    table = [
        {"choices": f"{n}", "accuracy": float(np.mean(is_correct)), "by chance": 1 / n, "rows": len(is_correct)}
        for n, is_correct in sorted(verdicts.items())
    ]
    return TaskReport({"by number of choices": table}, answers=answers)
