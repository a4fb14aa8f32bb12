"""What each layer of an encoder knows: linear probes of a recipe's labels, or of tasks made from the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bertkit.errors import RecipeError, UsageError, closest
from bertkit.insight.layer_vectors import LayerReader
from bertkit.insight.probing.built_in import BUILT_IN, read_built_in_task
from bertkit.insight.probing.items import ItemVectors, ProbeItems, ProbeTask, find_vectors
from bertkit.insight.probing.recipe_labels import read_recipe_task
from bertkit.progress import stage
from bertkit.recipe import Recipe, load_recipe, recipe_names
from bertkit.storage import hub

if TYPE_CHECKING:
    from bertkit.insight.probing.layers import ProbedLayers

_WORDS_RECIPE = "tag"  # says how rows of words are read, for tasks that have no recipe
_MOST_SEEDS = 100


@dataclass(frozen=True)
class ProbeSettings:
    """How much probes read and learn."""

    metric: str | None = None
    """None for the first of the recipe's that probes have."""
    seeds: int = 3
    limit: int = 2000
    """Training rows; half as many held-out rows are scored."""
    items: int = 20_000
    """Texts, words or pairs of words that a probe learns from, and that it is scored on."""
    max_length: int | None = None
    precision: str = "auto"


@dataclass(frozen=True)
class ProbeResult:
    """What the layers of a model know of a task."""

    task: str
    about: str
    model: str
    source: str
    metric: str
    unit: str
    """What has a label: text, pair, word, target word, or pair of words."""
    control: str
    """What the control task is: ``types`` or ``shuffled``."""
    group: str
    """What it is drawn for: ``word``, ``length``; empty for none."""
    seeds: int
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


def probe(recipe: Recipe, settings: ProbeSettings = ProbeSettings()) -> ProbeResult:
    """Probe all layers of a model.

    Args:
        recipe: as `load_probe_recipe` returns it.
        settings: how much probes read and learn.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    _check_settings(settings)
    # a wrong name is an error before rows are read, and rows are before weights come
    with hub.without_weights():
        hub.find_model(recipe.model)
    with stage("reading the data", total=1):
        if recipe.name in built_in_tasks():
            task = read_built_in_task(recipe.name, recipe, settings.limit, settings.metric)
        else:
            task = read_recipe_task(recipe, settings.limit, settings.metric)
        task.check()
    from bertkit.insight.probing.layers import probe_layers

    reader = LayerReader(recipe.model, settings.max_length, settings.precision)
    task, train, test = _read_vectors(task, reader)
    probed = probe_layers(task, train, test, seeds=range(1, settings.seeds + 1), most=settings.items)
    return ProbeResult(
        task=task.name,
        about=task.about,
        model=recipe.model,
        source=recipe.data.source or "the recipe's files",
        metric=task.metric,
        unit=_name_unit(task.train),
        control=task.control,
        group=task.group_name,
        seeds=settings.seeds,
        train_rows=_count_rows(task.train),
        test_rows=_count_rows(task.test),
        probed=probed,
    )


def _check_settings(settings: ProbeSettings) -> None:
    for name, value in {"seeds": settings.seeds, "limit": settings.limit, "items": settings.items}.items():
        if value < 1:
            raise UsageError(f"--{name} {value}", "give at least 1")
    if settings.seeds > _MOST_SEEDS:
        raise UsageError(f"--seeds {settings.seeds}", f"give at most {_MOST_SEEDS}")


def _read_vectors(task: ProbeTask, reader: LayerReader) -> tuple[ProbeTask, ItemVectors, ItemVectors]:
    """Compute the vectors of all items, or find them on disk; leave out the items that have none."""

    def read(items: ProbeItems) -> tuple[ProbeItems, ItemVectors]:
        return find_vectors(items, reader.read(items.rows, items.unit))

    (train, of_train), (test, of_test) = read(task.train), read(task.test)
    lost = len(task.train) + len(task.test) - len(train) - len(test)
    notes = [*task.notes, *([f"items of words without a token, left out: {lost:,}"] if lost else [])]
    return replace(task, train=train, test=test, notes=notes), of_train, of_test


def _name_unit(items: ProbeItems) -> str:
    if items.combination == "edge":
        return "pair of words"
    return {"target": "target word"}.get(items.unit, "pair" if items.combination == "difference" else items.unit)


def _count_rows(items: ProbeItems) -> int:
    import numpy as np

    return len(np.unique(items.owners))
