"""Where the seconds of a whole program go, for a peer and for bertkit alike.

    python -m benchmarks.stages PARTS.json finetune cola ...

Runs the bertkit command that follows and writes the parts of its time to PARTS.json. Its functions are wrapped, not
changed: those of the task family, and the progress line, which hears of every step.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import BEGAN

Work = Callable[..., Any]


def began() -> float:
    """Return when this program was started, as the program that started it noted."""
    return float(os.environ.get(BEGAN, time.monotonic()))


class Stages:
    """Adds up seconds by part; a part inside another one is subtracted from it."""

    def __init__(self, start: float) -> None:
        self.start = self.last = start
        self.seconds: dict[str, float] = {}
        self.steps: list[float] = []
        self.inner = 0.0

    def add(self, name: str, seconds: float) -> None:
        """Count seconds as `name`."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def end(self, name: str) -> None:
        """Count what has passed since the last part as `name`."""
        now = time.monotonic()
        self.add(name, now - self.last)
        self.last = now

    def end_first(self, name: str, work: Work) -> Work:
        """Count what passes until `work` is first called, and was not counted for another part, as `name`."""

        @functools.wraps(work)
        def run(*arguments: Any, **keywords: Any) -> Any:
            if name not in self.seconds:
                self.add(name, time.monotonic() - self.start - sum(self.seconds.values()))
            return work(*arguments, **keywords)

        return run

    def timed(self, name: str, work: Work) -> Work:
        """Count the calls of `work` as `name`."""

        @functools.wraps(work)
        def run(*arguments: Any, **keywords: Any) -> Any:
            start, outer, self.inner = time.monotonic(), self.inner, 0.0
            try:
                return work(*arguments, **keywords)
            finally:
                passed = time.monotonic() - start
                self.add(name, passed - self.inner)
                self.inner = outer + passed
                self.last = time.monotonic()

        return run

    def start_steps(self) -> None:
        """Note that a step begins now."""
        self.last = time.monotonic()

    def step(self) -> None:
        """Note that a step has ended; what other parts have counted since the last one is left out."""
        now = time.monotonic()
        self.steps.append(now - self.last)
        self.last = now

    def parts(self) -> dict[str, Any]:
        """Return the seconds of every part; `rest` is what belongs to none."""
        seconds = dict(self.seconds)
        if self.steps:
            first, *others = self.steps
            seconds |= {"first step": first, "other steps": sum(others)}
        seconds["rest"] = time.monotonic() - self.start - sum(seconds.values())
        rounded = {name: round(value, 3) for name, value in seconds.items()}
        steady = round(statistics.median(self.steps[1:]), 4) if len(self.steps) > 1 else None
        return {**rounded, "steps": len(self.steps), "steady_step": steady}


def watch(stages: Stages) -> None:
    """Wrap the functions that are timed; they behave as before."""
    from bertkit import tasks
    from bertkit.cli import main, progress

    load_task = tasks.load_task
    names = {"encode": "tokens", "load_model": "model", "decode": "decoding"}

    def load(recipe: Any) -> Any:
        task = load_task(recipe)
        for name, part in names.items():
            work = getattr(task, name)
            if not hasattr(work, "__wrapped__"):
                setattr(task, name, stages.timed(part, work))
        task.load_model = stages.end_first("import and rows", task.load_model)
        return task

    class Clocked(progress.TerminalProgress):
        """The progress line, which passes on to the stages what it shows."""

        def start(self, what: str, total: int, done: int = 0) -> None:
            super().start(what, total, done)
            if what == "training":
                stages.start_steps()
            self.began = time.monotonic()

        def update(self, done: int, figures: dict[str, Any]) -> None:
            super().update(done, figures)
            if self.outer[-1][0] == "training":
                stages.step()

        def finish(self) -> None:
            ended = self.outer[-1][0] if self.outer else ""
            super().finish()
            if ended and ended != "training":
                stages.add("evaluation", time.monotonic() - self.began)
                stages.start_steps()

    tasks.load_task = load  # type: ignore[assignment]
    main.TerminalProgress = Clocked  # type: ignore[misc]


if __name__ == "__main__":
    parts, *words = sys.argv[1:]
    counted = Stages(began())
    watch(counted)
    from bertkit.cli.main import main

    sys.argv = ["bertkit", *words]
    try:
        main()
    finally:
        Path(parts).write_text(json.dumps(counted.parts()), encoding="utf-8")
