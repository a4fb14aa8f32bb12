"""Ctrl-C before a command has begun, after it has ended, and where a library loses it, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("when", ["before the imports", "where it cannot be raised", "after the command"])
def test_an_interrupt_outside_of_a_command_is_told_in_one_line(when):
    stop = "import os; os.kill(os.getpid(), 2)"
    code = {
        "before the imports": f"from bertkit.cli.interrupts import end_on_interrupt; end_on_interrupt(); {stop}",
        "where it cannot be raised": "import bertkit.__main__; from bertkit.cli import main, terminal\n"
        "class Thing:\n def __del__(self):\n"
        f"  {stop}\nwith terminal.interruptible():\n del [Thing()][0]\n print('lost')",
        "after the command": "import bertkit.__main__; from bertkit.cli import main, terminal\n"
        f"with terminal.interruptible():\n try:\n  {stop}\n except KeyboardInterrupt:\n  pass\n{stop}",
    }[when]
    # a process that was started in the background ignores the signal, and so do those that it starts
    code = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{code}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: stopped by Ctrl-C\n")


def test_an_interrupt_while_python_ends_does_not_change_how_the_command_ended():
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import bertkit.__main__
class Last:
    def __del__(self, kill=os.kill, pid=os.getpid()):
        kill(pid, 2)  # once Python has reset its handlers
sys.modules["last"] = Last()
sys.argv = ["bertkit", "encoders"]
bertkit.__main__.main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
