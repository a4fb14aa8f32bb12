"""Fine-tune as a program asks for it: as `bertkit finetune` does, also with rows that are in memory."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypedDict, Unpack

from bertkit.data.files import find_splits
from bertkit.data.in_memory import DataFrame, Rows, as_records, is_dataframe
from bertkit.data.sources import ALL
from bertkit.errors import DataError, UsageError, closest
from bertkit.evaluation.scoring import Result
from bertkit.progress import Events, Progress, takes_progress, use_progress
from bertkit.recipe import Recipe, Training, load_recipe
from bertkit.storage.runs import run_folder
from bertkit.workflows.api import Changes, LoadedModel, load
from bertkit.workflows.finetune import finetune as run


class FinetuneOptions(TypedDict, total=False):
    """What else `finetune` takes."""

    changes: Changes
    fresh: bool
    """Start over; an earlier run in the folder is moved aside."""
    pinned: str | Path | None
    """End unless model, rows and versions are those of this run."""
    progress: Progress | None
    """Shows how far the work is; by default bars, in notebooks only."""


class Finetuned(list[Result]):
    """The results of the validation splits, the first of which chose the best checkpoint."""

    def __init__(self, results: Iterable[Result], folder: Path) -> None:
        super().__init__(results)
        self.folder = folder

    @property
    def scores(self) -> dict[str, float | None]:
        """The scores of the first split; None where one is undefined there."""
        return self[0].scores

    @property
    def report(self) -> Path:
        """The page about the run."""
        return self.folder / "report.html"

    @cached_property
    def model(self) -> LoadedModel:
        """The trained model, loaded when it is first asked for."""
        return load(self.folder)

    def _repr_html_(self) -> str:
        cells = [(result.split, name, _with_interval(result, name)) for result in self for name in result.scores]
        rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
        return f"<p>{html.escape(str(self.folder))}</p><table>{rows}</table>"


@takes_progress
def finetune(
    recipe: str | Path | Recipe,
    *,
    model: str | Path | None = None,
    data: str | Path | DataFrame | Rows | Mapping[str, DataFrame | Rows] | None = None,
    training: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    events: Callable[[dict[str, Any]], object] | None = None,
    **options: Unpack[FinetuneOptions],
) -> Finetuned:
    """Fine-tune an encoder, or resume the same run, or return the scores of a finished one.

    Args:
        recipe: its name or file, or a loaded one.
        model: the encoder, in place of the recipe's: folder, hub name, or ``demo``.
        data: rows with the columns that the recipe names: a path or hub name; a DataFrame, a `datasets.Dataset` or
            dictionaries, of which validation rows are held out; or a mapping (a ``DatasetDict``) from splits to these.
        training: keys of the recipe's section ``training``, such as ``{"epochs": 3}``.
        output: the run folder, ``runs/RECIPE`` by default.
        events: called with each line of ``metrics.jsonl``: a step with its loss, or with the scores of an evaluation.
        options: see `FinetuneOptions`.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    # Arguments become changes of the recipe, as options of the command line do.
    _check_names(options)
    in_memory = data is not None and not isinstance(data, (str, Path))
    changes = {**{f"training.{key}": value for key, value in (training or {}).items()}, **options.get("changes", {})}
    if model is not None:
        changes["model"] = str(model)
    if isinstance(data, (str, Path)):
        changes["data.source"] = str(data)
    if in_memory and not isinstance(recipe, Recipe):
        # what the recipe says of its own source is dropped
        changes.setdefault("data.source", "")
    # Rows in memory follow the recipe: what it says of columns and labels is how they are read.
    loaded = _load_recipe(recipe, changes)
    if in_memory:
        loaded = with_rows(loaded, data)
    fresh = options.get("fresh", False)
    with use_progress(None if events is None else Events(events)):
        results = run(loaded, pinned=options.get("pinned"), output=output, fresh=fresh)
        return Finetuned(results, run_folder(output, loaded.name))


def _load_recipe(recipe: str | Path | Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Load a recipe with changes."""
    if not isinstance(recipe, Recipe):
        return load_recipe(str(recipe), changes)
    if changes:
        message = f"a loaded recipe and changes of it: {', '.join(changes)}"
        raise UsageError(message, "give the name of the recipe, or make the changes with load_recipe(NAME, CHANGES)")
    return recipe


def _check_names(options: Mapping[str, Any]) -> None:
    """Refuse an argument that `finetune` does not have: Python takes any name where options are unpacked."""
    known = FinetuneOptions.__optional_keys__
    for name in options.keys() - known:
        remedy = f'training={{"{name}": ...}}' if name in Training.model_fields else closest(name, sorted(known))
        if name == "seeds":
            remedy = "bertkit.finetune_seeds(bertkit.with_rows(recipe, rows), seeds)"
        raise UsageError(f"finetune has no argument {name!r}", remedy)


def with_rows(recipe: Recipe, data: Any) -> Recipe:
    """Return a loaded recipe that reads rows in memory, given as for `finetune`, wherever it is used.

    Raises:
        DataError: what is given is no rows.
    """
    if is_dataframe(data) or not isinstance(data, Mapping):
        rows = {ALL: as_records(data)}
    elif any(isinstance(values, list) and values and isinstance(values[0], (str, float)) for values in data.values()):
        what = f"a dictionary of columns: {', '.join(map(str, data))}"
        raise DataError(what, "give datasets.Dataset.from_dict(DATA), or a list of one dictionary per row")
    else:
        sources = {str(name): as_records(source) for name, source in data.items()}
        splits = find_splits(sources, {})
        rows = {split: list(chain(*map(sources.__getitem__, names))) for split, names in splits.items()}
    if rows == {ALL: []}:
        raise DataError("there are no rows", "give some")
    return recipe.model_copy(update={"data": recipe.data.with_rows(rows)})


def _with_interval(result: Result, name: str) -> str:
    score, interval = result.scores[name], result.intervals.get(name)
    ends = f" ({interval[0]:.4f} to {interval[1]:.4f})" if interval else ""
    return "undefined" if score is None else f"{score:.4f}{ends}"
