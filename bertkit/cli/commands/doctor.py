"""`bertkit doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bertkit.cli.commands.check import count_levels, print_groups, print_levels
from bertkit.cli.options import argument
from bertkit.cli.output import print_line, print_result, print_text

if TYPE_CHECKING:
    from bertkit.workflows.doctor import Diagnosis

ORDER = 64
EXAMPLE = "bertkit doctor"


def command(
    folder: Annotated[
        Path | None,
        argument("Run, folder of runs, index, export or package to diagnose, instead of the machine.", "RUN"),
    ] = None,
) -> None:
    """Diagnose this machine or a run, and suggest fixes.

    Checks packages, device, memory, disks and the Hub, or the stored files of a run. After a `fail`, the exit code is
    5 for packages and device, 6 for memory and disks, 4 for the files of a run, and 7 for a run that diverged.
    """
    from bertkit.workflows.doctor import MACHINE, Diagnosis, examine_folder, examine_machine

    if folder is None:
        diagnosis = Diagnosis(MACHINE, examine_machine())
    else:
        diagnosis = Diagnosis(str(folder), examine_folder(folder))
    record = {**vars(diagnosis), "counts": count_levels(diagnosis.findings)}
    print_result(record, lambda _: _print_diagnosis(diagnosis), error=diagnosis.error)


def _print_diagnosis(diagnosis: Diagnosis) -> None:
    print_text(diagnosis.subject)
    print_groups(diagnosis.findings, {finding.group: finding.group.capitalize() for finding in diagnosis.findings})
    print_line()
    print_levels(diagnosis.findings)
