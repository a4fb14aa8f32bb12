"""Classes of errors, and their exit codes.

BertkitError              1   a bug in bertkit
├── UsageError            2   the command line
│   └── RecipeError       2   a recipe or an override of it
├── DataError             3   rows, columns, labels
├── ModelError            4   checkpoints and tokenizers
├── UnavailableError      5   network, optional packages, devices
├── ResourceError         6   disk, memory, permissions, locks
├── DivergedError         7   a loss or weight that is not a finite number
├── GateError             8   a gate that failed
└── StoppedError  130 / 143   Ctrl-C or SIGTERM; the run can be resumed
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from signal import SIGINT
from typing import Any


class BertkitError(Exception):
    """Error that ends a command with one line: the problem, its location, and the remedy.

    Args:
        message: Problem, in terms of the user's data and options.
        remedy: Next action, preferably a command to type.
        file: File with the problem.
        row: Line (text files) or row (Parquet) of the problem, from 1.
        column: Column with the problem.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        remedy: str = "",
        *,
        file: object = None,
        row: int | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(message)
        # The parts stay separate, because `--json` prints each under its own key.
        self.message = message
        self.remedy = remedy
        self.file = None if file is None else str(file)
        self.row = row
        self.column = column
        self.record: str | None = None
        """Another name of the row, such as its id."""

    def __str__(self) -> str:
        """Return one line: ``message (file:row, column 'name') - remedy``.

        >>> str(DataError("no label", "fill it in", file="a.csv", row=3, column="label"))
        "no label (a.csv:3, column 'label') - fill it in"
        """
        position = ":".join(str(value) for value in (self.file, self.row) if value is not None)
        column = f"column {self.column!r}" if self.column is not None else ""
        location = ", ".join(text for text in (position, self.record, column) if text)
        problem, remedy = (_cut_middle(text) for text in (self.message, self.remedy))
        line = problem + (f" ({location})" if location else "") + (f" - {remedy}" if remedy else "")
        return " ".join(line.split())

    def with_prefix(self, name: str) -> BertkitError:
        """Return a copy whose message starts with the name of a run or option, for a command of several parts.

        >>> str(DataError("no label", "fill it in").with_prefix("cola"))
        'cola: no label - fill it in'
        """
        # A copy, because the summary of several runs may hold the original error.
        error = copy(self)
        error.message = f"{name}: {self.message}"
        return error

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that ``--json`` prints under ``error``."""
        return {
            "code": self.exit_code,
            "message": self.message,
            "file": self.file,
            "row": self.row,
            "record": self.record,
            "column": self.column,
            "hint": self.remedy,
        }


def _cut_middle(text: str) -> str:
    """Cut the middle out of a text of more than 600 characters."""
    return text if len(text) <= 600 else f"{text[:300]}...{text[-297:]}"


def shorten(text: str, length: int = 80) -> str:
    """Return a text, cut after `length` characters.

    >>> shorten("a long value", 9), shorten("short", 9)
    ('a long...', 'short')
    """
    return text if len(text) <= length else f"{text[: length - 3]}..."


class UsageError(BertkitError):
    """The command line is wrong, or its options contradict each other."""

    exit_code = 2


class RecipeError(UsageError):
    """A recipe, or an override of one of its keys, is wrong."""


class DataError(BertkitError):
    """Rows, columns or labels are not what the recipe declares."""

    exit_code = 3


class ModelError(BertkitError):
    """A checkpoint or a tokenizer cannot be used."""

    exit_code = 4


class UnavailableError(BertkitError):
    """Something outside bertkit is missing: the network, an optional package, a device."""

    exit_code = 5


class ResourceError(BertkitError):
    """Disk, memory, a permission or a lock prevents the work."""

    exit_code = 6


class DivergedError(BertkitError):
    """A loss or a weight is no longer a finite number; the result is not kept."""

    exit_code = 7


class GateError(BertkitError):
    """A score, a difference or a test fails a gate; the results are kept."""

    exit_code = 8


class StoppedError(BertkitError):
    """A signal stopped the run, which was saved first and can be resumed."""

    def __init__(self, message: str, remedy: str = "", *, signal: int = SIGINT) -> None:
        super().__init__(message, remedy)
        # Shells report 128 + the number of the signal: 130 for SIGINT, 143 for SIGTERM.
        self.exit_code = 128 + signal


@contextmanager
def error_location(**location: object) -> Iterator[None]:
    """Add a location to each DataError that is raised inside the block: ``file``, ``row`` or ``record``.

    >>> with error_location(file="a.csv", row=3):
    ...     raise DataError("no label")
    Traceback (most recent call last):
    bertkit.errors.DataError: no label (a.csv:3)
    """
    try:
        yield
    # The code that finds an error in a row does not know its file; the code that reads the file does.
    except DataError as error:
        vars(error).update(location)
        raise


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Suggest the names that are closest to a mistyped one, or list them all.

    >>> did_you_mean("epoch", ["epochs", "seed"])
    'did you mean epochs?'
    """
    names = list(names)
    matches = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(matches)}?" if matches else f"there are: {', '.join(names)}"


def similar_path(path: Path) -> str:
    """Suggest the file or folder with the most similar name in the same folder, or return ""."""
    names = [entry.name for entry in path.parent.glob("[!.]*")]
    matches = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    return f"did you mean {path.with_name(matches[0])}?" if matches else ""


def error_summary(error: BaseException) -> str:
    r"""Return the first line of the message of a library's error, or its class if the message is empty.

    >>> error_summary(OSError("no route\nto the host")), error_summary(ValueError())
    ('no route', 'ValueError')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def install_command(extra: str = "") -> str:
    """Return the command that installs bertkit with an extra from its current source: a clone, a file or an index."""
    from importlib import metadata
    from urllib.parse import urlparse
    from urllib.request import url2pathname

    try:
        # pip records the source of an installed package in direct_url.json (PEP 610); it is missing for a
        # package from an index.
        origin = json.loads(metadata.distribution("bertkit").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    url, extras = urlparse(origin.get("url", "")), f"[{extra}]" if extra else ""
    if "vcs_info" in origin:
        return f"pip install 'bertkit{extras} @ {origin['vcs_info']['vcs']}+{url.geturl()}'"
    if url.scheme == "file":
        editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
        return f"pip install {editable}'{url2pathname(url.path)}{extras}'"
    return f"pip install 'bertkit{extras}'"
