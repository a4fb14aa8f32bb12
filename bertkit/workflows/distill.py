"""Distill: fine-tune a student with its teachers, then compare them: size, speed and scores."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint
from bertkit.evaluation.parity import measure_latency
from bertkit.evaluation.scoring import Result, Scored, find_intervals, score_split
from bertkit.metrics import Numbers
from bertkit.metrics.intervals import Interval, bootstrap_intervals
from bertkit.modeling.checkpoint import weight_bytes
from bertkit.progress import Progress, stage, takes_progress
from bertkit.recipe.records import Distillation, Recipe
from bertkit.storage import runs
from bertkit.storage.files import null_for_nan
from bertkit.tasks import Task
from bertkit.training.run import wait_for_all
from bertkit.workflows.finetune import finetune_rows
from bertkit.workflows.finetune_data import FinetuneData, read_finetune_data


@dataclass(frozen=True)
class ComparedModel:
    """A teacher or the student on the first validation split; differences are the student's score less this one's.

    Its speed is as `bertkit.hardware.speed.Pace` has it.
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
    """How much longer the slowest round of timing took than the fastest, as a share; None if it was not timed."""


@dataclass(frozen=True)
class Distilled:
    """The results of the student's run, and all models compared."""

    results: list[Result]
    compared_models: list[ComparedModel]
    best_metric: str


@takes_progress
def distill(
    recipe: Recipe, *, output: str | Path | None = None, fresh: bool = False, progress: Progress | None = None
) -> Distilled:
    """Train the student of a recipe that has teachers, as `finetune` does, and compare it with them.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    with stage("reading the data", total=1):
        inputs = read_finetune_data(with_distillation(recipe), output, fresh=fresh)
    return distill_inputs(inputs, fresh=fresh)


def distill_inputs(inputs: FinetuneData, *, fresh: bool) -> Distilled:
    """Do what `distill` does with inputs that are read already."""
    results = finetune_rows(inputs, fresh=fresh, compare=partial(_compare_models, inputs))
    wait_for_all()
    folder = inputs.plan.folder
    record = runs.read_record(folder) or {}
    models = [ComparedModel(**model) for model in record.get("compared_models", [])]
    if models:  # the student comes last, and its run may have been moved
        models[-1] = dataclasses.replace(models[-1], model=str(folder))
    return Distilled(results, models, inputs.recipe.best_metric)


def with_distillation(recipe: Recipe) -> Recipe:
    """Return a recipe that has a section for its teachers; an error names what the section lacks."""
    return recipe if recipe.distillation else recipe.model_copy(update={"distillation": Distillation()})


def _compare_models(
    inputs: FinetuneData, student: Checkpoint, scored: Scored, weights: Path | None
) -> list[dict[str, Any]]:
    """Load the teachers as `eval` does, score them on the student's rows, and time all models in turns."""
    task = inputs.task
    models = list[tuple[str, str, Path, Checkpoint, Scored]]()
    for teacher in inputs.teachers:
        record = runs.read_record(teacher.folder) or {}
        with stage(f"loading {teacher.name}"):
            saved = SavedCheckpoint(inputs.recipe, task, teacher.folder, teacher.labels, record)
            checkpoint = saved.load(student.machine)  # the same for all
        teacher_scored = score_split(checkpoint, inputs.validation)
        models.append(("teacher", teacher.name, teacher.folder, checkpoint, teacher_scored))
    models.append(("student", inputs.recipe.name, weights or inputs.plan.folder, student, scored))
    # Teachers stay in memory until all have been timed: they take turns, so that a busy machine slows all alike.
    paces = measure_latency([(checkpoint, of_model) for *_, checkpoint, of_model in models])
    compared = []
    for (role, name, folder, checkpoint, of_model), pace in zip(models, paces, strict=True):
        intervals = find_intervals(task, of_model)
        compared.append(
            ComparedModel(
                role=role,
                model=name,
                parameters=sum(parameter.numel() for parameter in checkpoint.model.parameters()),
                disk_bytes=weight_bytes(folder),
                **pace._asdict(),
                scores=null_for_nan(of_model.scores),
                intervals=intervals.ends,
                interval_methods=intervals.methods,
                **({} if checkpoint is student else _find_differences(task, scored, of_model)),
            )
        )
    return [dataclasses.asdict(model) for model in compared]


def _find_differences(task: Task, student: Scored, teacher: Scored) -> dict[str, Any]:
    """Compute how far the student's scores lie above a teacher's, with 95% intervals over the same resampled rows."""

    def score(scored: Scored, rows: Numbers) -> dict[str, float]:
        return task.score({name: values[rows] for name, values in scored.compared.items()}, scored.setup)

    def subtract(rows: Numbers) -> dict[str, float]:
        teacher_scores = score(teacher, rows)
        return {name: value - teacher_scores[name] for name, value in score(student, rows).items()}

    rows = len(next(iter(student.compared.values())))  # or queries, of rankings
    return {
        "difference": null_for_nan({name: value - teacher.scores[name] for name, value in student.scores.items()}),
        "difference_intervals": bootstrap_intervals(subtract, rows),
    }
