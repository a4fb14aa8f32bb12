"""File formats, one module each. The folder is the registry: a new module is read by its name and its endings.

NAME: str = "csv"
ENDINGS: tuple[str, ...] = (".csv",)
MAGIC: bytes = b""
RUNNING_TEXT: bool = True

def read(source: Source, data: Data, name: str) -> Iterator[Record]: ...
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from typing import Protocol, cast

from bertkit.data.text import Record, Source
from bertkit.errors import RecipeError, closest
from bertkit.recipe.plugins import module_names
from bertkit.recipe.records import Data


class Format(Protocol):
    """What a module of this package has; its imports stay light, and a heavy library is imported by `read`."""

    NAME: str
    """What ``data.format`` calls it."""
    ENDINGS: tuple[str, ...]
    """The endings of its files, in lower case and with the dot; none where only ``data.format`` chooses it."""
    MAGIC: bytes
    """How every file begins that is not text; empty for text, which may be gzipped (``.csv.gz``)."""
    RUNNING_TEXT: bool
    """Whether a column may hold running text, so that a model can be pretrained on such files."""

    def read(self, source: Source, data: Data, name: str) -> Iterator[Record]:
        """Yield the rows of a file or a binary stream; faults are a DataError with `name` and the row."""


@cache
def load_formats() -> dict[str, Format]:
    """Load every format, by name."""
    modules = [importlib.import_module(f"{__name__}.{module}") for module in module_names(__name__)]
    return {module.NAME: cast(Format, module) for module in modules}


def find_format(name: str) -> Format | None:
    """Find the format that ``data.format`` names; None for ``auto``, where the ending of a file tells.

    Raises:
        RecipeError: no format has this name.
    """
    formats = load_formats()
    if name != "auto" and name not in formats:
        raise RecipeError(f"data.format: no file format is called {name!r}", closest(name, ["auto", *formats]))
    return formats.get(name)


def format_of(file_name: str) -> tuple[Format | None, str]:
    """Find the format of a file by its name.

    Returns:
        the format and the ending that shows it, in lower case, with ``.gz`` where the file is gzipped text; None and
        an empty ending where no format claims the name.
    """
    lowered = file_name.lower()
    plain = lowered.removesuffix(".gz")
    for candidate in load_formats().values():
        ending = next((ending for ending in candidate.ENDINGS if plain.endswith(ending)), "")
        if ending and (plain == lowered or not candidate.MAGIC):
            return candidate, ending + lowered[len(plain) :]
    return None, ""


def known_endings() -> str:
    """List the endings of all files that can be read, in words."""
    formats = load_formats().values()
    text = [ending for candidate in formats if not candidate.MAGIC for ending in candidate.ENDINGS]
    binary = [ending for candidate in formats if candidate.MAGIC for ending in candidate.ENDINGS]
    return f"{', '.join(text)} (and these with .gz) and {', '.join(binary)}"
