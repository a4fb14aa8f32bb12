"""Classify a text or a pair of texts, with one or several labels per row.

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
from bertkit.metrics.registry import CLASSIFICATION_METRICS, EVALUATE_PREFIX
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
METRICS: Mapping[str, Metric] = {**CLASSIFICATION_METRICS, EVALUATE_PREFIX: UNDECLARED_METRIC}
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
# End of the names of classes with `WindowPooling`.
_WINDOW_SUFFIX = "ForWindowClassification"
# Lists and numpy arrays that were written as text, and are not JSON.
_UNREAD_LIST = re.compile(r"""(\[|array\().*[,'"\s].*[\])]|[({]\s*['"].*[)}]""", re.DOTALL)
_MAJORITY = "most frequent label"
# Maximum for logistic regression, whose time grows with the number of labels.
_MAX_LABELS = 20

score = score_values


def read(row: Row, recipe: Recipe) -> Row:
    """Check the texts, the soft labels and the label; if a row can have several labels, return a list of names.

    Several labels can be a list, JSON, text with separators, or one column of 0 and 1 per label.

    Raises:
        DataError: If a text is not text, a label is missing, not a name or repeated, there are several labels for one,
            or probabilities are wrong.
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
    """Return the list of label names if a row can have several labels, otherwise its label."""
    is_multi, value = _is_multi_label(recipe), parse_json(raw_label)
    columns = recipe.data.columns.get("label")
    # 1. Convert each form to a list of names: a column of 0 and 1 per label, JSON, or text with separators.
    if are_columns := isinstance(columns, list) and len(columns) > 1:
        flags = [normalize_label(label_to_str(flag) or "") for flag in value]
        if not {*flags} <= {"0", "1", "false", "true"}:
            raise DataError(f"the label columns contain {raw_label}", "write 0 or 1 in each column")
        value = [name for name, flag in zip(columns, flags, strict=True) if flag in ("1", "true")]
    elif isinstance(value, str) and _UNREAD_LIST.fullmatch(value.strip()):
        raise DataError(f"label {value[:60]!r} is a list that is not JSON", 'write ["fear", "joy"]')
    elif isinstance(value, str) and is_multi:
        value = value.split(read_option(OPTIONS, recipe, "separator"))
    # 2. Check the names. [0, 1, 1] is most likely one flag per label, although the recipe names no label columns.
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
    # Abstaining and prediction sets require one label per row (softmax); thresholds require independent labels.
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
    """Return the head for a text or, if ``long_text`` is ``hierarchical``, for the vectors of its windows.

    Raises:
        ModelError: If the checkpoint has a trained head for windows, and the recipe does not read windows.
    """
    if truncation.long_text(context.recipe) == truncation.HIERARCHICAL:
        from bertkit.modeling.heads.base import build_head_class
        from bertkit.modeling.heads.text import WindowPooling

        return partial(build_head_class, WindowPooling, ending=_WINDOW_SUFFIX)
    # Loaded as a head for single texts, a head for windows would lose its attention.
    if not new_head and (read_config(folder).get("architectures") or [""])[0].endswith(_WINDOW_SUFFIX):
        raise ModelError("its head reads windows of a text", "add --set options.long_text=hierarchical", file=folder)
    return AUTO_CLASS


def read_windows(model: Model, context: TaskContext) -> None:
    """Extend a model to run on each window of a text, if ``long_text`` combines the predictions of windows."""
    if truncation.long_text(context.recipe) in truncation.WINDOWS:
        from bertkit.modeling.heads.mixins import Windows, extend_model

        extend_model(model, Windows)


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode the texts; ``labels`` is the label id, or a 0/1 vector if a row can have several labels."""
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
    """Choose each row's most probable label, or all labels that reach their thresholds, and return all probabilities.

    If a text is read in windows, their probabilities are combined. With ``windows_vote``, most windows choose a label.
    """
    is_multi, strategy = _is_multi_label(context.recipe), truncation.long_text(context.recipe)
    to_probabilities = sigmoid if is_multi else softmax
    if strategy in truncation.WINDOWS:
        by_window = [to_probabilities(output["logits"][: int(output["windows"])]) for output in outputs]
        probabilities = np.stack([truncation.combine_windows(windows, strategy) for windows in by_window])
        # The maxima over windows can add up to more than 1.
        probabilities /= 1 if is_multi else probabilities.sum(axis=1, keepdims=True)
    else:
        probabilities = to_probabilities(np.array([output["logits"] for output in outputs]))
    # Temperatures are fitted to combined probabilities, so they are applied after the windows are combined.
    temper = calibration.temper_labels if is_multi else calibration.temper
    temperature, thresholds = _option(context.recipe, "temperature"), _read_thresholds(context) if is_multi else None
    probabilities = temper(probabilities, temperature)
    masks = choose_labels(probabilities, thresholds)
    if strategy == "windows_vote":
        masks = np.stack([vote(temper(windows, temperature), thresholds) for windows in by_window])
    names_by_row = [[context.labels[index] for index in np.flatnonzero(mask)] for mask in masks]
    option, decoded = partial(_option, context.recipe), []
    for names, values in zip(names_by_row, probabilities, strict=True):
        by_label = dict(zip(context.labels, map(float, values), strict=True))
        fields = {} if is_multi else calibration.apply_options(values, context.labels, option)
        decoded.append({"prediction": names if is_multi else names[0], "probabilities": by_label, **fields})
    return decoded


def targets(
    prediction: Prediction, outputs: Outputs, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Return the explainable outputs: the log-odds of each label, from the combined probabilities of all windows."""
    strategy = truncation.long_text(context.recipe)
    windows = strategy if strategy in truncation.WINDOWS else ""
    labels = prediction["prediction"] if isinstance(prediction["prediction"], list) else [prediction["prediction"]]
    return build_label_targets(
        context.labels, labels, partial(compute_class_score, several=_is_multi_label(context.recipe), windows=windows)
    )


def gold_probabilities(predictions: Predictions, rows: Rows, context: TaskContext) -> calibration.Decisions:
    """Return the probabilities and the gold labels of the rows.

    If a row can have several labels, each label is a separate decision between no and yes.
    """
    row_probabilities = (list(record["probabilities"].values()) for record in predictions)
    probabilities = np.fromiter(row_probabilities, dtype=np.dtype((float, len(predictions[0]["probabilities"]))))
    if _is_multi_label(context.recipe):
        # Probabilities of no and yes; the gold label id is 0 or 1. Shape: (rows * labels, 2).
        pairs = calibration.as_pairs(probabilities).reshape(-1, 2)
        gold = _indicators([row["label"] for row in rows], context.labels).ravel()
        return calibration.Decisions(pairs, gold, np.repeat(np.arange(len(rows)), len(context.labels)), unit="label")
    gold = np.fromiter((context.labels.index(row["label"]) for row in rows), dtype=int)
    return calibration.Decisions(probabilities, gold, np.arange(len(rows)))


def combine(outputs: Outputs, feature: Feature, context: TaskContext) -> dict[str, Any]:
    """Return logits whose probabilities are the mean over several models."""
    return combine_models(mean_label_probabilities if _is_multi_label(context.recipe) else mean_probabilities, outputs)


def combine_models(combine_logits: Combine, outputs: Outputs) -> dict[str, Any]:
    """Combine the outputs of several models for a text; if it is read in windows, combine each window separately."""
    if "windows" not in outputs[0]:
        return combine_logits(outputs)
    count = outputs[0]["windows"]
    return {**combine_logits([{"logits": output["logits"][: int(count)]} for output in outputs]), "windows": count}


def compare(predictions: Predictions, rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Return ``gold`` and ``predicted`` as label ids, or as 0/1 indicators if a row can have several labels.

    Ids follow the order of the recipe's labels, not the checkpoint's, so ``f1`` scores the second label of the recipe.
    """
    names = context.recipe.labels or list(context.labels)
    columns = {"gold": [row["label"] for row in rows], "predicted": [record["prediction"] for record in predictions]}
    if _is_multi_label(context.recipe):
        return {column: _indicators(column_labels, names) for column, column_labels in columns.items()}
    ids = {name: label_id for label_id, name in enumerate(names)}
    return {column: np.array([ids[name] for name in column_labels]) for column, column_labels in columns.items()}


def fit_baselines(training_rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Find the most frequent label (or all labels of more than half of the rows), and fit a model of the words.

    For pairs, also fit models that read only a part of the input.
    """
    ids = context.label_ids
    is_multi = _is_multi_label(context.recipe)
    counts = Counter(ids[name] for row in training_rows for name in (row["label"] if is_multi else [row["label"]]))
    majority = [label_id for label_id, count in counts.items() if count * 2 > len(training_rows)]
    state: dict[str, Any] = {_MAJORITY: sorted(majority) if is_multi else counts.most_common(1)[0][0]}
    rows = sample_rows(training_rows, get_max_rows(len(context.labels)))
    gold_labels = [row["label"] if is_multi else [row["label"]] for row in rows]
    state[TFIDF] = fit_tfidf(rows, _indicators(gold_labels, context.labels))
    if len(context.labels) <= _MAX_LABELS and not is_multi:
        rows = sample_rows(training_rows)
        gold = [ids[row["label"]] for row in rows]
        state |= {name: fit_linear(features, gold) for name, features in find_pair_features(rows).items()}
    return state


def baselines(state: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, list[Prediction]]:
    """Predict the most frequent label, and by words; for pairs, also by one text only, and by shared words."""
    majority = state[_MAJORITY]
    is_multi = isinstance(majority, list)
    label: list[str] | str = [context.labels[n] for n in majority] if is_multi else context.labels[majority]
    predicted = {_MAJORITY: [{"prediction": label}] * len(rows)}
    if words := state.get(TFIDF):
        scores = score_tfidf(words, rows)
        if is_multi:
            indices_by_row = map(np.flatnonzero, scores > 0)
            predicted[TFIDF] = [{"prediction": [context.labels[n] for n in indices]} for indices in indices_by_row]
        else:
            # Rows with the same label share one record, which saves the memory of a million records.
            records = [{"prediction": name} for name in context.labels]
            predicted[TFIDF] = [records[label_id] for label_id in scores.argmax(axis=1)]
    for name, features in find_pair_features(rows).items():
        if model := state.get(name):
            class_indices = score_linear(model, features).argmax(axis=1)
            predicted[name] = [{"prediction": context.labels[model["classes"][index]]} for index in class_indices]
    return predicted


def _read_thresholds(context: TaskContext) -> np.ndarray:
    """Return the minimum probability of each label, by default 0.5. Shape: (labels,)."""
    thresholds = _option(context.recipe, "thresholds") or {}
    if unknown := next((name for name in thresholds if name not in context.labels), None):
        raise RecipeError(f"options.thresholds names no label {unknown!r}", did_you_mean(unknown, context.labels))
    return np.array([thresholds.get(name, 0.5) for name in context.labels])


def _is_multi_label(recipe: Recipe) -> bool:
    return bool(_option(recipe, "multi_label"))


def _indicators(labels: Sequence[Sequence[str]], names: Sequence[str]) -> np.ndarray:
    """Return 0/1 indicators of the labels of each row. Shape: (rows, labels)."""
    return np.array([[int(name in row) for name in names] for row in labels])
