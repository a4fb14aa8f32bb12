"""Linear probes of each layer of an encoder, for the labels of a recipe or for built-in tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bertkit.analysis.layer_vectors import LayerReader
from bertkit.analysis.probe_tasks import BUILT_IN, read_built_in_task, read_recipe_task
from bertkit.errors import RecipeError, did_you_mean
from bertkit.progress import stage
from bertkit.recipe.load import load_recipe, recipe_names
from bertkit.recipe.records import Recipe
from bertkit.storage import hub

if TYPE_CHECKING:
    from bertkit.analysis.probes import ProbedLayers

# Recipe that reads the rows of words of built-in tasks.
_WORDS_RECIPE = "tag"


@dataclass(frozen=True)
class ProbeResult:
    """Result of probing all layers of a model."""

    task: str
    about: str
    model: str
    source: str
    metric: str
    unit: str
    """Unit that has a label: text, pair, word, target word, or pair of words."""
    control: str
    """Kind of the control task, whose labels are random: ``types`` or ``shuffled``."""
    group: str
    """Property that groups the items of the control task: ``word``, ``length``, or empty for none."""
    train_rows: int
    test_rows: int
    probed: ProbedLayers


def load_probe_recipe(name: str, changes: Mapping[str, Any]) -> Recipe:
    """Load the named recipe; for a built-in task, load the recipe that defines how its rows are read.

    Raises:
        RecipeError: If the name is neither a recipe nor a built-in task, a recipe is wrong, or a built-in task does not
            read a changed key.
    """
    if name in BUILT_IN:
        unused_key = next((key for key in changes if key != "model" and not key.startswith("data.")), None)
        if unused_key is not None:
            raise RecipeError(f"--set {unused_key}: {name} has no recipe", "only the keys of data can be set")
        return load_recipe(_WORDS_RECIPE, changes).model_copy(update={"name": name})
    if "/" not in name and not name.endswith((".yaml", ".yml")) and name not in recipe_names():
        message = f"{name!r} is neither a recipe nor a task of `bertkit probe`"
        raise RecipeError(message, did_you_mean(name, [*BUILT_IN, *recipe_names()]))
    return load_recipe(name, changes)


def probe(
    recipe: Recipe,
    *,
    metric: str | None = None,
    limit: int = 2000,
    items: int = 20_000,
    max_length: int | None = None,
    precision: str = "auto",
) -> ProbeResult:
    """Probe all layers of a model.

    Args:
        recipe: Recipe as `load_probe_recipe` returns it.
        metric: Metric of the probes; by default, the first metric of the recipe that probes support.
        limit: Maximum training rows; half as many held-out rows are scored.
        items: Maximum texts, words or pairs of words that a probe learns from, and that it is scored on.
        max_length: Maximum tokens per text.
        precision: Data type of the encoder.

    Raises:
        BertkitError: If the model, the rows or a setting is wrong; see `bertkit.errors`.
    """
    # 1. Read the rows. Report an unknown model before, but download its weights afterwards.
    with hub.without_weights():
        hub.find_model(recipe.model)
    with stage("reading the data", total=1):
        if recipe.name in BUILT_IN:
            task = read_built_in_task(recipe.name, recipe, limit, metric)
        else:
            task = read_recipe_task(recipe, limit, metric)
        task.check()
    import numpy as np

    # 2. Compute the vectors of all layers. Drop words whose tokens are all truncated.
    from bertkit.analysis.probes import find_vectors, probe_layers

    reader = LayerReader(recipe.model, max_length, precision)
    train, train_vectors = find_vectors(task.train, reader.read(task.train.rows, task.train.unit))
    test, test_vectors = find_vectors(task.test, reader.read(task.test.rows, task.test.unit))
    num_dropped = len(task.train) + len(task.test) - len(train) - len(test)
    notes = [*task.notes, *([f"items left out because of truncation: {num_dropped:,}"] if num_dropped else [])]
    task = replace(task, train=train, test=test, notes=notes)

    # 3. Train a probe per layer and score it; `owners` has the row of each item.
    unit = "target word" if train.unit == "target" else train.unit
    return ProbeResult(
        task=task.name,
        about=task.about,
        model=recipe.model,
        source=recipe.data.source or "the recipe's files",
        metric=task.metric,
        unit={"edge": "pair of words", "difference": "pair"}.get(train.combination, unit),
        control=task.control,
        group=task.group_name,
        train_rows=len(np.unique(train.owners)),
        test_rows=len(np.unique(test.owners)),
        probed=probe_layers(task, train_vectors, test_vectors, max_items=items),
    )
