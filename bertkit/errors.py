"""What can go wrong, and the exit code of each kind.

BertkitError              1   a fault of bertkit itself
├── UsageError            2   the command line
│   └── RecipeError       2   a recipe or an override of it
├── DataError             3   rows, columns, labels
├── ModelError            4   checkpoints and tokenizers
├── UnavailableError      5   network, optional package, device
├── ResourceError         6   disk, memory, permission, lock
├── DivergedError         7   a loss or weight that is no longer a number
└── StoppedError  130 / 143   Ctrl-C or SIGTERM; the run can be resumed
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class BertkitError(Exception):
    """A failure that ends in one line: what is wrong, where, and what to do about it.

    Args:
        what: the fault, in words of the user's data and options.
        remedy: what to do or to type next.
        file: the file at fault.
        row: its line (text files) or row (Parquet), counted from 1.
        column: the column at fault.
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        remedy: str = "",
        *,
        file: object = None,
        row: int | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        self.file = None if file is None else str(file)
        self.row = row
        self.column = column

    def __str__(self) -> str:
        """One line: ``what (file:row, column name) - remedy``.

        >>> str(DataError("no label", "fill it in", file="a.csv", row=3, column="label"))
        "no label (a.csv:3, column 'label') - fill it in"
        """
        place = ":".join(str(part) for part in (self.file, self.row) if part is not None)
        column = f"column {self.column!r}" if self.column is not None else ""
        where = ", ".join(part for part in (place, column) if part)
        line = self.what + (f" ({where})" if where else "") + (f" - {self.remedy}" if self.remedy else "")
        return " ".join(line.split())

    def as_dict(self) -> dict[str, Any]:
        """Give the fields that ``--json`` prints under ``error``."""
        return {
            "code": self.exit_code,
            "message": self.what,
            "file": self.file,
            "row": self.row,
            "column": self.column,
            "hint": self.remedy,
        }


class UsageError(BertkitError):
    """The command line asks for something that cannot be."""

    exit_code = 2


class RecipeError(UsageError):
    """A recipe, or an override of one of its keys, is wrong."""


class DataError(BertkitError):
    """Rows, columns or labels are not what the recipe says."""

    exit_code = 3


class ModelError(BertkitError):
    """A checkpoint or a tokenizer cannot be vouched for."""

    exit_code = 4


class UnavailableError(BertkitError):
    """Something outside the package is missing: the network, an optional package, a device."""

    exit_code = 5


class ResourceError(BertkitError):
    """Disk, memory, a permission or a lock is in the way."""

    exit_code = 6


class DivergedError(BertkitError):
    """A loss or a weight stopped being a finite number; nothing of it was kept."""

    exit_code = 7


class StoppedError(BertkitError):
    """A signal asked the run to end; it was saved first and can be resumed."""

    def __init__(self, what: str, remedy: str = "", *, signal: int) -> None:
        super().__init__(what, remedy)
        self.exit_code = 128 + signal


def closest(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant, or list them all.

    >>> closest("epoch", ["epochs", "seed"])
    'did you mean epochs?'
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(names)}"
