"""`bertkit version`."""

from __future__ import annotations

from bertkit.cli.options import JsonOption


def version(json: JsonOption = False) -> None:
    """Print the versions of bertkit and of what a result depends on."""
    from bertkit.cli import show
    from bertkit.storage.runs import versions

    show.show_table("versions", versions(), as_json=json)
