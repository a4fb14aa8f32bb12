"""A warm process that forks one command after the other, so that a kill costs no imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


class Zygote:
    def __init__(self, cache: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent.parent / "zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "BERTKIT_CACHE": str(cache)},
        )

    def run(self, folder: Path, arguments: list[str], fault: dict | None = None) -> tuple[int, str]:
        out = folder / "out.txt"
        request = {"folder": str(folder), "arguments": arguments, "fault": fault, "out": str(out)}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        code = json.loads(self.process.stdout.readline())
        return code, out.read_text()


@pytest.fixture(scope="module")
def zygote(tmp_path_factory):
    warm = Zygote(tmp_path_factory.mktemp("cache"))
    yield warm
    warm.process.stdin.close()
    warm.process.stdout.close()
    warm.process.wait()
