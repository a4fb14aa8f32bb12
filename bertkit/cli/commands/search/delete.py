"""`bertkit search delete`."""

from __future__ import annotations

from typing import Annotated

from bertkit.cli.commands.search.add import IndexArgument
from bertkit.cli.commands.search.build import end_change
from bertkit.cli.options import option

ORDER = 3
EXAMPLE = "bertkit search delete index --id 17 --id 23"


def command(
    index: IndexArgument,
    ids: Annotated[list[str], option("Id of a row, or of a document in passages; repeatable.", "ID", names=("--id",))],
) -> None:
    """Delete rows from an index.

    They are no longer found, and their ids are free. The files get smaller only when the index is built again.
    """
    from bertkit.workflows.search import delete

    end_change(delete(index, ids), "deleted")
