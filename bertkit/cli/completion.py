"""What the shell completes: recipes, runs, their splits and the columns of their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def complete_recipe(incomplete: str) -> list[str]:
    """Return the shipped recipes of fine-tuning whose names begin with `incomplete`."""
    from bertkit.recipe.load import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def complete_pretraining_recipe(incomplete: str) -> list[str]:
    """Return the shipped recipes of pretraining whose names begin with `incomplete`."""
    from bertkit.recipe.load import recipe_names

    return [name for name in recipe_names("pretrain") if name.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """Return the runs in the folder that is typed, or else in `runs`, and the shipped recipes."""
    from bertkit.storage.runs import runs_in

    folder = Path(incomplete.rpartition("/")[0] or "runs")
    paths = [str(folder / name) for name in runs_in(folder)]
    return [path for path in paths if path.startswith(incomplete)] + complete_recipe(incomplete)


def complete_split(context: typer.Context, incomplete: str) -> list[str]:
    """Return the splits of the run that is typed before."""
    from bertkit.storage.runs import read_record

    record: Any = _ask(lambda: read_record(_run_of(context))) or {}
    return [name for name in record.get("rows", ()) if name.startswith(incomplete)]


def complete_column(context: typer.Context, incomplete: str) -> list[str]:
    """Return the columns of the file that is typed before, or of that of a run."""
    from bertkit.data.files import read_records
    from bertkit.recipe.load import load_recipe
    from bertkit.recipe.records import Data

    file = context.params.get("file")
    data = Data() if file else _ask(lambda: load_recipe(str(_run_of(context) / "recipe.yaml")).data) or Data()
    source = Path(file or next(iter(data.files.values()), data.source))
    first = _ask(lambda: next(iter(read_records(source, data)))[1]) if source.is_file() else None
    return [name for name in first or () if name.startswith(incomplete)]


def _run_of(context: typer.Context) -> Path:
    given = context.params.get("run") or context.params.get("runs") or ""
    return Path(given if isinstance(given, str) else given[0])


def _ask(answer: Any) -> Any:
    """Return an answer, or None where what is asked cannot be read: completion is no place for errors."""
    from bertkit.errors import BertkitError

    try:
        return answer()
    except (BertkitError, OSError, StopIteration, KeyError):
        return None
