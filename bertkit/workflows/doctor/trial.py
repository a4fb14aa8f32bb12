"""Kill a tiny run after a checkpoint, resume it, and compare its weights with those of an unbroken run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bertkit.checks import Finding
from bertkit.hardware.device import asked_device
from bertkit.progress import stage
from bertkit.storage.checkpoints import newest_whole
from bertkit.storage.fingerprints import file_fingerprint
from bertkit.workflows.doctor import judge

_RUN = "finetune cola --model demo --data demo --limit 200 --epochs 6 --set training.precision=fp32 --threads 1"
"""In one precision and with one thread: where a trial chose them, two runs might differ."""


def try_resume() -> Iterator[Finding]:
    """Train on made-up rows in a temporary folder: without a break, and killed and resumed; compare the weights."""
    with TemporaryDirectory(prefix="bertkit-doctor-") as temporary:
        whole, broken = Path(temporary, "whole"), Path(temporary, "broken")
        with stage("training without a break, and killed and resumed", total=1):
            fault = _finish(_command(whole))
            step = _kill(_command(broken), broken)
            fault = fault or _finish(_command(broken))
        if fault or not step:
            text = f"a tiny run fails: {fault or 'it ended before it could be killed'}"
            yield judge("trial", "resume", text, fail="see `bertkit finetune cola --smoke`")
            return
        files = (folder / "model.safetensors" for folder in (whole, broken))
        is_equal = len({*map(file_fingerprint, files)}) == 1
        text = f"a run that is killed after {step} and resumed ends with {'the same' if is_equal else 'other'} weights"
        yield judge("trial", "resume", text, fail="" if is_equal else "trust no resumed run on this machine and disk")


def _command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "bertkit", *_RUN.split(), "--device", asked_device(), "--output", str(folder)]


def _finish(command: Sequence[str]) -> str:
    """Run a command to its end; return the last line that it prints where it fails, and nothing where it does not."""
    ended = subprocess.run(command, capture_output=True, text=True)
    return (ended.stderr.strip().splitlines() or ["no message"])[-1] if ended.returncode else ""


def _kill(command: Sequence[str], folder: Path) -> str:
    """Kill a run once it has a whole checkpoint, and return the name of that; nothing where it ends before."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            newest, _ = newest_whole(folder)
            if newest is not None:
                process.kill()
                return newest.name
            time.sleep(0.02)
    return ""
