"""Progress: what its implementations share."""

from __future__ import annotations

import inspect

import pytest

from bertkit.cli.progress import TerminalProgress
from bertkit.progress import SILENT, Progress, Silent


def test_silence_shows_nothing(capsys):
    SILENT.start("training", 3)
    SILENT.update(1, {"loss": 0.5})
    SILENT.finish()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", [name for name in vars(Progress) if not name.startswith("_")])
@pytest.mark.parametrize("implementation", [Silent, TerminalProgress])
def test_every_progress_takes_the_same_arguments(name, implementation):
    expected = inspect.signature(getattr(Progress, name))
    assert inspect.signature(getattr(implementation, name)) == expected
