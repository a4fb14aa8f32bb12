"""`bertkit search add`."""

from __future__ import annotations

from typing import Annotated

from bertkit.cli.commands.search.build import SkipEmptyOption, TextsArgument, end_change
from bertkit.cli.options import ColumnOption, DataSettingsOption, argument, option, read_data_options

ORDER = 2
EXAMPLE = "bertkit search add index more.csv"

IndexArgument = Annotated[str, argument("Folder that `search build` wrote.", "INDEX")]
MovedModelOption = Annotated[str | None, option("Where the model of the index is now.", "MODEL", "where it was")]


def command(
    index: IndexArgument,
    file: TextsArgument,
    column: ColumnOption = "text",
    skip_empty: SkipEmptyOption = False,
    model: MovedModelOption = None,
    changes: DataSettingsOption = None,
) -> None:
    """Add texts to an index.

    Rows whose ids the index has already are refused. Those without ids are numbered. A file that was added before is
    not added again.
    """
    from bertkit.vectors.search.rows import TextRows
    from bertkit.workflows.search import add

    rows = TextRows.open(file, column, skip_empty=skip_empty, data=read_data_options(column, changes))
    end_change(add(index, rows, model=model), "added")
