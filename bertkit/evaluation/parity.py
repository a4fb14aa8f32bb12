"""Models side by side on the same rows: the difference of their outputs, of their scores, and their speed."""

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
from bertkit.tokens.features import Collator

TOLERANCE = 1e-4
"""How far outputs in float32 may differ, relative to the largest; rounding of a deep encoder stays far below."""

SHAPES = ((1, 2), (1, 11), (3, 32), (2, 128), (1, 512))
"""Texts and tokens of the batches whose outputs are compared."""
_TIMED = ((1, 16), (1, 128), (8, 128), (32, 16))
_ALONE = 32  # rows that are timed one at a time
_TOGETHER = 512  # rows that are timed in batches

Arrays = Mapping[str, Any]
Compute = Callable[[Arrays], Arrays]
"""Arrays of texts -> arrays of outputs."""


@dataclass(frozen=True)
class Parity:
    """How a graph compares with the model that it was made from."""

    largest: float
    """The largest difference of any output, where the largest output is 1 or less; else relative to that."""
    least_cosine: float | None
    """Lowest cosine between the vectors of both models, or None if they return no vectors."""
    latency: list[dict[str, Any]] = field(default_factory=list)
    """``texts``, ``tokens``, milliseconds of ``torch`` and of the ``exported`` graph, and ``times_as_fast``.

    ``spread`` is the fraction by which the slowest round took longer. If rounds disagree, ``times_as_fast`` is left
    empty (None).
    """
    split: str = ""
    rows: int = 0
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Metric -> ``before``, ``after``, ``difference`` and its 95% ``interval``, paired by rows."""
    flips: dict[str, int] = field(default_factory=dict)
    """Rows whose predicted labels change: ``model``, from the model's; ``alone``, from those in batches."""
    notes: list[str] = field(default_factory=list)
    intervals: dict[str, Interval] = field(default_factory=dict)
    """Metric -> the 95% interval of the graph's score, where the recipe has gates."""
    ece: dict[str, Any] | None = None


def random_texts(shape: tuple[int, ...], inputs: Sequence[str], vocabulary: int) -> dict[str, Any]:
    """Draw texts (texts, tokens) of unlike lengths; with three axes, rows of texts."""
    draw = np.random.default_rng(0)
    ids = draw.integers(vocabulary // 2, vocabulary, shape)
    lengths = draw.integers(2, shape[-1] + 1, shape[:-1])
    lengths.reshape(-1)[0] = shape[-1]
    mask = (np.arange(shape[-1]) < lengths[..., None]).astype(np.int64)
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return {name: arrays[name] for name in inputs}


def compare_outputs(before: Compute, after: Compute, batches: Sequence[Arrays]) -> tuple[float, float | None]:
    """Return the largest relative difference over batches, and the lowest cosine of vectors or None without vectors.

    Outputs at padding are not compared, because nothing reads them.
    """
    largest, cosines = 0.0, []
    for batch in batches:
        first, second = before(batch), after(batch)
        for name, new_values in second.items():
            old, new = (_real(np.asarray(outputs, dtype=np.float64), batch) for outputs in (first[name], new_values))
            largest = max(largest, float(np.abs(old - new).max() / max(1.0, np.abs(old).max())))
            if name in VECTORS:
                lengths = np.linalg.norm(old, axis=-1) * np.linalg.norm(new, axis=-1)
                cosines.append(float(((old * new).sum(axis=-1) / np.maximum(lengths, 1e-30)).min()))
    return largest, min(cosines, default=None)


def _real(values: np.ndarray, batch: Arrays) -> np.ndarray:
    """Return the values at tokens other than padding, if values belong to tokens."""
    mask = batch["attention_mask"] > 0
    return values[mask] if values.shape[: mask.ndim] == mask.shape else values


def tabulate_latency(
    before: Compute, after: Compute, inputs: Sequence[str], vocabulary: int, limit: int
) -> list[dict[str, Any]]:
    """Return the milliseconds of both for batches of texts of one length, and how many times as fast the graph is."""
    shapes = [(texts, tokens) for texts, tokens in _TIMED if tokens <= limit]
    batches = [random_texts(shape, inputs, vocabulary) for shape in shapes]
    # Every token is real, so both models compute the same number of tokens.
    for batch in batches:
        batch["attention_mask"] = np.ones_like(batch["attention_mask"])
    first, second = time_interleaved([before, after], batches)
    return [
        {
            "texts": texts,
            "tokens": tokens,
            "torch": round(1000 * first.seconds[index], 2),
            "exported": round(1000 * second.seconds[index], 2),
            "spread": round(max(first.spread(only), second.spread(only)), 3),
            "times_as_fast": compute_speedup(first, second, only),
        }
        for index, (texts, tokens) in enumerate(shapes)
        for only in (slice(index, index + 1),)
    ]


def compare_scores(before: Checkpoint, after: Checkpoint, split: Split) -> dict[str, Any]:
    """Score both on a split; return the fields of `Parity` that follow.

    Flips are counted if answers are labels; for a graph in int8, also per row.
    """
    first, second = (score_split(checkpoint, split) for checkpoint in (before, after))
    task = before.task
    differences = compare_scored(task, first, second, samples=200)
    scores: dict[str, dict[str, Any]] = {}
    for name, result in differences.items():
        scores[name] = {"before": result.first, "after": result.second, "difference": result.difference}
        scores[name]["interval"] = result.interval and list(result.interval)
    # int8 scales activations by the largest value in a batch, so an answer can depend on the other rows of it.
    flips = {}
    if task.HAS_LABEL_NAMES:
        flips["model"] = _count_flips(first, second)
    if task.HAS_LABEL_NAMES and isinstance(after.model, ExportedModel) and after.model.export.precision == "int8":
        flips["alone"] = _count_flips(score_split(after, split, features=second.features, alone=True), second)
    has_gates = bool(after.context.recipe.gates.limits)
    intervals = find_intervals(task, second).ends if has_gates else {}
    return {"scores": scores, "flips": flips, "intervals": intervals, "ece": measure_ece(task, second, split.rows)}


def compare_scored(task: Task, first: EvalOutput, second: EvalOutput, *, samples: int = 2000) -> dict[str, Difference]:
    """Compare the scores of two models on the same rows: metric -> the second's, less the first's."""

    def score(row_scores: RowScores) -> dict[str, float]:
        return task.score(dict(row_scores), first.context)

    return compare_paired(score, first.row_scores, second.row_scores, task.METRICS, samples=samples)


def _count_flips(first: EvalOutput, second: EvalOutput) -> int:
    pairs = zip(first.predictions, second.predictions, strict=True)
    return sum(old["prediction"] != new["prediction"] for old, new in pairs)


def measure_latency(models: Sequence[tuple[Checkpoint, EvalOutput]]) -> list[InferenceSpeed]:
    """Measure how fast each model reads the same rows, one at a time and in batches; they take turns.

    Args:
        models: Checkpoints with the features of the same rows.
    """
    features = models[-1][1].features
    count = len(features)
    timed = range(0, count, max(1, count // _TOGETHER))
    lengths = get_lengths(features)[list(timed)].tolist()
    batches = [[timed[index] for index in batch] for batch in sorted_batches(lengths)]
    singles = [[index] for index in range(0, count, max(1, count // _ALONE))]

    def read(checkpoint: Checkpoint, scored: EvalOutput, collate: Collator, indices: Sequence[int]) -> None:
        checkpoint.use_machine()
        batch = [scored.features[index] for index in indices]
        forward(checkpoint.model, batch, collate, precision=checkpoint.machine.precision)

    runs = [
        partial(read, checkpoint, scored, checkpoint.task.collator(checkpoint.context)) for checkpoint, scored in models
    ]
    return measure_speed(runs, singles, batches, len(timed))
