"""Commands that are killed in the middle: a warm process forks one after the other, so that none pays for imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from safetensors.torch import load_file


class Zygote:
    def __init__(self, cache: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "BERTKIT_CACHE": str(cache)},
        )

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def run(self, folder: Path, arguments: list[str], fault: dict | None = None) -> tuple[int, str]:
        out = folder / "out.txt"
        request = {"folder": str(folder), "arguments": arguments, "fault": fault, "out": str(out)}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        code = json.loads(self.process.stdout.readline())
        return code, out.read_text()


def weights_of(run: Path) -> dict[str, list]:
    return {name: tensor.tolist() for name, tensor in load_file(run / "model.safetensors").items()}


def losses_of(run: Path) -> list[dict]:
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in entry.items() if "runtime" not in name} for entry in entries]


def check_kill(zygote, make_folder, command: list[str], fault: dict) -> None:
    """Run a command whole, and once more with a kill in between: both must end alike."""
    whole, broken = make_folder("whole"), make_folder("broken")
    code, text = zygote.run(whole, command)
    assert code == 0, text
    assert zygote.run(broken, command, fault)[0] == -9
    code, text = zygote.run(broken, command)
    assert code == 0, text
    assert weights_of(broken / "run") == weights_of(whole / "run")
    assert losses_of(broken / "run") == losses_of(whole / "run")
    results = [json.loads((folder / "run" / "run.json").read_text())["result"] for folder in (whole, broken)]
    assert results[0]["scores"] == results[1]["scores"]
