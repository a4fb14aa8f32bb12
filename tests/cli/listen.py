"""Runs commands in children of one process, and sorts what they print: `python -m tests.cli.listen`.

Reads a JSON list of a line per command: its arguments, and a folder. The streams of a command then hold what bertkit
has not written itself: lines of libraries, whether they print them in Python or below it. What bertkit has written is
in `out.txt` and `err.txt` of the folder.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

BETWEEN = {"click", "contextlib", "logging", "rich", "tests", "typer"}  # which only pass on what another module says


class Sorted:
    """A stream that takes what bertkit writes to a file, and passes on what anything else writes."""

    def __init__(self, stream: Any, file: Path) -> None:
        self.stream, self.own = stream, file.open("w", encoding="utf-8")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        frame = sys._getframe(1)
        while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
            frame = frame.f_back
        is_own = frame.f_globals.get("__name__", "").partition(".")[0] == "bertkit"
        stream = self.own if is_own else self.stream
        stream.write(text)
        stream.flush()
        return len(text)


def run(arguments: list[str], folder: Path) -> None:
    """Run a command, whose streams are files of a folder."""
    from bertkit.cli import main, terminal

    os.chdir(folder)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / f"{name}.txt", os.O_WRONLY | os.O_CREAT), number)
    prepare = terminal.prepare

    def prepare_and_sort() -> None:
        prepare()
        sys.stdout, sys.stderr = Sorted(sys.stdout, folder / "out.txt"), Sorted(sys.stderr, folder / "err.txt")

    terminal.prepare = prepare_and_sort
    sys.argv = ["bertkit", *arguments]
    main.main()


if __name__ == "__main__":
    import torch  # noqa: F401
    import transformers  # noqa: F401

    import bertkit.training.fit
    import bertkit.workflows.finetune  # noqa: F401

    for arguments, folder in json.load(sys.stdin):
        child = os.fork()
        if not child:
            run(arguments, Path(folder))
        Path(folder, "code.txt").write_text(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
