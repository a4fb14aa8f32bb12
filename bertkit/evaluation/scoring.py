"""The path from a model to its scores, which training, `eval` and `predict` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.data.labels import labels_to_strs
from bertkit.data.output import write_records
from bertkit.data.rows import Split
from bertkit.evaluation.calibration import find_calibration_rows, warn_of_calibration_rows
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.metrics import intervals
from bertkit.metrics.baselines import strongest, strongest_scores
from bertkit.metrics.intervals import Interval, Intervals, why_undefined
from bertkit.metrics.registry import CLASSIFICATION
from bertkit.progress import stage
from bertkit.recipe.records import Recipe
from bertkit.storage.disk import IN_MEMORY, offload_to_disk
from bertkit.storage.files import write_json
from bertkit.tasks import (
    Output,
    Outputs,
    Prediction,
    Predictions,
    RowScores,
    Task,
    TaskReport,
    drop_private_keys,
    with_options,
)
from bertkit.tokens.features import Features, Rows, TaskContext

if TYPE_CHECKING:
    from torch import nn

    from bertkit.reports.cases import Case

# Logit whose probability is 0 next to any other logit, and whose exponential is still a normal number.
_NEVER = -500.0


@dataclass(frozen=True)
class EvalResult:
    """Result of a checkpoint on one split: its scores, with None for undefined scores, and their intervals."""

    recipe: str
    model: str
    split: str
    scores: dict[str, float | None]
    rows: int
    seconds: float
    intervals: dict[str, Interval] = field(default_factory=dict)
    interval_methods: dict[str, str] = field(default_factory=dict)
    """Metric -> ``Wilson`` or ``bootstrap``."""
    positive_label: str | None = None
    """Label that f1, precision and recall are computed for; None if the family has no such scores."""
    lower_is_better: list[str] = field(default_factory=list)
    """Metrics whose lower scores are better, for readers who cannot load the recipe's own metrics."""
    baselines: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """Name of a baseline -> its scores."""
    lead: dict[str, Any] | None = None
    """How far the model is ahead of the strongest baseline, as `bertkit.evaluation.baselines.BaselineComparison`."""
    undefined: dict[str, dict[str, str]] = field(default_factory=dict)
    """``scores``, ``intervals`` or ``baselines`` -> metric -> reason why it is undefined, in all baselines."""
    folder: str | None = None
    training_rows: int = 0
    """How many of the rows are known to be training rows of the model."""
    source: str = ""
    warnings: list[str] = field(default_factory=list)
    data_warnings: list[str] = field(default_factory=list)
    """Warnings about the rows, which were logged before training."""
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    ece: dict[str, Any] | None = None
    """Expected calibration error, ``value`` and ``interval``, if a gate requires it."""
    gates: list[Case] = field(default_factory=list)
    """Outcomes of the recipe's gates."""

    @property
    def baseline(self) -> dict[str, float | None]:
        """The score of the strongest baseline for each metric."""
        return strongest_scores(self.baselines)


@dataclass(frozen=True)
class EvalOutput:
    """The predictions of a split, with its features and scores; `context` has the options that were tuned on it."""

    predictions: Predictions
    features: Features
    row_scores: RowScores
    scores: dict[str, float]
    loss: float | None
    context: TaskContext
    warnings: list[str] = field(default_factory=list)
    """Warnings for readers of the scores, such as about the calibration in force."""


def score_split(
    checkpoint: Checkpoint,
    split: Split,
    *,
    features: Features | None = None,
    tune: bool = False,
    alone: bool = False,
) -> EvalOutput:
    """Encode the rows of a split, run the model, decode its outputs and score them.

    With `tune`, the task's options are first tuned on the split. With `alone`, each batch holds one row.
    """
    # Training passes features that it has encoded before, whose labels the model knows.
    if features is None:
        checkpoint = _add_unknown_labels(split, checkpoint)
        features = _encode_split(split, checkpoint)
    outputs, loss = run_model(checkpoint, features, f"scoring {split.name}", alone=alone)
    scored = _score_outputs(checkpoint, split, features, outputs, loss)
    # Tuned options change how outputs are decoded and not the outputs, so the model runs once.
    tuned = checkpoint.task.tune(scored.predictions, split.rows, checkpoint.context) if tune else {}
    if not tuned:
        return scored
    checkpoint = replace(checkpoint, context=with_options(checkpoint.context, tuned))
    return _score_outputs(checkpoint, split, features, outputs, loss)


def score_ensemble(checkpoint: Checkpoint, split: Split) -> tuple[EvalOutput, list[EvalOutput]]:
    """Score an ensemble as `score_split` does, and each member separately."""
    checkpoint = _add_unknown_labels(split, checkpoint)
    features = _encode_split(split, checkpoint)
    by_member = run_members(checkpoint, features, f"scoring {split.name}")
    outputs = _combine_outputs(checkpoint, by_member, features)
    # The outputs of each member are known, so scoring a member runs no model again.
    members = [
        _score_outputs(member, split, features, member_outputs, None)
        for member, member_outputs in zip(checkpoint.members, by_member, strict=True)
    ]
    return _score_outputs(checkpoint, split, features, outputs, None), members


def _add_unknown_labels(split: Split, checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint that knows all labels of a split; those that its model lacks, it never predicts."""
    model_labels, gold = checkpoint.context.labels, checkpoint.task.COLUMNS.gold
    names = (
        {name for value in split.column(gold) for name in labels_to_strs(value)}
        if checkpoint.task.HAS_LABEL_NAMES
        else set()
    )
    unknown_labels = sorted(names.difference(model_labels))
    if not unknown_labels:
        return checkpoint
    # An unknown label is not an error: a row with such a label counts as wrong.
    members = tuple(_add_unknown_labels(split, member) for member in checkpoint.members)
    context = replace(checkpoint.context, labels=(*model_labels, *unknown_labels))
    return replace(checkpoint, context=context, members=members, unknown_label_count=len(unknown_labels))


def _encode_split(split: Split, checkpoint: Checkpoint) -> Features:
    """Encode the rows of a split; without gold labels if the model lacks some, because it could not compute a loss."""
    from bertkit.tokens.feature_cache import encode_split
    from bertkit.tokens.truncation import Truncation

    context, gold = checkpoint.context, checkpoint.task.COLUMNS.gold
    if checkpoint.unknown_label_count:
        context = replace(context, labels=context.labels[: -checkpoint.unknown_label_count])
        split = split.drop_column(gold)
    features = encode_split(split, context, checkpoint.task.encode)
    truncation = Truncation(context, checkpoint.task.encode)
    truncation.add(features, split.rows)
    truncation.log()
    return features


def _score_outputs(
    checkpoint: Checkpoint, split: Split, features: Features, outputs: Sequence[Any], loss: float | None
) -> EvalOutput:
    task, context = checkpoint.task, checkpoint.context
    predictions, warnings = _decode_outputs(checkpoint, split, features, outputs)
    row_scores = task.compare(predictions, split.rows, context)
    from bertkit.tokens.truncation import describe_lost_gold

    if task.find_truncated_answers and (lost_rows := task.find_truncated_answers(features, split.rows, context)):
        warnings = [*warnings, f"{describe_lost_gold(len(lost_rows), len(split.rows), task.OPTIONS)}."]
    return EvalOutput(predictions, features, row_scores, task.score(row_scores, context), loss, context, warnings)


def _decode_outputs(
    checkpoint: Checkpoint, split: Split, features: Features, outputs: Sequence[Any]
) -> tuple[Predictions, list[str]]:
    """Decode outputs, and return warnings about the calibration, which may have been fitted to these rows."""
    task, context, calibration = checkpoint.task, checkpoint.context, checkpoint.calibration
    predictions = decode_rows(task, outputs, features, split.rows, context)
    if calibration is None:
        return predictions, []

    sources, prediction_source = [predictions], np.zeros(len(predictions), dtype=np.int8)
    for indices, options in find_calibration_rows(calibration, split.rows, task.COLUMNS.gold, context.recipe.options):
        # A temperature looks better on the rows it was fitted to, so these rows use a fold that left them out.
        prediction_source[indices] = len(sources)
        sources.append(decode_rows(task, outputs, features, split.rows, with_options(context, options)))
    replaced = offload_to_disk(sources[source][index] for index, source in enumerate(prediction_source))
    return replaced, warn_of_calibration_rows(calibration, int(np.count_nonzero(prediction_source)), len(split.rows))


def decode_rows(
    task: Task, outputs: Sequence[Any], features: Features, rows: Rows, context: TaskContext
) -> Predictions:
    """Decode outputs with the task family, in chunks of rows, so that memory stays bounded."""
    if len(rows) <= IN_MEMORY:
        return task.decode(outputs, features, rows, context)

    from bertkit.tokens.feature_cache import get_row_indices

    def decode(start: int) -> list[Prediction]:
        # Row indices of features rise, so the features of a chunk are a slice. Rows of a chunk count from 0 again.
        feature_slice = slice(*np.searchsorted(feature_rows, (start, start + IN_MEMORY)).tolist())
        chunk = [{**feature, "row": feature["row"] - start} for feature in features[feature_slice]]
        return task.decode(outputs[feature_slice], chunk, rows[start : start + IN_MEMORY], context)

    feature_rows = get_row_indices(features)
    return offload_to_disk(chain.from_iterable(map(decode, range(0, len(rows), IN_MEMORY))))


def run_model(
    checkpoint: Checkpoint, features: Features, title: str, *, alone: bool = False
) -> tuple[Sequence[Any], float | None]:
    """Run the model over features with a progress line, `alone` one by one; see `bertkit.evaluation.forward.forward`.

    An ensemble combines the outputs of its members and has no loss.
    """
    from bertkit.evaluation.forward import forward

    # Outputs are combined before they are decoded, so an ensemble is one model to all that follows.
    if checkpoint.members:
        return _combine_outputs(checkpoint, run_members(checkpoint, features, title), features), None
    collate = checkpoint.task.collator(checkpoint.context)
    with stage(title, len(features)) as step:
        run = partial(forward, checkpoint.model, collate=collate, precision=checkpoint.machine.precision, advance=step)
        outputs, loss = ([run([feature])[0][0] for feature in features], None) if alone else run(features)
    if checkpoint.unknown_label_count:
        outputs = offload_to_disk(_with_logits(output, checkpoint.unknown_label_count) for output in outputs)
    return outputs, loss


def answer_rows(checkpoint: Checkpoint, features: Features, rows: Rows, title: str) -> list[Prediction]:
    """Run the model over the features of rows, and return what it predicts for each, as it is written to disk."""
    outputs, _ = run_model(checkpoint, features, title)
    return list(map(drop_private_keys, checkpoint.task.decode(outputs, features, rows, checkpoint.context)))


def _with_logits(output: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return an output with `count` more labels, whose logits are `_NEVER`."""
    logits = output["logits"]
    return {**output, "logits": np.pad(logits, [(0, 0)] * (logits.ndim - 1) + [(0, count)], constant_values=_NEVER)}


def _combine_outputs(checkpoint: Checkpoint, by_member: Sequence[Outputs], features: Features) -> Sequence[Output]:
    """Combine the outputs of an ensemble's members, one list per member, into the outputs of one model."""
    combine = checkpoint.task.combine
    assert combine is not None  # `find_members` has looked
    return offload_to_disk(
        combine([outputs[index] for outputs in by_member], feature, checkpoint.context)
        for index, feature in enumerate(features)
    )


def run_members(checkpoint: Checkpoint, features: Features, title: str) -> list[Sequence[Any]]:
    """Return the outputs of each member of an ensemble."""
    count = len(checkpoint.members)
    return [
        run_model(member, features, f"{title} ({rank} of {count})")[0]
        for rank, member in enumerate(checkpoint.members, start=1)
    ]


def run_part(checkpoint: Checkpoint, module: nn.Module, features: Features) -> Sequence[Any]:
    """Return the outputs of a module, such as a part of the model, for features that are prepared for training."""
    return run_model(replace(checkpoint, model=module), features, "preparing")[0]


def explain_undefined(
    task: Task,
    scored: EvalOutput,
    intervals: Intervals,
    compared_baselines: Mapping[str, RowScores],
    baselines: Mapping[str, Mapping[str, float]],
) -> dict[str, dict[str, str]]:
    """Return why scores, intervals and baselines are undefined; see `EvalResult.undefined`."""
    reasons = {
        "scores": why_undefined(task.METRICS, scored.scores, scored.row_scores),
        "intervals": intervals.reasons,
        "baselines": {
            name: reason
            for baseline, row_scores in compared_baselines.items()
            for name, reason in why_undefined(task.METRICS, baselines[baseline], row_scores).items()
            if strongest(baselines, name)[1] is None
        },
    }
    return {part: by_name for part, by_name in reasons.items() if by_name}


def find_positive_label(task: Task, recipe: Recipe, labels: Sequence[str]) -> str | None:
    """Return the second of two labels, for which classification scores f1, precision and recall; None otherwise."""
    names = recipe.labels or list(labels)
    return names[1] if set(CLASSIFICATION) <= set(task.METRICS) and len(names) == 2 else None


def measure_ece(task: Task, scored: EvalOutput, rows: Rows) -> dict[str, Any] | None:
    """Compute the expected calibration error with its interval, or None without a gate on it or gold probabilities."""
    if "ece" not in scored.context.recipe.gates.limits or task.gold_probabilities is None:
        return None
    from bertkit.metrics.reliability import describe_calibration

    decisions = task.gold_probabilities(scored.predictions, rows, scored.context)
    return describe_calibration(decisions.probabilities, decisions.gold, decisions.rows)["ece"]


def find_intervals(task: Task, scored: EvalOutput) -> Intervals:
    """Compute the 95% interval of each score over rows (of rankings, over queries).

    See `bertkit.metrics.intervals.find_intervals`.
    """
    # `compare` has judged every row once, in arrays whose first axis is rows. A resample only indexes these, and no
    # text is compared again.
    return intervals.find_intervals(
        task.METRICS, scored.scores, scored.row_scores, lambda row_scores: task.score(dict(row_scores), scored.context)
    )


def read_results(results: Sequence[Mapping[str, Any]], folder: Path) -> list[EvalResult]:
    """Return the results that a record holds, of a run that is in this folder now: it may have been moved."""
    return [EvalResult(**{**result, "folder": str(folder)}) for result in results]


def get_split_suffix(split: str) -> str:
    """Return the suffix of a split's files and scores, which is empty for ``validation``.

    >>> get_split_suffix("validation"), get_split_suffix("validation_mismatched"), get_split_suffix("test")
    ('', '_mismatched', '_test')
    """
    rest = split.removeprefix("validation")
    return rest if rest.startswith("_") or not rest else f"_{rest}"


def predictions_file(split: str) -> str:
    """Return the name of the file with the predictions of a split."""
    return f"predictions{get_split_suffix(split)}.jsonl"


def write_predictions(folder: Path, split: Split, predictions: Predictions, details: TaskReport) -> list[str]:
    """Write predictions.jsonl and the other files that the task family adds for a split; return their names."""
    suffix = get_split_suffix(split.name)
    training_rows = split.training_rows

    def mark(index: int) -> dict[str, bool]:
        return {"is_training_row": index in training_rows} if training_rows else {}

    # Records include their rows, so that `compare` and `errors` do not need the dataset.
    records = (
        {"id": row.get("id", index), **row, **drop_private_keys(prediction), **mark(index)}
        for index, (row, prediction) in enumerate(zip(split.rows, predictions, strict=True))
    )
    files = [folder / predictions_file(split.name)]
    write_records(records, files[0])
    for name, content in details.files.items():
        file = folder / name
        files.append(file.with_stem(f"{file.stem}{suffix}"))
        write_json(files[-1], content)
    return [file.name for file in files]
