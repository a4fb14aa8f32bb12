"""`bertkit doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bertkit.cli.commands.check import count_levels, print_groups, print_levels
from bertkit.cli.options import argument, flag
from bertkit.cli.output import print_line, print_result, print_text
from bertkit.errors import UsageError

if TYPE_CHECKING:
    from bertkit.workflows.doctor import Diagnosis

ORDER = 64
EXAMPLE = "bertkit doctor"


def command(
    folder: Annotated[
        Path | None,
        argument("Run, folder of runs, index, exported folder or package to read in place of the machine.", "RUN"),
    ] = None,
    deep: Annotated[
        bool, flag("--deep", "Also kill a tiny run, resume it, and compare it with an unbroken one.")
    ] = False,
) -> None:
    """Say what is wrong with this machine, or with a run, and what to do about it.

    Looks at packages, device, memory, disks, hub and cache; of a run, at what it has stored: nothing is computed again.
    The exit code is not 0 where something is a fail: 5 for packages and device, 6 for memory and disks, 4 for the
    files of a run, 7 for a run that diverged, and 1 for --deep.
    """
    from bertkit.workflows.doctor import MACHINE, Diagnosis

    if folder is not None and deep:
        raise UsageError("--deep with RUN", "it tries this machine: leave one of them out")
    if folder is not None:
        from bertkit.workflows.doctor.runs import examine_folder

        diagnosis = Diagnosis(str(folder), examine_folder(folder))
    else:
        from bertkit.workflows.doctor.machine import examine_machine
        from bertkit.workflows.doctor.trial import try_resume

        diagnosis = Diagnosis(MACHINE, [*examine_machine(), *(try_resume() if deep else ())])
    record = {**vars(diagnosis), "counts": count_levels(diagnosis.findings)}
    print_result(record, lambda _: _print_diagnosis(diagnosis), error=diagnosis.error)


def _print_diagnosis(diagnosis: Diagnosis) -> None:
    print_text(diagnosis.subject)
    print_groups(diagnosis.findings, {finding.group: finding.group.capitalize() for finding in diagnosis.findings})
    print_line()
    print_levels(diagnosis.findings)
