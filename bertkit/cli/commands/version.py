"""`bertkit version`."""

from __future__ import annotations

from bertkit.cli.output import print_pairs, print_result
from bertkit.storage import runs

ORDER = 63
EXAMPLE = "bertkit version --json"


def command() -> None:
    """Print the versions of bertkit and of its main dependencies."""
    print_result({"versions": runs.versions()}, lambda found: print_pairs(found["versions"]))
