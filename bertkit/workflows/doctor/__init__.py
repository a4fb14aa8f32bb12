"""Say what is wrong with this machine, or with the folder of a run: one finding per thing, with its figure and remedy.

The machine is looked at in `machine`, folders in `runs`, and the losses of a run in `curve`. `trial` kills a run.
"""

from __future__ import annotations

from dataclasses import dataclass

from bertkit.checks import Finding, Level
from bertkit.errors import BertkitError, DivergedError, ModelError, ResourceError, UnavailableError

MACHINE = "this machine"
_ERRORS: dict[str, type[BertkitError]] = {
    **dict.fromkeys(("packages", "device"), UnavailableError),
    **dict.fromkeys(("memory", "disks"), ResourceError),
    "files": ModelError,
    "training": DivergedError,
}
"""Group of findings -> the error that a fault in it ends a run with."""


@dataclass(frozen=True)
class Diagnosis:
    """What is good, doubtful or wrong."""

    subject: str
    """`MACHINE`, or the folder that was looked at."""
    findings: list[Finding]

    @property
    def error(self) -> BertkitError | None:
        """The first fault, as the error that it ends a run with; None where nothing would stop one."""
        faults = [finding for finding in self.findings if finding.level == "fail"]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return _ERRORS.get(faults[0].group, BertkitError)(f"{faults[0].text}{more}") if faults else None


def judge(group: str, name: str, text: str, *, warn: str = "", fail: str = "") -> Finding:
    """Make a finding that ends in its remedy: `fail` of what would stop a run, `warn` of what is doubtful, or none.

    >>> judge("disks", "space", "3 MB are free", fail="free some space").text
    '3 MB are free - free some space'
    """
    remedy = fail or warn
    level: Level = "fail" if fail else "warn" if warn else "good"
    return Finding(level, group, name, f"{text} - {remedy}" if remedy else text)
