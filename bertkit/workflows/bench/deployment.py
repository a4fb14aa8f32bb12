"""Measure the ways to deploy a run on this machine: torch, and the graphs of ONNX Runtime and OpenVINO."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertkit.errors import ModelError, UnavailableError, UsageError
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint, open_checkpoint, open_trained
from bertkit.evaluation.gates import model_bytes
from bertkit.evaluation.parity import compare_scored, measure_latency
from bertkit.evaluation.scoring import score_split
from bertkit.hardware.precision import product_widths
from bertkit.metrics.basic import is_lower_better
from bertkit.metrics.seeds import find_pareto
from bertkit.modeling.architectures import detect_machine
from bertkit.modeling.load import read_config
from bertkit.progress import stage
from bertkit.runtime.backends import check_backend
from bertkit.storage.exports import is_exported
from bertkit.workflows.evaluate import splits_to_score
from bertkit.workflows.export import GraphFormat, convert_checkpoint, load_plain
from bertkit.workflows.quantize import TARGETS, calibration_texts, read_training_rows

GRAPHS = {"onnx": ("onnx", "fp32"), "openvino": ("openvino", "fp32"), **TARGETS}
"""Way to deploy -> backend and precision of its graph."""

_WAYS = {graph: way for way, graph in GRAPHS.items()}
_CALIBRATION_ROWS = 256


@dataclass(frozen=True)
class Deployed:
    """A model in one of the ways to deploy it: its size, its speed, and its score beside that of the first."""

    model: str
    way: str
    """``torch-fp32``, ``torch-bf16``, or a target of `export` and `quantize`, such as ``onnx-int8``."""
    bytes: int
    """Size of the weights, or of all files of an exported folder, as ``size_mb`` of gates."""
    row_milliseconds: float
    """For one row alone, its tokens being known; see `bertkit.evaluation.parity.measure_latency`."""
    rows_per_second: float
    """In batches."""
    score: float
    difference: float
    """From the score of the first."""
    interval: tuple[float, float] | None
    """95% interval of the difference, paired by rows."""
    is_best: bool = False
    """Whether no other is both as fast for one row and as good, and better in one of the two."""
    spread: float | None = None
    """By which share the slowest round of timing took longer than the fastest."""


@dataclass(frozen=True)
class Deployment:
    """All ways that were measured, on the same rows of a split and in turns."""

    recipe: str
    metric: str
    split: str
    rows: int
    threads: int
    ways: list[Deployed]
    notes: list[str] = field(default_factory=list)


def deploy(
    models: Sequence[str], *, recipe: str | None = None, data: str | None = None, limit: int | None = None
) -> Deployment:
    """Measure each way to deploy models that were trained for the same task; nothing stays on disk.

    Args:
        models: run folders, fine-tuned checkpoints or exported folders; the first is what others are compared with.
        recipe: of checkpoints that are not of a run.
        data: rows to score on; those of the first model's recipe by default.
        limit: score on the first rows only.

    Raises:
        UsageError: a model twice, or models of different tasks or label sets.
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    # All ways answer the same rows, those of the first model, so their scores can be compared row by row.
    changes = {"data.source": data, "data.limit": limit}
    saved = [open_trained(model, recipe, changes) for model in models]
    folders = [run.folder.resolve() for run in saved]
    for number, (model, run) in enumerate(zip(models, saved, strict=True)):
        if folders[number] in folders[:number]:
            raise UsageError(f"{model} is named twice", "name each model once")
        if (run.recipe.task, run.labels) != (saved[0].recipe.task, saved[0].labels):
            what = f"{model} answers something else than {models[0]}: {run.recipe.task}, {len(run.labels)} labels"
            raise UsageError(what, "measure models of one task together")
    split = next(iter(splits_to_score(saved[0], None).values()))
    notes: list[str] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="bertkit-bench-")))
        loaded = [
            (model, way, size, checkpoint)
            for number, (model, one) in enumerate(zip(models, saved, strict=True))
            for way, size, checkpoint in _load_ways(one, folder / str(number), notes)
        ]
        checkpoints = [checkpoint for *_, checkpoint in loaded]
        # All ways are loaded at once, since they take turns at each batch while they are timed.
        scored = []
        for checkpoint in checkpoints:
            checkpoint.use_machine()
            scored.append(score_split(checkpoint, split))
        paces = measure_latency(list(zip(checkpoints, scored, strict=True)))
    metric, task = saved[0].recipe.best_metric, saved[0].task
    differences = [compare_scored(task, scored[0], other, samples=200)[metric] for other in scored]
    ways = [
        Deployed(
            *(model, way, size, 1000 * pace.row_seconds, pace.rows_per_second),
            *(change.second, change.difference, change.interval),
            spread=pace.spread,
        )
        for (model, way, size, _), pace, change in zip(loaded, paces, differences, strict=True)
    ]
    threads = checkpoints[0].machine.threads
    ways = mark_best(ways, lower_is_better=is_lower_better(metric))
    return Deployment(saved[0].recipe.name, metric, split.name, len(split.rows), threads, ways, notes)


def _load_ways(saved: SavedCheckpoint, folder: Path, notes: list[str]) -> Iterator[tuple[str, int, Checkpoint]]:
    """Yield each way that is possible here, with its size; note why others are not."""
    # A graph is what it is; a checkpoint is measured in torch and as every graph that can be made of it here.
    if is_exported(saved.folder):
        checkpoint = saved.load()
        made = checkpoint.model.export
        yield _WAYS[made.backend, made.precision], model_bytes(saved.folder), checkpoint
        return

    config = read_config(saved.folder)
    for precision in ("fp32", "bf16"):
        with stage(f"loading {saved.recipe.model_name}, torch-{precision}"):
            machine = detect_machine(precision, config["model_type"], product_widths(config))
            checkpoint = saved.load(machine, inference=True)
            checkpoint.pack_texts()
        yield f"torch-{precision}", model_bytes(saved.folder), checkpoint
    yield from _export_ways(saved, folder, notes)


def _export_ways(saved: SavedCheckpoint, folder: Path, notes: list[str]) -> Iterator[tuple[str, int, Checkpoint]]:
    before = load_plain(saved)
    calibration: list[dict[str, Any]] | None = None
    for way, (backend, precision) in GRAPHS.items():
        staging = folder / way
        staging.mkdir(parents=True)
        try:
            check_backend(backend, quantizes=precision == "int8")
            # Training rows are read for int8 alone, and once.
            if precision == "int8" and calibration is None:
                calibration = calibration_texts(before, read_training_rows(saved, _CALIBRATION_ROWS))
            with stage(f"exporting {saved.recipe.model_name} to {way}"):
                target = GraphFormat(backend, precision, calibration if precision == "int8" else None)
                convert_checkpoint(saved, before, target, staging)
            yield way, model_bytes(staging), open_checkpoint(saved.recipe, saved.task, staging).load()
        # A way that is not possible here is a line below the table, and no end of the others.
        except (ModelError, UnavailableError) as error:
            notes.append(f"{way}: {error.what}")


def mark_best(ways: Sequence[Deployed], *, lower_is_better: bool) -> list[Deployed]:
    """Mark the ways that no other one beats in time or score without losing in the other (Pareto)."""
    scores = [-way.score if lower_is_better else way.score for way in ways]
    best = find_pareto(scores, [-way.row_milliseconds for way in ways])
    return [replace(way, is_best=is_best) for way, is_best in zip(ways, best, strict=True)]
