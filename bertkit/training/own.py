"""Code of your own that a recipe names for training: a loss, a collator, callbacks."""

from __future__ import annotations

from functools import partial
from typing import Any

from bertkit.errors import RecipeError
from bertkit.recipe import CommonTraining, Training
from bertkit.recipe.plugins import load_own, own_fault
from bertkit.tasks import Task
from bertkit.tokens.features import Collator
from bertkit.training.losses import FOCAL, find_own_loss


def check_own(training: CommonTraining, task: Task | None = None, *, may_run_code: bool) -> None:
    """Load the code that a recipe names, and check whether its loss is one that the task family can be trained with.

    Args:
        training: the recipe's training section.
        task: the task family that is fine-tuned.
        may_run_code: whether code may run that is not imported yet.

    Raises:
        RecipeError: it may not run, is not there or not of its kind, or keys that exclude each other.
    """
    load = partial(load_own, may_run_code=may_run_code)
    for name in training.callbacks or ():
        _check_callback(name, load("callback", name))
    if task is None or not isinstance(training, Training):
        return
    if training.collator:
        load("collator", training.collator)
    given = [key for key in ("loss", "class_weights", "label_smoothing") if getattr(training, key)]
    if given and not task.NAMED:
        raise RecipeError(f"training.{given[0]} needs labels", "leave it out for this task")
    if training.loss and task.FITS_HEAD:
        raise RecipeError("training.loss: this task family has a loss of its own", "leave it out")
    if training.loss == FOCAL and training.label_smoothing:
        raise RecipeError("training.label_smoothing does not go with focal loss", "leave one of them out")
    if training.loss and training.loss != FOCAL:
        find_own_loss(training.loss, may_run_code)
        if len(given) > 1:
            raise RecipeError(f"training.{given[1]} does not go with a loss of your own", "leave one of them out")


def _check_callback(name: str, callback: Any) -> None:
    from transformers import EarlyStoppingCallback, TrainerCallback

    if callback is EarlyStoppingCallback:
        raise RecipeError(f"training.callbacks: {name} is decided by training.patience", "set that one")
    if not (isinstance(callback, type) and issubclass(callback, TrainerCallback)):
        what = f"training.callbacks: {name} is not a class of callbacks"
        raise RecipeError(what, "derive it from transformers.TrainerCallback")


def make_callbacks(training: CommonTraining) -> list[Any]:
    """Create the callbacks that a recipe names.

    Raises:
        RecipeError: one cannot be created without arguments.
    """
    callbacks = []
    for name in training.callbacks or ():
        try:
            callbacks.append(load_own("callback", name)())
        except Exception as error:  # whatever your own code raises
            raise own_fault(f"the callback {name}", error) from error
    return callbacks


def with_own_collator(training: Training, collate: Collator) -> Collator:
    """Return your own collator, which is given the features and bertkit's; bertkit's where the recipe names none."""
    return partial(load_own("collator", training.collator), collate=collate) if training.collator else collate
