"""Initial weights of student models, and loss terms for learning from teachers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from bertkit.compression.distillation_loss import TEACHER_PREFIX, distillation_terms, teacher_collator
from bertkit.compression.teachers import Teacher, compute_teacher_logits, get_teacher_names
from bertkit.data.rows import Split
from bertkit.data.soft_labels import get_probabilities, to_logits
from bertkit.errors import ModelError
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.modeling.info import Model, get_tagger_head
from bertkit.recipe.records import DistillationConfig, Recipe
from bertkit.tasks import Task
from bertkit.tokens.feature_cache import add_values
from bertkit.tokens.features import Collator, Features, TaskContext
from bertkit.training.losses import LossTerms


def make_student_recipe(recipe: Recipe, distillation: DistillationConfig) -> Recipe:
    """Return the recipe of a student; if it takes layers from its first teacher, `model` is that teacher.

    Raises:
        UsageError: If the recipe names no teacher.
    """
    if distillation.student_layers is None:
        return recipe
    return recipe.model_copy(update={"model": get_teacher_names(distillation)[0]})


def load_student(task: Task, folder: Path, context: TaskContext, distillation: DistillationConfig) -> Model:
    """Load the student, with only some layers of the first teacher if the recipe has `student_layers`.

    Raises:
        ModelError: If the model cannot learn from teachers, or its layers cannot be removed.
        RecipeError: If the teacher does not have the layers.
    """
    # For a student with layers of its teacher, load the teacher, and then remove the other layers.
    model = task.load_model(folder, _with_complete_layers(context, distillation), new_head=True)
    if get_tagger_head(model.config):
        message = f"{context.recipe.name} trains a head over a frozen encoder, or nothing"
        raise ModelError(message, "distillation is for recipes that train the whole model")
    if distillation.student_layers is not None:
        from bertkit.modeling.students.narrow import take_layers

        take_layers(model, distillation.student_layers)
    return model


@contextmanager
def prepare_distillation(
    teachers: Sequence[Teacher],
    distillation: DistillationConfig,
    student: Checkpoint,
    split: Split,
    features: Features,
    gold: LossTerms,
) -> Iterator[tuple[LossTerms, Collator]]:
    """Add the teachers' logits to the features, and yield the loss terms and the collator that use the logits.

    Args:
        teachers: Teachers of the recipe; empty if the training rows have soft labels.
        distillation: Section of the recipe.
        student: Model that is trained.
        split: Training rows.
        features: Features of the training rows, which get the logits.
        gold: Loss terms for gold labels.

    Raises:
        ModelError: If a teacher does not fit the student; see `Teacher.load` and `match_models`.
    """
    # 1. Compute the logits once, before training. So an epoch takes as long as without teachers.
    if column := distillation.soft_labels:
        logits = {"logits": list(to_logits(get_probabilities(split, student.context.labels, column)))}
    else:
        logits = compute_teacher_logits(teachers, student, split, features)
    for name, values in logits.items():
        add_values(features, f"{TEACHER_PREFIX}{name}", values)

    # 2. Match layers if the recipe requires it. Hidden states are a thousand times as large as logits, so they are not
    #    stored: the teacher stays in memory and computes each batch.
    model, machine = student.model, student.machine
    with ExitStack() as hooks:
        matching = None
        if distillation.matches_layers:
            from bertkit.modeling.students.matching import match_models

            teacher = teachers[0].load(replace(student, context=_with_complete_layers(student.context, distillation)))
            model.to(machine.device)
            matching = hooks.enter_context(match_models(model, teacher.model, distillation, machine.precision))
        yield (
            distillation_terms(gold, distillation, model.config.problem_type, matching),
            teacher_collator(student.task.collator(student.context)),
        )


def _with_complete_layers(context: TaskContext, distillation: DistillationConfig) -> TaskContext:
    """If layers are matched by token, turn off the shortcut that computes only the first token in the last layer."""
    if not distillation.matches_layers:
        return context
    return replace(context, recipe=context.recipe.replace("training", cls_only_last_layer=False))
