"""File formats. The folder is the registry: the formats of a new module are known by their names and their endings.

def read(source: Source, data: Data, name: str) -> Iterator[Record]: ...

FORMATS = (Format("csv", read, endings=(".csv",)),)
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bertkit.data.text import Record, Source, without_compression
from bertkit.errors import RecipeError, closest
from bertkit.recipe.plugins import module_names
from bertkit.recipe.records import Data


@dataclass(frozen=True)
class Format:
    """One of the ``FORMATS`` of a module of this package, whose imports stay light: `read` imports heavy libraries."""

    name: str
    """Value of ``data.format``."""
    read: Callable[[Source, Data, str], Iterator[Record]]
    """Yields the rows of a file or a binary stream; faults are a DataError with the name it is given, and the row."""
    endings: tuple[str, ...] = ()
    """The endings of its files, in lower case and with the dot; none where only ``data.format`` chooses it."""
    magic: bytes = b""
    """How every file begins that is not text; empty for text, which may be compressed (``.csv.gz``)."""
    running_text: bool = True
    """Whether a column may hold running text, so that a model can be pretrained on such files."""
    folder: str = ""
    """The names of files (``*.ann``) that make their folder a single source of rows; empty where only files are."""


@cache
def load_formats() -> dict[str, Format]:
    """Load every format, by name."""
    modules = [importlib.import_module(f"{__name__}.{module}") for module in module_names(__name__)]
    return {entry.name: entry for module in modules for entry in module.FORMATS}


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
        the format and the ending that shows it, in lower case, with ``.gz`` or ``.zst`` where it is compressed text;
        None and an empty ending where no format claims the name.
    """
    lowered = file_name.lower()
    plain = without_compression(lowered)
    for candidate in load_formats().values():
        ending = next((ending for ending in candidate.endings if plain.endswith(ending)), "")
        if ending and (plain == lowered or not candidate.magic):
            return candidate, ending + lowered[len(plain) :]
    return None, ""


def format_of_folder(folder: Path) -> Format | None:
    """Find the format that reads all files of a folder as one source of rows; None where its files are splits."""
    formats = (candidate for candidate in load_formats().values() if candidate.folder)
    return next((candidate for candidate in formats if next(folder.glob(candidate.folder), None)), None)


def known_endings() -> str:
    """List the endings of all files that can be read, in words."""
    formats = load_formats().values()
    text = [ending for candidate in formats if not candidate.magic for ending in candidate.endings]
    binary = [ending for candidate in formats if candidate.magic for ending in candidate.endings]
    return f"{', '.join(text)} (and these with .gz or .zst) and {', '.join(sorted(binary))}"
