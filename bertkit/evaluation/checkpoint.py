"""A trained checkpoint, loaded as its run was scored."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.labels import match_names
from bertkit.errors import ModelError
from bertkit.modeling import load as models
from bertkit.recipe import Recipe
from bertkit.storage import runs
from bertkit.tasks import Task, with_options
from bertkit.tokens.features import Setup

if TYPE_CHECKING:
    from bertkit.hardware.precision import Machine

log = logging.getLogger("bertkit")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint ready to predict."""

    model: Any
    setup: Setup
    precision: str


def checkpoint_labels(recipe: Recipe, task: Task, folder: Path) -> tuple[str, ...]:
    """Give label names in the order of the checkpoint's outputs, spelled as in the recipe where it names them.

    Raises:
        ModelError: an unfinished run, or names that do not match the recipe's.
    """
    record = runs.read_record(folder)
    if record is not None and record["status"] != "finished":
        raise ModelError(
            f"the run is not finished ({record['status']})",
            "repeat the command that started it, or name one of its checkpoint folders",
            file=folder,
        )
    config = models.read_config(folder)
    models.check_head(config, folder)
    if not task.NAMED:
        return ()
    names = (
        recipe.model_labels
        or models.label_names(config)
        or models.placeholder_names(len(config.get("id2label") or "ab"))
    )
    return tuple(match_names(names, recipe.labels) if recipe.labels else names)


def load_checkpoint(
    recipe: Recipe, task: Task, folder: Path, labels: tuple[str, ...], machine: Machine | None = None
) -> Checkpoint:
    """Load a trained checkpoint with its tokenizer, for a machine, or in the precision its run was scored in.

    Raises:
        ModelError: it cannot be vouched for, or its head is not trained for this task.
    """
    record = runs.read_record(folder) or {}
    trained = record.get("identity", {}).get("recipe", {}).get("training", {})
    if trained.get("max_length", recipe.training.max_length) != recipe.training.max_length:
        log.info(f"trained with max_length {trained['max_length']}, used with {recipe.training.max_length}")
    from bertkit.hardware.precision import detect_hardware, restore_hardware, use_matmul_backend
    from bertkit.modeling.architectures import find_architecture

    if machine is None:
        if recipe.training.precision == "auto" and "machine" in record:
            machine = restore_hardware(record["machine"], "as in its run")
        else:
            architecture = find_architecture(models.read_config(folder)["model_type"])
            machine = detect_hardware(recipe.training.precision, avoid_bf16=architecture.overflows_in_bf16)
        log.info(machine.reason)
    use_matmul_backend(machine)
    setup = Setup(recipe, models.load_tokenizer(folder), labels)
    tuned = {name: value for name, value in record.get("tuned", {}).items() if name not in recipe.options}
    if tuned:
        log.info(f"as tuned in its run: {', '.join(f'{name} {value:.4g}' for name, value in tuned.items())}")
    setup = with_options(setup, tuned)
    model = task.load_model(folder, setup, new_head=False)
    return Checkpoint(model.to(machine.device), setup, machine.precision)
