"""`bertkit version`."""

from __future__ import annotations

from bertkit.cli.output import print_pairs, print_result

ORDER = 63
EXAMPLE = "bertkit version --json"


def command() -> None:
    """Print the versions of bertkit and of its main dependencies."""
    from bertkit.storage.runs import versions

    print_result({"versions": versions()}, lambda found: print_pairs(found["versions"]))
