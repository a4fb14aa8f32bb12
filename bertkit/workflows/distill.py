"""Distill: fine-tune a student under its teachers, then put them side by side: size, speed and scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from bertkit.evaluation.checkpoint import Checkpoint, checkpoint_labels, load_checkpoint
from bertkit.evaluation.scoring import Result, Scored, find_intervals, score_split
from bertkit.progress import SILENT, Progress
from bertkit.recipe import Distillation, Recipe
from bertkit.storage import runs
from bertkit.tasks import Task
from bertkit.workflows.finetune import carry_out
from bertkit.workflows.steps.inputs import Inputs, Plan, read_inputs
from bertkit.workflows.steps.inputs import plan as plan_run
from bertkit.workflows.steps.opening import wait_for_all

_ALONE = 32  # rows that are timed one at a time
_TOGETHER = 512  # rows that are timed in batches
_PASSES = 3


@dataclass(frozen=True)
class ComparedModel:
    """A teacher or the student on the first validation split; differences are the student's score less this one's."""

    role: str
    model: str
    parameters: int
    disk_bytes: int
    row_seconds: float
    """Mean over rows that the model reads one at a time."""
    rows_per_second: float
    """In batches."""
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    difference: dict[str, float] = field(default_factory=dict)
    difference_intervals: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Distilled:
    """What a distillation leaves: the results of the student's run, and all models side by side."""

    results: list[Result]
    compared_models: list[ComparedModel]
    best_metric: str


def plan(recipe: Recipe, *, output: str | Path | None = None, fresh: bool = False) -> Plan:
    """Check everything that can be checked without training, and tell what a run would do."""
    return plan_run(_with_teachers(recipe), output=output, fresh=fresh)


def distill(
    recipe: Recipe, *, output: str | Path | None = None, fresh: bool = False, progress: Progress = SILENT
) -> Distilled:
    """Train the student of a recipe that has teachers, as `finetune` does, and put it beside them.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    inputs = read_inputs(_with_teachers(recipe), output)
    results = carry_out(inputs, fresh=fresh, progress=progress)
    wait_for_all()
    record = runs.read_record(inputs.folder) or {}
    if "compared_models" not in record:
        compared_models = _compare(inputs, record, progress)
        record = {**record, "compared_models": [dataclasses.asdict(each) for each in compared_models]}
        if runs.is_main_process():
            with runs.locked(inputs.folder):
                runs.write_record(inputs.folder, record)
    return Distilled(results, [ComparedModel(**each) for each in record["compared_models"]], inputs.recipe.best_metric)


def _with_teachers(recipe: Recipe) -> Recipe:
    """Give a recipe that has a section for its teachers, which may lack them: that is said with what is lacking."""
    return recipe if recipe.distillation else recipe.model_copy(update={"distillation": Distillation()})


@dataclass(frozen=True)
class _Loaded:
    role: str
    name: str
    folder: Path
    checkpoint: Checkpoint
    scored: Scored


def _compare(inputs: Inputs, record: dict[str, Any], progress: Progress) -> list[ComparedModel]:
    """Load teachers and student as `eval` does, score them on the same rows, and time them by turns."""
    from bertkit.hardware.precision import Machine

    machine = Machine(**record["machine"])  # the same for all
    recipe, task, split = inputs.recipe, inputs.task, inputs.validation
    folders = [("teacher", teacher.name, teacher.folder, teacher.labels) for teacher in inputs.teachers]
    own_labels = checkpoint_labels(recipe, task, inputs.folder)
    loaded = []
    for role, name, folder, labels in [*folders, ("student", str(inputs.folder), inputs.folder, own_labels)]:
        checkpoint = load_checkpoint(recipe, task, folder, labels, machine)
        scored = score_split(checkpoint.model, task, checkpoint.setup, split, checkpoint.precision, progress)
        loaded.append(_Loaded(role, name, folder, checkpoint, scored))
    alone, together = _time_by_turns(loaded, task, progress)
    student = loaded[-1]
    return [
        ComparedModel(
            role=each.role,
            model=each.name,
            parameters=sum(parameter.numel() for parameter in each.checkpoint.model.parameters()),
            disk_bytes=sum(
                file.stat().st_size for file in each.folder.iterdir() if file.suffix in (".safetensors", ".bin")
            ),
            row_seconds=row_seconds,
            rows_per_second=rows_per_second,
            scores=each.scored.scores,
            intervals=find_intervals(task, each.scored),
            **({} if each is student else _differences(task, student.scored, each.scored)),
        )
        for each, row_seconds, rows_per_second in zip(loaded, alone, together, strict=True)
    ]


def _differences(task: Task, student: Scored, teacher: Scored) -> dict[str, Any]:
    """Give how far the student's scores lie above a teacher's, with 95 % intervals over the same drawn rows."""
    from bertkit.metrics.statistics import bootstrap_intervals

    def score(scored: Scored, rows: Any) -> dict[str, float]:
        return task.score({name: values[rows] for name, values in scored.compared.items()}, scored.setup)

    def subtract(rows: Any) -> dict[str, float]:
        theirs = score(teacher, rows)
        return {name: value - theirs[name] for name, value in score(student, rows).items()}

    return {
        "difference": {name: value - teacher.scores[name] for name, value in student.scores.items()},
        "difference_intervals": bootstrap_intervals(subtract, len(student.predictions)),
    }


def _time_by_turns(loaded: Sequence[_Loaded], task: Task, progress: Progress) -> tuple[list[float], list[float]]:
    """Give each model's mean seconds for a row alone, and the rows a second that it reads in batches.

    Models take turns row by row and batch by batch, and the fastest of some passes counts, since other work disturbs.
    """
    from bertkit.evaluation.forward import forward, sorted_batches
    from bertkit.hardware.speed import time_by_turns
    from bertkit.tokens.feature_cache import lengths_of

    known = loaded[-1].scored.features
    count = len(known)
    some = range(0, count, max(1, count // _TOGETHER))
    batches = [[some[number] for number in batch] for batch in sorted_batches(lengths_of(known)[list(some)].tolist())]
    work = [[number] for number in range(0, count, max(1, count // _ALONE))] + batches

    def read(each: _Loaded, numbers: Sequence[int]) -> None:
        collate, some = task.collator(each.checkpoint.setup), [each.scored.features[number] for number in numbers]
        forward(each.checkpoint.model, some, collate, precision=each.checkpoint.precision)

    fastest = time_by_turns([partial(read, each) for each in loaded], work, progress)
    alone = len(work) - len(batches)
    return [mean(each[:alone]) for each in fastest], [len(some) / sum(each[alone:]) for each in fastest]
