"""The rows of a recipe, read with the columns and the checks of its task family."""

from __future__ import annotations

from bertkit.data.rows import Columns, Split
from bertkit.data.sources import Choose, read_splits
from bertkit.errors import DataError
from bertkit.recipe import Recipe
from bertkit.tasks import Task


def read_task_splits(
    recipe: Recipe,
    task: Task,
    choose: Choose,
    *,
    columns: Columns | None = None,
    check_rest: bool = False,
    collected: list[DataError] | None = None,
) -> dict[str, Split]:
    """Read splits with the columns and the checks of a task family; see `bertkit.data.sources.read_splits`."""
    return read_splits(
        recipe,
        columns or task.COLUMNS,
        lambda row: task.read(row, recipe),
        choose,
        named=task.NAMED,
        check_rest=check_rest,
        collected=collected,
    )
