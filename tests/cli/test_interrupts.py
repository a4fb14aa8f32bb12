"""Ctrl-C before a command has begun and after it has ended, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("when", ["before the imports", "after the command"])
def test_an_interrupt_at_either_end_of_a_command_is_told_in_one_line(when):
    stop = "import os; os.kill(os.getpid(), 2)"
    code = {
        "before the imports": f"from bertkit.cli.interrupts import end_on_interrupt; end_on_interrupt(); {stop}",
        "after the command": "import bertkit.__main__; from bertkit.cli import main, stdio\n"
        f"with stdio.interruptible():\n try:\n  {stop}\n except KeyboardInterrupt:\n  pass\n{stop}",
    }[when]
    # a process that was started in the background ignores the signal, and so do those that it starts
    code = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{code}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "error: stopped by Ctrl-C\n")
