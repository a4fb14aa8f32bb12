"""Code of your own that a recipe names for training: callbacks, and a collator."""

from __future__ import annotations

from functools import partial
from typing import Any

from bertkit.errors import RecipeError
from bertkit.recipe.plugins import load_own, own_fault
from bertkit.tokens.features import Collator


def check_callback(name: str, *, may_run_code: bool) -> None:
    """Load a callback that a recipe names; `may_run_code` says whether code may run that is not imported yet.

    Raises:
        RecipeError: it may not run, is not there, or is no callback or one that a key of the recipe stands for.
    """
    callback = load_own("callback", name, may_run_code)
    from transformers import EarlyStoppingCallback, TrainerCallback

    if callback is EarlyStoppingCallback:
        raise RecipeError(f"training.callbacks: {name} is decided by training.patience", "set that one")
    if not (isinstance(callback, type) and issubclass(callback, TrainerCallback)):
        what = f"training.callbacks: {name} is not a class of callbacks"
        raise RecipeError(what, "derive it from transformers.TrainerCallback")


def make_callback(name: str) -> Any:
    """Create a callback that a recipe names.

    Raises:
        RecipeError: it cannot be created without arguments.
    """
    try:
        return load_own("callback", name)()
    except Exception as error:  # whatever your own code raises
        raise own_fault(f"the callback {name}", error) from error


def own_collator(name: str, collate: Collator) -> Collator:
    """Return your own collator, which is given the features and bertkit's."""
    return partial(load_own("collator", name), collate=collate)
