"""`bertkit version`."""

from __future__ import annotations

from bertkit.cli.options import JsonOption
from bertkit.cli.output import print_pairs, print_result

NAME = "version"
ORDER = 9
EXAMPLE = "bertkit version --json"


def command(json: JsonOption = False) -> None:
    """Print the versions of bertkit and of its main dependencies."""
    from bertkit.storage.runs import versions

    print_result({"versions": versions()}, lambda found: print_pairs(found["versions"]), as_json=json)
