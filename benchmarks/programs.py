"""Run a program from start to end and measure what it took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, Case, environment
from benchmarks.load import Watch
from benchmarks.stages import BEGAN


def run_program(command: list[str], threads: int, cache: Path) -> dict[str, Any]:
    """Return wall seconds, peak memory, the cores that others used meanwhile, and the JSON of the last line printed.

    Args:
        command: what follows `python -m`.
        threads: that the program computes with.
        cache: folder for what `datasets` keeps; an empty one makes the program read and tokenize by itself.
    """
    began, watch = time.monotonic(), Watch(os.getpid())
    variables = environment(threads, HF_DATASETS_CACHE=str(cache), **{BEGAN: str(began)})
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as printed:
        program = subprocess.Popen(
            [sys.executable, "-m", *command], stdout=printed, stderr=errors, cwd=ROOT, env=variables
        )
        _, status, usage = os.wait4(program.pid, 0)
        program.returncode = os.waitstatus_to_exitcode(status)
        seconds, others = time.monotonic() - began, watch.foreign()
        printed.seek(0)
        errors.seek(0)
        if program.returncode:
            raise SystemExit(f"python -m {' '.join(command)}\nended with {program.returncode}: {errors.read()[-3000:]}")
        lines = printed.read().strip().splitlines()
    return {
        "seconds": round(seconds, 2),
        "memory_mb": round(usage.ru_maxrss / 1024),
        "foreign": round(max(0.0, others - (usage.ru_utime + usage.ru_stime) / seconds), 3),
        "printed": json.loads(lines[-1]) if lines else {},
    }


def finetune(engine: str, case: Case, folder: Path, threads: int, *options: str) -> dict[str, Any]:
    """Train and score with one engine in an empty folder; return what it took, its scores and the parts of its time.

    Args:
        engine: `bertkit`, `bertkit:KEY=VALUE;KEY=VALUE`, or a variant of `benchmarks.peers`.
        case: what is trained.
        folder: where everything is written.
        threads: that it computes with.
        options: for a peer, further options of `benchmarks.peers`.
    """
    folder.mkdir(parents=True)
    name, _, changes = engine.partition(":")
    if name == "bertkit":
        more = [word for change in changes.split(";") if change for word in ("--set", change)]
        parts = folder / "parts.json"
        command = ["benchmarks.stages", str(parts), "finetune", case.recipe, *case.options(), *more]
        found = run_program([*command, "--output", str(folder / "run"), "--json"], threads, folder / "cache")
        scores = found.pop("printed")["results"][0]["scores"]
        return {**found, "scores": scores, "stages": json.loads(parts.read_text(encoding="utf-8"))}
    file = folder / "case.json"
    file.write_text(case.as_json(), encoding="utf-8")
    found = run_program(["benchmarks.peers", name, str(file), str(folder / "run"), *options], threads, folder / "cache")
    printed = found.pop("printed")
    return {**found, "scores": printed["scores"], "stages": printed["stages"]}
