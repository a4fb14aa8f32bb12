"""Shell completion of the names of recipes, runs, splits and columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def complete_recipe(incomplete: str) -> list[str]:
    """Return the shipped fine-tuning recipes whose names start with `incomplete`."""
    from bertkit.recipe.load import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def complete_pretraining_recipe(incomplete: str) -> list[str]:
    """Return the shipped pretraining recipes whose names start with `incomplete`."""
    from bertkit.recipe.load import recipe_names

    return [name for name in recipe_names("pretrain") if name.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """Return the runs in the folder typed so far (by default `runs`), and the shipped recipes."""
    from bertkit.storage.runs import list_runs

    # `runs/co` lists runs/. One folder is enough, because the shell asks again after every Tab.
    folder = Path(incomplete.rpartition("/")[0] or "runs")
    paths = [(folder / name).as_posix() for name in list_runs(folder)]
    return [path for path in paths if path.startswith(incomplete)] + complete_recipe(incomplete)


def complete_split(context: typer.Context, incomplete: str) -> list[str]:
    """Return the splits of the run that the command line names."""
    from bertkit.storage.runs import read_record

    # run.json has the number of rows of each split, so no data is read.
    record: Any = _try_read(lambda: read_record(_get_run(context))) or {}
    return [name for name in record.get("rows", ()) if name.startswith(incomplete)]


def complete_column(context: typer.Context, incomplete: str) -> list[str]:
    """Return the columns of the file that the command line names, or of the data of its run."""
    from bertkit.data.files import read_records
    from bertkit.recipe.load import load_recipe
    from bertkit.recipe.records import DataConfig

    file = context.params.get("file")
    recipe = None if file else _try_read(lambda: load_recipe(str(_get_run(context) / "recipe.yaml")))
    data = recipe.data if recipe else DataConfig()
    # Only the first row of a local file is read; a dataset on the Hub is not downloaded for a completion.
    source = Path(file or next(iter(data.files.values()), data.source))
    row = _try_read(lambda: next(iter(read_records(source, data)))[1]) if source.is_file() else None
    return [name for name in row or () if name.startswith(incomplete)]


def _get_run(context: typer.Context) -> Path:
    # The line may not have a run yet. `compare` has a list of runs; the first one sets the columns.
    name = context.params.get("run") or context.params.get("runs") or ""
    return Path(name if isinstance(name, str) else name[0])


def _try_read(read: Any) -> Any:
    """Return the value that a function reads, or None after an error, because completion must not print errors."""
    from bertkit.errors import BertkitError

    try:
        return read()
    except (BertkitError, OSError, StopIteration, KeyError):
        return None
