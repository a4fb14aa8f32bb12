"""The layout of help: as wide as the terminal, with whole summaries and plain names of arguments."""

from __future__ import annotations

import shutil
from typing import Any

from typer.core import TyperCommand, TyperGroup

_WIDEST = 100  # columns; longer lines are hard to read
_Context: Any = TyperGroup.context_class
_Formatter: Any = _Context.formatter_class


class _FittedFormatter(_Formatter):  # type: ignore[misc]
    """Fits help into the terminal; the names of options get at most three eighths of a line."""

    def __init__(self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None) -> None:
        super().__init__(indent_increment, width or min(shutil.get_terminal_size().columns, max_width or _WIDEST))

    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names and what they mean in two columns."""
        super().write_dl(rows, min(col_max, 3 * self.width // 8), col_spacing)


class _FittedContext(_Context):  # type: ignore[misc]
    formatter_class = _FittedFormatter


class _Readable:
    """What commands and groups share."""

    context_class: Any = _FittedContext
    help: str | None

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first paragraph of the help, which wraps where it is long."""
        return " ".join((self.help or "").partition("\n\n")[0].split())

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the command's name in its usage, with required arguments as they are documented."""
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.replace("{", "").replace("}", "") for piece in pieces]


class ReadableCommand(_Readable, TyperCommand):
    """A command whose help fits the terminal."""


class ReadableGroup(_Readable, TyperGroup):
    """A group whose help fits the terminal."""
