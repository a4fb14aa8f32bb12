"""What a user types -> a path: the one place where `~` is expanded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from bertkit.errors import UsageError


def typed_path(typed: str | Path) -> Path:
    """Return the path that a user means: ``~`` and ``~name`` are homes, also where the shell has left them.

    Everything that is typed or written in a recipe passes here once, so that nothing behind it has to, and no library
    expands a path that bertkit took literally.

    Raises:
        UsageError: no such user.
    """
    path = Path(typed)
    # pathlib forgets the `./` that tells a folder called `~` from a home
    if not str(typed).startswith("~"):
        return path
    try:
        return path.expanduser()
    except RuntimeError:
        what = f"{typed}: {path.parts[0]} is the home of no user here"
        raise UsageError(what, f"write {Path.cwd() / path} for a folder of this name") from None


def _expand_home(typed: str) -> str:
    # a hub name stays as it is, to the letter
    return str(typed_path(typed)) if typed.startswith("~") else typed


Location = Annotated[str, AfterValidator(_expand_home)]
"""A key of a recipe that may be a path."""
