"""What a model learns from: the gold labels of its rows, and what else its recipe names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bertkit.data.rows import Split
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.modeling.info import Model
from bertkit.recipe import Recipe
from bertkit.tasks import Task
from bertkit.tokens.features import Collator, Features, Setup
from bertkit.training.losses import Terms

if TYPE_CHECKING:
    from bertkit.compression.students import TeacherSupervision
    from bertkit.compression.teachers import Teacher


@dataclass(frozen=True)
class GoldSupervision:
    """Gold labels alone; or nothing, where the model is made of others."""

    recipe: Recipe
    """Its model is the one that training starts from."""
    make_model: Callable[[Setup], Model] | None = None
    """Makes the model of a run that trains nothing."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What it adds to the identity of a run."""
    teachers: tuple[Teacher, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether there is anything to train."""
        return self.make_model is None

    def checked(self, task: Task, labels: tuple[str, ...], model_folder: Path) -> GoldSupervision:
        """Return it as it is: there is nothing to check."""
        return self

    def load_model(self, task: Task, folder: Path, setup: Setup) -> Model:
        """Load the model with the head of its task family."""
        if self.make_model is not None:
            return self.make_model(setup)
        return task.load_model(folder, setup, new_head=True)

    @contextmanager
    def learning(
        self, checkpoint: Checkpoint, split: Split, features: Features, gold: Terms
    ) -> Iterator[tuple[Terms, Collator]]:
        """Yield the terms of the task and its collator, for as long as the model is trained."""
        yield gold, checkpoint.task.collator(checkpoint.setup)


Supervision: TypeAlias = "GoldSupervision | TeacherSupervision"


def make_supervision(recipe: Recipe) -> Supervision:
    """Return what a recipe's model learns from: teachers too, where the recipe has a section for them."""
    if recipe.distillation is None:
        return GoldSupervision(recipe)
    from bertkit.compression.students import supervise_by_teachers

    return supervise_by_teachers(recipe, recipe.distillation)
