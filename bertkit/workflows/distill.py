"""Fine-tune a student with its teachers, and compare their sizes, speeds and scores."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.evaluation.checkpoint import Checkpoint, CheckpointInfo
from bertkit.evaluation.parity import measure_latency
from bertkit.evaluation.scoring import EvalOutput, EvalResult, find_intervals, score_split
from bertkit.metrics.intervals import Interval, bootstrap_intervals
from bertkit.modeling.checkpoint import get_weight_bytes
from bertkit.progress import Progress, stage, with_progress
from bertkit.recipe.records import DistillationConfig, Recipe
from bertkit.storage import runs
from bertkit.storage.files import null_for_nan
from bertkit.tasks import Task
from bertkit.training.run import wait_for_all
from bertkit.workflows.finetune import finetune_rows
from bertkit.workflows.finetune_data import FinetuneData, read_finetune_data


@dataclass(frozen=True)
class ComparedModel:
    """Scores, size and speed of a teacher or of the student, on the first validation split.

    A difference is the student's score minus the score of this model. See `InferenceSpeed` for the speed.
    """

    role: str
    model: str
    parameters: int
    disk_bytes: int
    row_seconds: float
    rows_per_second: float
    scores: dict[str, float | None]
    intervals: dict[str, Interval]
    interval_methods: dict[str, str] = field(default_factory=dict)
    """Metric -> ``Wilson`` or ``bootstrap``; intervals of differences are bootstrap intervals."""
    difference: dict[str, float | None] = field(default_factory=dict)
    difference_intervals: dict[str, Interval] = field(default_factory=dict)
    spread: float | None = None
    """Time of the slowest timing round divided by the time of the fastest, minus 1; None if not timed."""


@dataclass(frozen=True)
class DistillResult:
    """Results of the student's run, and the comparison of all models."""

    results: list[EvalResult]
    compared_models: list[ComparedModel]
    best_metric: str


@with_progress
def distill(
    recipe: Recipe, *, output: str | Path | None = None, restart: bool = False, progress: Progress | None = None
) -> DistillResult:
    """Train a student with teachers or with soft labels, and compare it with its teachers.

    Args:
        recipe: Recipe of the student, which names its teachers or a column of soft labels.
        output: Run folder; by default ``runs/``, the name of the recipe and ``-distilled``.
        restart: Start over; an earlier run in the folder is moved aside.
        progress: Shows the progress of the work.

    Raises:
        BertkitError: If the recipe, the teachers, the rows or the machine do not allow the run; see `bertkit.errors`.
    """
    # A student is fine-tuned like any other model. `finetune` calls bertkit.compression to initialize the student and
    # to add loss terms, and `_compare_models` to compare it with its teachers.
    with stage("reading the data", total=1):
        data = read_finetune_data(with_distillation(recipe), output, restart=restart)
    return distill_rows(data, restart=restart)


def distill_rows(data: FinetuneData, *, restart: bool) -> DistillResult:
    """Distill on rows that have been read."""
    # `finetune_rows` stores the comparison in the record, so a finished run is compared without loading models.
    compare = partial(_compare_models, data) if data.teachers else None
    results = finetune_rows(data, restart=restart, compare=compare)
    wait_for_all()
    folder = data.plan.folder
    record = runs.read_record(folder) or {}
    models = [ComparedModel(**model) for model in record.get("compared_models", [])]
    # The student is last. Its folder can have been moved since the record was written.
    if models:
        models[-1] = dataclasses.replace(models[-1], model=str(folder))
    return DistillResult(results, models, data.recipe.best_metric)


def with_distillation(recipe: Recipe) -> Recipe:
    """Return a recipe with a section `distillation`, which is checked when the rows are read."""
    return recipe if recipe.distillation else recipe.model_copy(update={"distillation": DistillationConfig()})


def _compare_models(
    data: FinetuneData, student: Checkpoint, student_output: EvalOutput, weights: Path | None
) -> list[dict[str, Any]]:
    """Load the teachers, score them on the student's validation rows, and time all models in turns."""
    # 1. Load and score the teachers.
    task = data.task
    models = list[tuple[str, str, Path, Checkpoint, EvalOutput]]()
    for teacher in data.teachers:
        record = runs.read_record(teacher.folder) or {}
        with stage(f"loading {teacher.name}"):
            info = CheckpointInfo(data.recipe, task, teacher.folder, teacher.labels, record)
            checkpoint = info.load(student.machine)
        output = score_split(checkpoint, data.validation)
        models.append(("teacher", teacher.name, teacher.folder, checkpoint, output))
    models.append(("student", data.recipe.name, weights or data.plan.folder, student, student_output))

    # 2. Time all models alternately, so that other programs on the machine slow all of them alike.
    speeds = measure_latency([(checkpoint, output) for *_, checkpoint, output in models])

    # 3. Describe each model; teachers also get the difference from the student.
    compared_models = []
    for (role, name, folder, checkpoint, output), speed in zip(models, speeds, strict=True):
        intervals = find_intervals(task, output)
        compared_models.append(
            ComparedModel(
                role=role,
                model=name,
                parameters=sum(parameter.numel() for parameter in checkpoint.model.parameters()),
                disk_bytes=get_weight_bytes(folder),
                **speed._asdict(),
                scores=null_for_nan(output.scores),
                intervals=intervals.bounds,
                interval_methods=intervals.methods,
                **({} if checkpoint is student else _find_differences(task, student_output, output)),
            )
        )
    return [dataclasses.asdict(model) for model in compared_models]


def _find_differences(task: Task, student: EvalOutput, teacher: EvalOutput) -> dict[str, Any]:
    """Subtract a teacher's scores from the student's scores, with 95% intervals from paired resampling of rows."""

    def score(output: EvalOutput, rows: np.ndarray) -> dict[str, float]:
        return task.score({name: values[rows] for name, values in output.row_scores.items()}, output.context)

    def subtract(rows: np.ndarray) -> dict[str, float]:
        teacher_scores = score(teacher, rows)
        return {name: value - teacher_scores[name] for name, value in score(student, rows).items()}

    num_rows = len(next(iter(student.row_scores.values())))  # or queries of a ranking
    return {
        "difference": null_for_nan({name: value - teacher.scores[name] for name, value in student.scores.items()}),
        "difference_intervals": bootstrap_intervals(subtract, num_rows),
    }
