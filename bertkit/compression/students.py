"""A student: where it starts from, and what it learns from its teachers beside the gold labels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit.compression.distillation_loss import TEACHER_PREFIX, distillation_terms, teacher_collator
from bertkit.compression.teachers import Teacher, compute_teacher_logits, find_teachers, teacher_names
from bertkit.data.rows import Split
from bertkit.errors import ModelError
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.modeling.info import Model, tagger_head
from bertkit.recipe import Distillation, Recipe
from bertkit.tasks import Task
from bertkit.tokens.feature_cache import add_values
from bertkit.tokens.features import Collator, Features, Setup
from bertkit.training.losses import Terms


@dataclass(frozen=True)
class TeacherSupervision:
    """Gold labels and fine-tuned teachers."""

    recipe: Recipe
    distillation: Distillation
    teachers: tuple[Teacher, ...] = ()
    """Teachers of the recipe, once they are checked."""
    trains: bool = True

    @property
    def identity(self) -> dict[str, Any]:
        """The teachers by content."""
        return {"teachers": [teacher.fingerprint for teacher in self.teachers]}

    def checked(self, task: Task, labels: tuple[str, ...], model_folder: Path) -> TeacherSupervision:
        """Return it with its teachers; raises as `find_teachers` does."""
        return replace(self, teachers=find_teachers(self.recipe, self.distillation, task, labels, model_folder))

    def load_model(self, task: Task, folder: Path, setup: Setup) -> Model:
        """Load the student: some layers of the first teacher where the recipe says so, whole ones to match.

        Raises:
            ModelError: a model that cannot learn from teachers, or whose layers cannot be taken.
            RecipeError: layers that the teacher does not have.
        """
        model = task.load_model(folder, self._with_whole_layers(setup), new_head=True)
        if tagger_head(model.config):
            what = f"{self.recipe.name} trains a head over a frozen encoder, or nothing"
            raise ModelError(what, "distillation is for recipes that train the whole model")
        if self.distillation.student_layers is not None:
            from bertkit.modeling.students.narrow import take_layers

            take_layers(model, self.distillation.student_layers)
        return model

    @contextmanager
    def learning(
        self, checkpoint: Checkpoint, split: Split, features: Features, gold: Terms
    ) -> Iterator[tuple[Terms, Collator]]:
        """Yield the terms of the loss and the collator, both with the teachers' logits.

        Raises:
            ModelError: a teacher that cannot be learned from; see `Teacher.load` and `matched`.
        """
        # Once, before training: an epoch then costs no more than one without teachers.
        logits = compute_teacher_logits(self.teachers, checkpoint, split, features)
        for name, values in logits.items():
            add_values(features, f"{TEACHER_PREFIX}{name}", values)
        model, machine = checkpoint.model, checkpoint.machine
        with ExitStack() as hooks:
            matching = None
            # Hidden states are a thousand times as large as logits, so here the teacher stays in memory.
            if self.distillation.matches_layers:
                from bertkit.modeling.students.matching import matched

                whole = replace(checkpoint, setup=self._with_whole_layers(checkpoint.setup))
                teacher = self.teachers[0].load(whole)
                model.to(machine.device)
                matching = hooks.enter_context(matched(model, teacher.model, self.distillation, machine.precision))
            yield (
                distillation_terms(gold, self.distillation, model.config.problem_type, matching),
                teacher_collator(checkpoint.task.collator(checkpoint.setup)),
            )

    def _with_whole_layers(self, setup: Setup) -> Setup:
        """Turn the CLS-only last layer off where layers are matched token by token."""
        if not self.distillation.matches_layers:
            return setup
        return replace(setup, recipe=setup.recipe.changed("training", cls_only_last_layer=False))


def supervise_by_teachers(recipe: Recipe, distillation: Distillation) -> TeacherSupervision:
    """Return the supervision of a recipe; where the student is made of the first teacher's layers, that is its model.

    Raises:
        UsageError: the recipe names no teacher.
    """
    if distillation.student_layers is not None:
        recipe = recipe.model_copy(update={"model": teacher_names(distillation)[0]})
    return TeacherSupervision(recipe, distillation)
