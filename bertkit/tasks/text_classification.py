"""Classify a text or a pair of texts: one of two or more classes, or several labels at once.

The encoder's pooled output goes through one linear layer (Devlin et al. 2019, section 4.1).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.columns import SOFT_LABELS, ColumnSpec
from bertkit.data.formats.json import parse_json
from bertkit.data.labels import VECTOR_ERROR, label_to_str, labels_to_strs, normalize_label
from bertkit.data.rows import FILL_IN, NO_LABEL, check_texts
from bertkit.data.soft_labels import read_soft_labels
from bertkit.errors import DataError, ModelError, RecipeError, did_you_mean, error_location
from bertkit.metrics import calibration
from bertkit.metrics.intervals import UNDECLARED_METRIC, Metric
from bertkit.metrics.linear import (
    TFIDF,
    find_pair_features,
    fit_linear,
    fit_tfidf,
    get_max_rows,
    sample_rows,
    score_linear,
    score_tfidf,
)
from bertkit.metrics.probabilities import (
    choose_labels,
    mean_label_probabilities,
    mean_probabilities,
    sigmoid,
    softmax,
    vote,
)
from bertkit.metrics.registry import CLASSIFICATION, EVALUATE_PREFIX
from bertkit.modeling.checkpoint import read_config
from bertkit.modeling.heads.targets import Target, build_label_targets, compute_class_score
from bertkit.modeling.info import Model
from bertkit.modeling.load import load_pretrained
from bertkit.recipe.records import Option, Recipe, read_option
from bertkit.recipe.sections import Row
from bertkit.tasks import Outputs, Prediction, Predictions, add_labels, score_values
from bertkit.tokens import truncation
from bertkit.tokens.features import Collator, Feature, Features, Rows, TaskContext, padding_collator
from bertkit.tokens.multi_text import multi_text_collator

COLUMNS: ColumnSpec = ColumnSpec(
    ("text",), "label", optional=("text_pair",), lists=("label",), extra=(SOFT_LABELS,), predicted=("probabilities",)
)
HAS_LABEL_NAMES: bool = True
TYPES: Mapping[str, Any] = {"prediction": str | list[str]}
METRICS: Mapping[str, Metric] = {**CLASSIFICATION, EVALUATE_PREFIX: UNDECLARED_METRIC}
OPTIONS: Mapping[str, Any] = {
    "multi_label": False,
    "separator": "|",
    "thresholds": Option(None, read=calibration.read_thresholds),
    **calibration.OPTIONS,
    **truncation.OPTIONS,
}

_option = partial(read_option, OPTIONS)

Combine = Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]

AUTO_CLASS = "AutoModelForSequenceClassification"
_POOLED = "ForWindowClassification"  # end of the names of classes with `WindowPooling`
# Pattern of lists and numpy arrays that were written as text.
_UNREAD_LIST = re.compile(r"""(\[|array\().*[,'"\s].*[\])]|[({]\s*['"].*[)}]""", re.DOTALL)
_FREQUENT = "most frequent label"
_MAX_LABELS = 20  # maximum for a baseline of words, whose time grows with the labels

score = score_values


def read(row: Row, recipe: Recipe) -> Row:
    """Check the texts and soft labels and, if a row may have several labels, list their names.

    Several labels are a list, also as text in JSON or Python, text with separators, or a column of 0 and 1 per label.

    Raises:
        DataError: If a text is not text, a label is missing, named twice or not a name, there are too many, or
            probabilities are wrong.
    """
    check_texts(row, "text", "text_pair")
    if SOFT_LABELS in row:
        with error_location(column=SOFT_LABELS):
            row = {**row, SOFT_LABELS: read_soft_labels(row[SOFT_LABELS], recipe)}
    if "label" not in row:
        return row
    with error_location(column="label"):
        return {**row, "label": _read_label(row["label"], recipe)}


def _read_label(raw_label: Any, recipe: Recipe) -> Any:
    """Return the names of a label if a row may have several, else the only one."""
    is_multi, columns, value = _is_multi_label(recipe), recipe.data.columns.get("label"), parse_json(raw_label)
    # 1. Bring each form to a list of names: a column of 0 and 1 per label, JSON, or text with separators.
    if are_columns := isinstance(columns, list) and len(columns) > 1:
        marks = [normalize_label(label_to_str(mark) or "") for mark in value]
        if not {*marks} <= {"0", "1", "false", "true"}:
            raise DataError(f"the label columns contain {raw_label}", "write 0 or 1 in each column")
        value = [name for name, mark in zip(columns, marks, strict=True) if mark in ("1", "true")]
    elif isinstance(value, str) and _UNREAD_LIST.fullmatch(value.strip()):
        raise DataError(f"label {value[:60]!r} is a list that is not JSON", 'write ["fear", "joy"]')
    elif isinstance(value, str) and is_multi:
        value = value.split(read_option(OPTIONS, recipe, "separator"))
    # 2. Check the names. [0, 1, 1] is most likely one mark per label, whose columns the recipe does not name.
    names = labels_to_strs(value)
    if len(set(names)) < len(names):
        raise DataError(
            *VECTOR_ERROR if set(names) <= {"0", "1"} else (f"a label is named twice in {raw_label!r}", "keep one")
        )
    if is_multi:
        return names
    if len(names) > 1 or are_columns:
        remedy = "use the recipe `classify` with" if recipe.task == "few_shot" else "for several labels at once"
        raise DataError("a list of labels", f"{remedy} --set options.multi_label=true")
    if not names:
        raise DataError(NO_LABEL, FILL_IN)
    return names[0] if isinstance(value, (list, tuple)) else value


def load_model(folder: Path, context: TaskContext, *, new_head: bool) -> Model:
    """Load an encoder with a linear layer over its pooled output, one logit per label."""
    is_multi = _is_multi_label(context.recipe)
    # Abstaining and prediction sets need probabilities that exclude each other; thresholds need ones that do not.
    unsupported = ("abstain_below", "set_above") if is_multi else ("thresholds",)
    if name := next((name for name in unsupported if _option(context.recipe, name) is not None), None):
        labels = "one label" if is_multi else "several labels"
        raise RecipeError(f"options.{name} is for {labels} per row", "leave it out")
    problem = "multi_label_classification" if is_multi else "single_label_classification"
    head = choose_head(folder, context, new_head=new_head)
    model = load_pretrained(head, folder, context, labels=context.labels, new_head=new_head, problem_type=problem)
    read_windows(model, context)
    return model


def choose_head(folder: Path, context: TaskContext, *, new_head: bool) -> str | Callable[[type], type[Model]]:
    """Return the head over a text, or over the vectors of its windows if ``long_text`` requires it.

    Raises:
        ModelError: If the checkpoint's trained head, which is to be run, reads windows and the recipe does not.
    """
    if truncation.long_text(context.recipe) == truncation.HIERARCHICAL:
        from bertkit.modeling.heads.base import build_head_class
        from bertkit.modeling.heads.text import WindowPooling

        return partial(build_head_class, WindowPooling, ending=_POOLED)
    # A head over windows would be loaded as a head for single texts, and lose its attention.
    if not new_head and (read_config(folder).get("architectures") or [""])[0].endswith(_POOLED):
        raise ModelError("its head reads the windows of a text", "--set options.long_text=hierarchical", file=folder)
    return AUTO_CLASS


def read_windows(model: Model, context: TaskContext) -> None:
    """Run a model's head for a text on each of its windows, if ``long_text`` requires it."""
    if truncation.long_text(context.recipe) in truncation.WINDOWS:
        from bertkit.modeling.heads.mixins import Windows, extend_model

        extend_model(model, Windows)


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode the texts; ``labels`` is the label id, or a 0/1 vector over all labels."""
    ids = context.label_ids

    def get_label(row: Row) -> list[float] | int:
        label = row["label"]
        return [float(name in label) for name in context.labels] if isinstance(label, list) else ids[label]

    return add_labels(truncation.encode_long(rows, context), rows, get_label)


def collator(context: TaskContext) -> Collator:
    """Build the padding collator, or the collator for several texts if texts are read in windows."""
    build = multi_text_collator if truncation.reads_windows(context.recipe) else padding_collator
    return build(context, label_type="float32" if _is_multi_label(context.recipe) else "int64")


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Choose each row's most probable label (or all that reach a threshold), with every label's probability.

    Of windows, the probabilities are combined. With ``windows_vote``, a label is chosen by most windows.
    """
    is_multi, strategy = _is_multi_label(context.recipe), truncation.long_text(context.recipe)
    to_probabilities = sigmoid if is_multi else softmax
    if strategy in truncation.WINDOWS:
        by_window = [to_probabilities(output["logits"][: int(output["windows"])]) for output in outputs]
        probabilities = np.stack([truncation.combine_windows(window_row, strategy) for window_row in by_window])
        # The maxima over windows can add up to more than 1.
        probabilities /= 1 if is_multi else probabilities.sum(axis=1, keepdims=True)
    else:
        probabilities = to_probabilities(np.array([output["logits"] for output in outputs]))
    # Temperatures are fitted to combined probabilities, so they are applied after the windows are combined.
    temper = calibration.temper_labels if is_multi else calibration.temper
    temperature, thresholds = _option(context.recipe, "temperature"), _thresholds(context) if is_multi else None
    probabilities = temper(probabilities, temperature)
    selected = choose_labels(probabilities, thresholds)
    if strategy == "windows_vote":
        selected = np.stack([vote(temper(row_scores, temperature), thresholds) for row_scores in by_window])
    names_by_row = [[context.labels[index] for index in np.flatnonzero(is_selected)] for is_selected in selected]
    decoded = []
    for names, row_scores in zip(names_by_row, probabilities, strict=True):
        record = {"probabilities": dict(zip(context.labels, map(float, row_scores), strict=True))}
        decision = (
            {} if is_multi else calibration.apply_options(row_scores, context.labels, partial(_option, context.recipe))
        )
        decoded.append({"prediction": names if is_multi else names[0], **record, **decision})
    return decoded


def targets(
    prediction: Prediction, outputs: Outputs, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Return the explainable outputs: the log-odds of each label; with windows, of their combined probabilities."""
    strategy = truncation.long_text(context.recipe)
    windows = strategy if strategy in truncation.WINDOWS else ""
    labels = prediction["prediction"] if isinstance(prediction["prediction"], list) else [prediction["prediction"]]
    return build_label_targets(
        context.labels, labels, partial(compute_class_score, several=_is_multi_label(context.recipe), windows=windows)
    )


def gold_probabilities(predictions: Predictions, rows: Rows, context: TaskContext) -> calibration.Decisions:
    """Return the probabilities and the gold labels of the rows.

    If a row may have several labels, each label is a separate decision between no and yes.
    """
    row_probabilities = (list(record["probabilities"].values()) for record in predictions)
    probabilities = np.fromiter(row_probabilities, dtype=np.dtype((float, len(predictions[0]["probabilities"]))))
    # Rows of two labels become pairs of no and yes, (rows * labels, 2), with the gold indicator as the label id.
    if _is_multi_label(context.recipe):
        pairs = calibration.as_pairs(probabilities).reshape(-1, 2)
        gold = _indicators([row["label"] for row in rows], context.labels).ravel()
        return calibration.Decisions(pairs, gold, np.repeat(np.arange(len(rows)), len(context.labels)), unit="label")
    gold = np.fromiter((context.labels.index(row["label"]) for row in rows), dtype=int)
    return calibration.Decisions(probabilities, gold, np.arange(len(rows)))


def combine(outputs: Outputs, feature: Feature, context: TaskContext) -> dict[str, Any]:
    """Combine the outputs of several models for a text to those with the mean of their probabilities."""
    combine_labels = mean_label_probabilities if _is_multi_label(context.recipe) else mean_probabilities
    return combine_each(combine_labels, outputs)


def combine_each(combine_labels: Combine, outputs: Outputs) -> dict[str, Any]:
    """Combine the outputs of several models, per window if texts are read in windows."""
    if "windows" not in outputs[0]:
        return combine_labels(outputs)
    count = outputs[0]["windows"]
    return {**combine_labels([{"logits": output["logits"][: int(count)]} for output in outputs]), "windows": count}


def compare(predictions: Predictions, rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Return ``gold`` and ``predicted`` as label ids, or as 0/1 indicators if a row may have several labels.

    Ids follow the recipe's order, not the checkpoint's, so F1 of two labels is the F1 of the second.
    """
    names = context.recipe.labels or list(context.labels)
    columns = {"gold": [row["label"] for row in rows], "predicted": [record["prediction"] for record in predictions]}
    if _is_multi_label(context.recipe):
        return {column: _indicators(column_labels, names) for column, column_labels in columns.items()}
    ids = {name: label_id for label_id, name in enumerate(names)}
    return {column: np.array([ids[name] for name in column_labels]) for column, column_labels in columns.items()}


def fit_baselines(training: Rows, context: TaskContext) -> dict[str, Any]:
    """Learn the most frequent label (or each label of more than half of the rows), and a model of the words.

    For pairs, also learn from a part of them.
    """
    ids = context.label_ids
    is_multi = _is_multi_label(context.recipe)
    counts = Counter(ids[name] for row in training for name in (row["label"] if is_multi else [row["label"]]))
    frequent = [label_id for label_id, count in counts.items() if count * 2 > len(training)]
    learned: dict[str, Any] = {_FREQUENT: sorted(frequent) if is_multi else counts.most_common(1)[0][0]}
    # Use enough rows for a good model of the words; the time grows with rows times labels.
    rows = sample_rows(training, get_max_rows(len(context.labels)))
    gold_labels = [row["label"] if is_multi else [row["label"]] for row in rows]
    learned[TFIDF] = fit_tfidf(rows, _indicators(gold_labels, context.labels))
    if len(context.labels) <= _MAX_LABELS and not is_multi:
        rows = sample_rows(training)
        gold = [ids[row["label"]] for row in rows]
        learned |= {name: fit_linear(features, gold) for name, features in find_pair_features(rows).items()}
    return learned


def baselines(learned: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, list[Prediction]]:
    """Predict the most frequent label, and by words; for pairs also from either text only, and from common words."""
    frequent = learned[_FREQUENT]
    is_multi = isinstance(frequent, list)
    label: list[str] | str = [context.labels[n] for n in frequent] if is_multi else context.labels[frequent]
    predicted = {_FREQUENT: [{"prediction": label}] * len(rows)}
    if words := learned.get(TFIDF):
        scores = score_tfidf(words, rows)
        if is_multi:
            selected = map(np.flatnonzero, scores > 0)
            predicted[TFIDF] = [{"prediction": [context.labels[index] for index in indices]} for indices in selected]
        else:
            # A million rows would need as many records. Rows with the same label share one record, which saves memory.
            records = [{"prediction": name} for name in context.labels]
            predicted[TFIDF] = [records[label_id] for label_id in scores.argmax(axis=1)]
    for name, features in find_pair_features(rows).items():
        if model := learned.get(name):
            best = score_linear(model, features).argmax(axis=1)
            predicted[name] = [{"prediction": context.labels[model["classes"][index]]} for index in best]
    return predicted


def _thresholds(context: TaskContext) -> np.ndarray:
    """Return the minimum probability that selects each label, (labels,), by default 0.5."""
    thresholds = _option(context.recipe, "thresholds") or {}
    if unknown := next((name for name in thresholds if name not in context.labels), None):
        raise RecipeError(f"options.thresholds names no label {unknown!r}", did_you_mean(unknown, context.labels))
    return np.array([thresholds.get(name, 0.5) for name in context.labels])


def _is_multi_label(recipe: Recipe) -> bool:
    return bool(_option(recipe, "multi_label"))


def _indicators(labels: Sequence[Sequence[str]], names: Sequence[str]) -> np.ndarray:
    """Return 0/1 indicators of shape (rows, labels)."""
    return np.array([[int(name in row) for name in names] for row in labels])
