"""Scoring of a model: encode rows, run the model, decode its outputs, compare them with gold values."""

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
from bertkit.metrics.baselines import find_best_baseline, find_best_baseline_scores
from bertkit.metrics.intervals import Interval, Intervals, find_undefined_reasons
from bertkit.metrics.registry import CLASSIFICATION_METRICS
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

# Logit of a label that a model lacks: its probability is 0, but its exponential is still a normal number.
_NO_LOGIT = -500.0


@dataclass(frozen=True)
class EvalResult:
    """Result of a checkpoint on one split: scores with their intervals, baselines and warnings."""

    recipe: str
    model: str
    split: str
    scores: dict[str, float | None]
    """Metric -> score, or None if the score is undefined."""
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
    """Fields of the `bertkit.evaluation.baselines.BaselineComparison` with the strongest baseline."""
    undefined: dict[str, dict[str, str]] = field(default_factory=dict)
    """``scores``, ``intervals`` or ``baselines`` -> metric -> reason why it is undefined (for all baselines)."""
    folder: str | None = None
    training_rows: int = 0
    """Number of rows that are known to be training rows of the model."""
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
        return find_best_baseline_scores(self.baselines)


@dataclass(frozen=True)
class EvalOutput:
    """Predictions and scores of a split; `context` includes the options that were tuned on the split."""

    predictions: Predictions
    features: Features
    row_scores: RowScores
    scores: dict[str, float]
    loss: float | None
    context: TaskContext
    warnings: list[str] = field(default_factory=list)
    """Warnings for readers of the scores, such as about the applied calibration."""


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
    # Training passes encoded features, whose labels the model always knows.
    if features is None:
        checkpoint = _add_unknown_labels(split, checkpoint)
        features = _encode_split(split, checkpoint)
    outputs, loss = run_model(checkpoint, features, f"scoring {split.name}", alone=alone)
    output = _score_outputs(checkpoint, split, features, outputs, loss)
    # Tuned options change only the decoding of outputs, so the model need not run again.
    options = checkpoint.task.tune(output.predictions, split.rows, checkpoint.context) if tune else {}
    if not options:
        return output
    checkpoint = replace(checkpoint, context=with_options(checkpoint.context, options))
    return _score_outputs(checkpoint, split, features, outputs, loss)


def score_ensemble(checkpoint: Checkpoint, split: Split) -> tuple[EvalOutput, list[EvalOutput]]:
    """Score an ensemble as `score_split` does, and each member separately."""
    checkpoint = _add_unknown_labels(split, checkpoint)
    features = _encode_split(split, checkpoint)
    outputs_by_member = run_members(checkpoint, features, f"scoring {split.name}")
    outputs = _combine_outputs(checkpoint, outputs_by_member, features)
    members = [
        _score_outputs(member, split, features, member_outputs, None)
        for member, member_outputs in zip(checkpoint.members, outputs_by_member, strict=True)
    ]
    return _score_outputs(checkpoint, split, features, outputs, None), members


def _add_unknown_labels(split: Split, checkpoint: Checkpoint) -> Checkpoint:
    """Add the labels of a split that the model lacks, so that their rows count as wrong and are not an error."""
    model_labels = checkpoint.context.labels
    gold_values = split.column(checkpoint.task.COLUMNS.gold) if checkpoint.task.HAS_LABEL_NAMES else ()
    unknown_labels = sorted({name for value in gold_values for name in labels_to_strs(value)}.difference(model_labels))
    if not unknown_labels:
        return checkpoint
    members = tuple(_add_unknown_labels(split, member) for member in checkpoint.members)
    context = replace(checkpoint.context, labels=(*model_labels, *unknown_labels))
    return replace(checkpoint, context=context, members=members, unknown_label_count=len(unknown_labels))


def _encode_split(split: Split, checkpoint: Checkpoint) -> Features:
    """Encode the rows of a split; if the model lacks labels, encode no gold labels, which would have no loss."""
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
    """Return the predictions of a split, and warnings if the calibration was fitted to its rows."""
    task, context, calibration = checkpoint.task, checkpoint.context, checkpoint.calibration
    predictions = decode_rows(task, outputs, features, split.rows, context)
    if calibration is None:
        return predictions, []

    sources, source_indices = [predictions], np.zeros(len(predictions), dtype=np.int8)
    for indices, options in find_calibration_rows(calibration, split.rows, task.COLUMNS.gold, context.recipe.options):
        # A temperature looks too good on the rows that it was fitted to, so decode them with the values of other folds.
        source_indices[indices] = len(sources)
        sources.append(decode_rows(task, outputs, features, split.rows, with_options(context, options)))
    predictions = offload_to_disk(sources[source][index] for index, source in enumerate(source_indices))
    return predictions, warn_of_calibration_rows(calibration, int(np.count_nonzero(source_indices)), len(split.rows))


def decode_rows(
    task: Task, outputs: Sequence[Any], features: Features, rows: Rows, context: TaskContext
) -> Predictions:
    """Decode outputs with the task family, in chunks of rows to limit memory."""
    if len(rows) <= IN_MEMORY:
        return task.decode(outputs, features, rows, context)

    from bertkit.tokens.feature_cache import get_row_indices

    def decode(start: int) -> list[Prediction]:
        # Row indices of features ascend, so the features of a chunk are a slice. `decode` needs row indices from 0.
        feature_slice = slice(*np.searchsorted(feature_rows, (start, start + IN_MEMORY)).tolist())
        chunk = [{**feature, "row": feature["row"] - start} for feature in features[feature_slice]]
        return task.decode(outputs[feature_slice], chunk, rows[start : start + IN_MEMORY], context)

    feature_rows = get_row_indices(features)
    return offload_to_disk(chain.from_iterable(map(decode, range(0, len(rows), IN_MEMORY))))


def run_model(
    checkpoint: Checkpoint, features: Features, title: str, *, alone: bool = False
) -> tuple[Sequence[Any], float | None]:
    """Run the model over features, and return their outputs and the loss; see `bertkit.evaluation.forward.forward`.

    With `alone`, each batch holds one feature. An ensemble combines the outputs of its members and has no loss.
    """
    from bertkit.evaluation.forward import forward

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
    """Run the model over the features of rows, and return a prediction per row, in the format that is stored."""
    outputs, _ = run_model(checkpoint, features, title)
    return list(map(drop_private_keys, checkpoint.task.decode(outputs, features, rows, checkpoint.context)))


def _with_logits(output: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return an output with `count` more labels, whose logits are `_NO_LOGIT`."""
    logits = output["logits"]
    widths = [(0, 0)] * (logits.ndim - 1) + [(0, count)]
    return {**output, "logits": np.pad(logits, widths, constant_values=_NO_LOGIT)}


def _combine_outputs(checkpoint: Checkpoint, member_outputs: Sequence[Outputs], features: Features) -> Sequence[Output]:
    """Combine the outputs of an ensemble's members, one list per member, into the outputs of one model."""
    combine = checkpoint.task.combine
    assert combine is not None  # checked by `find_members`
    return offload_to_disk(
        combine([outputs[index] for outputs in member_outputs], feature, checkpoint.context)
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
    """Return the outputs of a part of the model, for features that are prepared for training."""
    return run_model(replace(checkpoint, model=module), features, "preparing")[0]


def explain_undefined(
    task: Task,
    output: EvalOutput,
    intervals: Intervals,
    baselines: Mapping[str, RowScores],
    baseline_scores: Mapping[str, Mapping[str, float]],
) -> dict[str, dict[str, str]]:
    """Return the reasons why scores, intervals and baselines are undefined; see `EvalResult.undefined`."""
    reasons = {
        "scores": find_undefined_reasons(task.METRICS, output.scores, output.row_scores),
        "intervals": intervals.reasons,
        "baselines": {
            name: reason
            for baseline, row_scores in baselines.items()
            for name, reason in find_undefined_reasons(task.METRICS, baseline_scores[baseline], row_scores).items()
            if find_best_baseline(baseline_scores, name)[1] is None
        },
    }
    return {part: by_name for part, by_name in reasons.items() if by_name}


def find_positive_label(task: Task, recipe: Recipe, labels: Sequence[str]) -> str | None:
    """Return the second of two labels, for which f1, precision and recall are computed, or None for other tasks."""
    names = recipe.labels or list(labels)
    return names[1] if set(CLASSIFICATION_METRICS) <= set(task.METRICS) and len(names) == 2 else None


def measure_ece(task: Task, output: EvalOutput, rows: Rows) -> dict[str, Any] | None:
    """Return the expected calibration error with its interval, or None without a gate on it or gold probabilities."""
    if "ece" not in output.context.recipe.gates.limits or task.gold_probabilities is None:
        return None
    from bertkit.metrics.reliability import describe_calibration

    decisions = task.gold_probabilities(output.predictions, rows, output.context)
    return describe_calibration(decisions.probabilities, decisions.gold, decisions.rows)["ece"]


def find_intervals(task: Task, output: EvalOutput) -> Intervals:
    """Compute the 95% interval of each score over rows (of rankings, over queries).

    See `bertkit.metrics.intervals.find_intervals`.
    """
    # A resample only indexes the arrays in `row_scores`; no text is compared again.
    return intervals.find_intervals(
        task.METRICS, output.scores, output.row_scores, lambda row_scores: task.score(dict(row_scores), output.context)
    )


def read_results(results: Sequence[Mapping[str, Any]], folder: Path) -> list[EvalResult]:
    """Return the results in a record, with the current folder of the run, which can have been moved."""
    return [EvalResult(**{**result, "folder": str(folder)}) for result in results]


def get_split_suffix(split: str) -> str:
    """Return the suffix of a split's files and scores, which is empty for ``validation``.

    >>> get_split_suffix("validation"), get_split_suffix("validation_mismatched"), get_split_suffix("test")
    ('', '_mismatched', '_test')
    """
    suffix = split.removeprefix("validation")
    return suffix if suffix.startswith("_") or not suffix else f"_{suffix}"


def predictions_file(split: str) -> str:
    """Return the name of the file with the predictions of a split."""
    return f"predictions{get_split_suffix(split)}.jsonl"


def write_predictions(folder: Path, split: Split, predictions: Predictions, details: TaskReport) -> list[str]:
    """Write predictions.jsonl and the task family's extra files for a split, and return the file names."""
    suffix = get_split_suffix(split.name)
    training_rows = split.training_rows

    def describe_row(index: int) -> dict[str, bool]:
        return {"is_training_row": index in training_rows} if training_rows else {}

    # Records include their rows, so that `compare` and `errors` do not need the dataset.
    records = (
        {"id": row.get("id", index), **row, **drop_private_keys(prediction), **describe_row(index)}
        for index, (row, prediction) in enumerate(zip(split.rows, predictions, strict=True))
    )
    files = [folder / predictions_file(split.name)]
    write_records(records, files[0])
    for name, content in details.files.items():
        file = folder / name
        files.append(file.with_stem(f"{file.stem}{suffix}"))
        write_json(files[-1], content)
    return [file.name for file in files]
