"""A student: loaded as its recipe says, and its teachers while it is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.rows import Split
from bertkit.distillation.teachers import Teacher, compute_teacher_logits, load_teacher
from bertkit.errors import ModelError
from bertkit.hardware.precision import Machine
from bertkit.modeling.info import tagger_head
from bertkit.progress import Progress
from bertkit.recipe import Distillation
from bertkit.tasks import Task
from bertkit.tokens.features import Collator, Feature, Setup

if TYPE_CHECKING:
    from bertkit.training.losses import Terms


def load_student(task: Task, folder: Path, setup: Setup) -> Any:
    """Load the model that a run trains; where it has teachers, some layers of the first, or whole layers to match.

    Raises:
        ModelError: one that cannot learn from teachers, or whose layers cannot be taken apart.
        RecipeError: layers that the teacher does not have.
    """
    wanted = setup.recipe.distillation
    model = task.load_model(folder, _whole(setup, wanted), new_head=True)
    if wanted is not None and tagger_head(model.config):
        what = f"{setup.recipe.name} trains a head over a frozen encoder, or nothing"
        raise ModelError(what, "distillation is for recipes that train the whole model")
    if wanted is not None and wanted.student_layers is not None:
        from bertkit.distillation.matching import take_layers

        take_layers(model, wanted.student_layers)
    return model


@contextmanager
def with_teachers(
    teachers: Sequence[Teacher],
    task: Task,
    split: Split,
    model: Any,
    setup: Setup,
    features: Sequence[Feature],
    gold: Terms,
    machine: Machine,
    progress: Progress,
) -> Iterator[tuple[Terms, Collator]]:
    """Give the terms of the loss and the collator of a run; with teachers, those that know what they say.

    Raises:
        ModelError: a teacher that cannot be learned from; see `load_teacher` and `matched`.
    """
    wanted = setup.recipe.distillation
    if wanted is None:
        yield gold, task.collator(setup)
        return
    from bertkit.distillation.loss import TEACHER_PREFIX, distillation_terms, teacher_collator
    from bertkit.tokens.feature_cache import add_values

    said = compute_teacher_logits(teachers, task, setup, split, features, machine, progress)
    for name, values in said.items():
        add_values(features, f"{TEACHER_PREFIX}{name}", values)
    with ExitStack() as watched:
        matching = None
        if wanted.matches_layers:
            from bertkit.distillation.matching import matched

            teacher, _ = load_teacher(teachers[0], task, _whole(setup, wanted), machine.device)
            model.to(machine.device)
            matching = watched.enter_context(matched(model, teacher, wanted, machine.precision))
        yield (
            distillation_terms(gold, wanted, model.config.problem_type, matching),
            teacher_collator(task.collator(setup)),
        )


def _whole(setup: Setup, wanted: Distillation | None) -> Setup:
    """Let the last layer be computed whole where layers are matched token by token."""
    if wanted is None or not wanted.matches_layers:
        return setup
    training = setup.recipe.training.model_copy(update={"cls_only_last_layer": False})
    return replace(setup, recipe=setup.recipe.model_copy(update={"training": training}))
