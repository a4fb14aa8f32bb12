"""A student: loaded as its recipe says, and taught while it is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bertkit.errors import ModelError
from bertkit.features import Collator, Feature, Setup
from bertkit.precision import Machine
from bertkit.progress import Progress
from bertkit.recipe import Distillation
from bertkit.workflows.prepare import Inputs
from bertkit.workflows.teachers import ask_teachers, load_teacher

if TYPE_CHECKING:
    from bertkit.training.losses import Terms


def load_student(inputs: Inputs, setup: Setup) -> Any:
    """Load the model that a run trains; where it has teachers, some layers of the first, or whole layers to match.

    Raises:
        ModelError: one that cannot learn from teachers, or whose layers cannot be taken apart.
        RecipeError: layers that the teacher does not have.
    """
    wanted = inputs.recipe.distillation
    model = inputs.task.load_model(inputs.model_folder, _whole(setup, wanted), new_head=True)
    if wanted is not None and hasattr(model.config, "bertkit_head"):
        what = f"{inputs.recipe.name} trains a head over a frozen encoder, or nothing"
        raise ModelError(what, "distillation is for recipes that train the whole model")
    if wanted is not None and wanted.student_layers is not None:
        from bertkit.training.matching import take_layers

        take_layers(model, wanted.student_layers)
    return model


@contextmanager
def taught(
    inputs: Inputs,
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
    task, wanted = inputs.task, inputs.recipe.distillation
    if wanted is None:
        yield gold, task.collator(setup)
        return
    from bertkit.encoded import add_values
    from bertkit.training.distillation import TAUGHT, distillation_terms, taught_collator

    said = ask_teachers(inputs.teachers, task, setup, inputs.splits["train"], features, machine, progress)
    for name, values in said.items():
        add_values(features, f"{TAUGHT}{name}", values)
    with ExitStack() as watched:
        matching = None
        if wanted.matches_layers:
            from bertkit.training.matching import matched

            teacher, _ = load_teacher(inputs.teachers[0], task, _whole(setup, wanted), machine.device)
            model.to(machine.device)
            matching = watched.enter_context(matched(model, teacher, wanted, machine.precision))
        yield (
            distillation_terms(gold, wanted, model.config.problem_type, matching),
            taught_collator(task.collator(setup)),
        )


def _whole(setup: Setup, wanted: Distillation | None) -> Setup:
    """Let the last layer be computed whole where layers are matched piece by piece."""
    if wanted is None or not wanted.matches_layers:
        return setup
    training = setup.recipe.training.model_copy(update={"short_last_layer": False})
    return replace(setup, recipe=setup.recipe.model_copy(update={"training": training}))
