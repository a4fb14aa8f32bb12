"""Comparison of two models on the same rows: differences of outputs and scores, and speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from bertkit.data.rows import Split
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.evaluation.forward import forward, sorted_batches
from bertkit.evaluation.scoring import EvalOutput, find_intervals, measure_ece, score_split
from bertkit.hardware.speed import InferenceSpeed, compute_speedup, measure_speed, time_interleaved
from bertkit.metrics.intervals import Interval, RowScores
from bertkit.metrics.paired import Difference, compare_paired
from bertkit.runtime.model import ExportedModel
from bertkit.storage.exports import VECTORS
from bertkit.tasks import Task
from bertkit.tokens.feature_cache import get_lengths
from bertkit.tokens.features import Collator, Features

TOLERANCE = 1e-4
"""Largest difference of outputs in float32, relative to the largest output; rounding in deep encoders is smaller."""

SHAPES = ((1, 2), (1, 11), (3, 32), (2, 128), (1, 512))
"""Shapes (texts, tokens) of the batches whose outputs are compared."""
_TIMED_SHAPES = ((1, 16), (1, 128), (8, 128), (32, 16))
_SINGLES = 32  # rows that are timed one at a time
_BATCHED = 512  # rows that are timed in batches

Arrays = Mapping[str, Any]
Compute = Callable[[Arrays], Arrays]
"""Function from input arrays to output arrays, by name."""


@dataclass(frozen=True)
class Parity:
    """Comparison of a graph with the model that it was exported from."""

    largest: float
    """Largest absolute difference of outputs, divided by the largest output if that is above 1."""
    least_cosine: float | None
    """Lowest cosine between the vectors of both models, or None if they return no vectors."""
    latency: list[dict[str, Any]] = field(default_factory=list)
    """``texts``, ``tokens``, milliseconds of ``torch`` and of the ``exported`` graph, and ``times_as_fast``.

    ``spread`` is the fraction by which the slowest round took longer. If rounds disagree, ``times_as_fast`` is empty.
    """
    split: str = ""
    rows: int = 0
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Metric -> ``before``, ``after``, ``difference`` and its 95% ``interval``, paired by rows."""
    flips: dict[str, int] = field(default_factory=dict)
    """Number of rows whose labels differ: ``model``, from the model's; ``alone``, from the graph's in batches."""
    notes: list[str] = field(default_factory=list)
    intervals: dict[str, Interval] = field(default_factory=dict)
    """Metric -> 95% interval of the graph's score, if the recipe has gates."""
    ece: dict[str, Any] | None = None


def random_texts(shape: tuple[int, ...], inputs: Sequence[str], vocab_size: int) -> dict[str, Any]:
    """Draw token ids, padded to random lengths; the shape is (texts, tokens) or (rows, texts, tokens)."""
    draw = np.random.default_rng(0)
    ids = draw.integers(vocab_size // 2, vocab_size, shape)
    lengths = draw.integers(2, shape[-1] + 1, shape[:-1])
    lengths.reshape(-1)[0] = shape[-1]
    mask = (np.arange(shape[-1]) < lengths[..., None]).astype(np.int64)
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return {name: arrays[name] for name in inputs}


def compare_outputs(model: Compute, graph: Compute, batches: Sequence[Arrays]) -> tuple[float, float | None]:
    """Return the largest relative difference over batches, and the lowest cosine of vectors or None without vectors.

    Outputs at padding are not compared, because nothing reads them.
    """
    largest, cosines = 0.0, []
    for batch in batches:
        model_outputs, graph_outputs = model(batch), graph(batch)
        for name in graph_outputs:
            outputs = (model_outputs[name], graph_outputs[name])
            expected, actual = (_drop_padding(np.asarray(values, dtype=np.float64), batch) for values in outputs)
            largest = max(largest, float(np.abs(expected - actual).max() / max(1.0, np.abs(expected).max())))
            if name in VECTORS:
                lengths = np.linalg.norm(expected, axis=-1) * np.linalg.norm(actual, axis=-1)
                cosines.append(float(((expected * actual).sum(axis=-1) / np.maximum(lengths, 1e-30)).min()))
    return largest, min(cosines, default=None)


def _drop_padding(values: np.ndarray, batch: Arrays) -> np.ndarray:
    """Return the values without those at padding, if there is a value per token."""
    mask = batch["attention_mask"] > 0
    return values[mask] if values.shape[: mask.ndim] == mask.shape else values


def tabulate_latency(
    model: Compute, graph: Compute, inputs: Sequence[str], vocab_size: int, max_tokens: int
) -> list[dict[str, Any]]:
    """Return the times of both for batches of texts of one length; see `Parity.latency`."""
    shapes = [(texts, tokens) for texts, tokens in _TIMED_SHAPES if tokens <= max_tokens]
    batches = [random_texts(shape, inputs, vocab_size) for shape in shapes]
    # Without padding, both compute the same number of tokens.
    for batch in batches:
        batch["attention_mask"] = np.ones_like(batch["attention_mask"])
    model_time, graph_time = time_interleaved([model, graph], batches)
    return [
        {
            "texts": texts,
            "tokens": tokens,
            "torch": round(1000 * model_time.seconds[index], 2),
            "exported": round(1000 * graph_time.seconds[index], 2),
            "spread": round(max(model_time.spread(part), graph_time.spread(part)), 3),
            "times_as_fast": compute_speedup(model_time, graph_time, part),
        }
        for index, (texts, tokens) in enumerate(shapes)
        for part in (slice(index, index + 1),)
    ]


def compare_scores(before: Checkpoint, after: Checkpoint, split: Split) -> dict[str, Any]:
    """Score both checkpoints on a split, and return the fields of `Parity` for it.

    Flips are counted if answers are labels; an int8 graph is also compared with itself, row by row.
    """
    first, second = (score_split(checkpoint, split) for checkpoint in (before, after))
    task = before.task
    differences = compare_scored(task, first, second, samples=200)
    scores: dict[str, dict[str, Any]] = {}
    for name, result in differences.items():
        scores[name] = {"before": result.first, "after": result.second, "difference": result.difference}
        scores[name]["interval"] = result.interval and list(result.interval)
    # int8 scales activations by the largest value in a batch, so an answer can depend on the other rows in the batch.
    flips = {}
    if task.HAS_LABEL_NAMES:
        flips["model"] = _count_flips(first, second)
        if isinstance(after.model, ExportedModel) and after.model.export.precision == "int8":
            flips["alone"] = _count_flips(score_split(after, split, features=second.features, alone=True), second)
    intervals = find_intervals(task, second).bounds if after.context.recipe.gates.limits else {}
    return {"scores": scores, "flips": flips, "intervals": intervals, "ece": measure_ece(task, second, split.rows)}


def compare_scored(task: Task, first: EvalOutput, second: EvalOutput, *, samples: int = 2000) -> dict[str, Difference]:
    """Compare the scores of two models on the same rows: metric -> second score minus first score."""

    def score(row_scores: RowScores) -> dict[str, float]:
        return task.score(dict(row_scores), first.context)

    return compare_paired(score, first.row_scores, second.row_scores, task.METRICS, samples=samples)


def _count_flips(first: EvalOutput, second: EvalOutput) -> int:
    pairs = zip(first.predictions, second.predictions, strict=True)
    return sum(old["prediction"] != new["prediction"] for old, new in pairs)


def measure_latency(models: Sequence[tuple[Checkpoint, EvalOutput]]) -> list[InferenceSpeed]:
    """Measure the speed of each model on the same rows, one at a time and in batches; the models take turns.

    Args:
        models: Checkpoints with the features of the same rows.
    """
    features = models[-1][1].features
    count = len(features)
    rows = range(0, count, max(1, count // _BATCHED))
    lengths = get_lengths(features)[list(rows)].tolist()
    batches = [[rows[index] for index in batch] for batch in sorted_batches(lengths)]
    singles = [[index] for index in range(0, count, max(1, count // _SINGLES))]

    def read(checkpoint: Checkpoint, features: Features, collate: Collator, indices: Sequence[int]) -> None:
        checkpoint.use_machine()
        batch = [features[index] for index in indices]
        forward(checkpoint.model, batch, collate, precision=checkpoint.machine.precision)

    runs = [
        partial(read, checkpoint, evaluation.features, checkpoint.task.collator(checkpoint.context))
        for checkpoint, evaluation in models
    ]
    return measure_speed(runs, singles, batches, len(rows))
