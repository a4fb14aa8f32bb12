"""What each layer of an encoder knows: linear probes of a recipe's labels, or of tasks made from the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bertkit.errors import RecipeError, UsageError, closest
from bertkit.insight.layer_vectors import LayerReader
from bertkit.insight.probe_tasks import BUILT_IN, ProbeItems, read_built_in_task, read_recipe_task
from bertkit.progress import stage
from bertkit.recipe.load import load_recipe, recipe_names
from bertkit.recipe.records import Recipe
from bertkit.storage import hub

if TYPE_CHECKING:
    from bertkit.insight.probes import ItemVectors, ProbedLayers

_WORDS_RECIPE = "tag"  # says how rows of words are read, for tasks that have no recipe


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
    """Kind of the control task: ``types`` or ``shuffled``."""
    group: str
    """Group that it is drawn for: ``word``, ``length``; empty for none."""
    train_rows: int
    test_rows: int
    probed: ProbedLayers


def load_probe_recipe(name: str, changes: Mapping[str, Any]) -> Recipe:
    """Load the recipe that is named, or what says how the rows of a built-in task are read.

    Raises:
        RecipeError: neither a recipe nor a built-in task, a recipe that is wrong, or a change of a key that a built-in
            task does not read.
    """
    if name not in built_in_tasks():
        if "/" not in name and not name.endswith((".yaml", ".yml")) and name not in recipe_names():
            what = f"{name!r} is neither a recipe nor a task of `bertkit probe`"
            raise RecipeError(what, closest(name, [*built_in_tasks(), *recipe_names()]))
        return load_recipe(name, changes)
    other = next((key for key in changes if key != "model" and not key.startswith("data.")), None)
    if other is not None:
        raise RecipeError(f"--set {other}: {name} has no recipe", "only the keys of data can be set")
    return load_recipe(_WORDS_RECIPE, changes).model_copy(update={"name": name})


def built_in_tasks() -> dict[str, str]:
    """Return the tasks that are made from rows: name -> the question that a probe answers."""
    return {name: task.about for name, task in BUILT_IN.items()}


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
        metric: Metric of the probes; by default the first of the recipe's that probes have.
        limit: Maximum training rows; half as many held-out rows are scored.
        items: Maximum texts, words or pairs of words that a probe learns from, and that it is scored on.
        max_length: Maximum tokens per text.
        precision: Data type of the encoder.

    Raises:
        BertkitError: If the model, the rows or a setting is wrong; see `bertkit.errors`.
    """
    for name, value in {"limit": limit, "items": items}.items():
        if value < 1:
            raise UsageError(f"--{name} {value}", "give at least 1")
    # a wrong name is an error before rows are read, and rows are before weights come
    with hub.without_weights():
        hub.find_model(recipe.model)
    with stage("reading the data", total=1):
        if recipe.name in built_in_tasks():
            task = read_built_in_task(recipe.name, recipe, limit, metric)
        else:
            task = read_recipe_task(recipe, limit, metric)
        task.check()
    import numpy as np

    from bertkit.insight.probes import find_vectors, probe_layers

    reader = LayerReader(recipe.model, max_length, precision)

    def read(items: ProbeItems) -> tuple[ProbeItems, ItemVectors]:
        return find_vectors(items, reader.read(items.rows, items.unit))

    (train, train_vectors), (test, test_vectors) = read(task.train), read(task.test)
    lost = len(task.train) + len(task.test) - len(train) - len(test)
    notes = [*task.notes, *([f"items of words without a token, left out: {lost:,}"] if lost else [])]
    task = replace(task, train=train, test=test, notes=notes)
    probed = probe_layers(task, train_vectors, test_vectors, max_items=items)
    unit = {"edge": "pair of words", "difference": "pair"}.get(task.train.combination, task.train.unit)
    if task.train.unit == "target" and task.train.combination != "edge":
        unit = "target word"
    return ProbeResult(
        task=task.name,
        about=task.about,
        model=recipe.model,
        source=recipe.data.source or "the recipe's files",
        metric=task.metric,
        unit=unit,
        control=task.control,
        group=task.group_name,
        train_rows=len(np.unique(task.train.owners)),
        test_rows=len(np.unique(task.test.owners)),
        probed=probed,
    )
