"""Seconds of a training step, bertkit beside its peers: a live program for each engine, stepped in turns in one run.

    python -m benchmarks.speed cola stsb ner squad mlm --model DIR --data DIR

`mlm` is masked language modeling: bertkit, its whole head, and the Trainer as run_mlm sets it up. A round of an engine
in which other programs used the machine is repeated. The engine `bertkit@FOLDER` is bertkit as of another checkout, to
compare before and after in one run. Writes benchmarks/results/speed-TASK.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

from benchmarks.cases import Case, make_case
from benchmarks.harness import Report, read_options, say, split_checkout, start_program, take_turns, write_results
from benchmarks.load import Watch, machine, shape_of, training_flops
from bertkit.hardware.device import find_device

ENGINES = "peak,bertkit,hf-default,hf-dynamic,hf-tuned,bare"
MLM_ENGINES = "peak,bertkit,bertkit:whole-head,bertkit:fp32,hf,hf-bf16"
CYCLE = 50  # batches sorted by length together, by bertkit and by group_by_length alike: a round takes a whole share
EPOCHS = 1000  # so that no engine comes to the end; a step costs the same in the first epoch as in the last
ROUNDS: dict[str, Any] = {
    "rounds": 5,
    "seconds": (4.0, "a round's, about"),
    "steps": (int, "a round's, the same for all engines, instead of --seconds"),
    "warm_up": (4, "steps before the first round, after the very first"),
    "repeats": (4, "how often a round is repeated"),
}
"""Options of rounds."""


class Engine:
    """A live program that runs the steps it is asked for."""

    def __init__(self, name: str, case: Any, folder: Path, threads: int, module: str = "benchmarks.engines") -> None:
        self.name, self.folder = name, folder
        folder.mkdir(parents=True)
        with (folder / "log.txt").open("w") as log:
            engine, checkout = split_checkout(name)
            words, pipes = (module, engine, case.write(folder), folder), {"stdin": PIPE, "stdout": PIPE, "stderr": log}
            self.program = start_program(words, threads, folder / "cache", checkout, text=True, **pipes)

    @cached_property
    def ready(self) -> float:
        """Wait until it has come to its first step, and return the seconds that it took."""
        return float(self.read_answer()["ready"])

    def run(self, steps: int) -> Report:
        """Run `steps` steps, once it is ready, and measure how many cores other programs use meanwhile."""
        watch = Watch(self.program.pid, os.getpid())
        self.begin(steps)
        return {**self.read_answer(), "steps": steps, "foreign": round(watch.foreign(), 3)}

    def begin(self, steps: int) -> None:
        """Let it begin with some steps, once it is ready."""
        assert self.ready  # which is what it says first
        assert self.program.stdin
        self.program.stdin.write(json.dumps({"steps": steps}) + "\n")
        self.program.stdin.flush()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        """End the program at once; what it trained is of no use."""
        self.program.kill()
        self.program.wait()

    def read_answer(self) -> Report:
        """Wait for what it tells next."""
        assert self.program.stdout
        line = self.program.stdout.readline()
        if not line:
            raise SystemExit(f"the engine {self.name} ended:\n{(self.folder / 'log.txt').read_text()[-2000:]}")
        answer: Report = json.loads(line)
        return answer


def steps_for(seconds: float, step: float, *, padded: bool) -> int:
    """Compute how many steps a round of about `seconds` has.

    A multiple of a fifth of a cycle, at most one, so that five rounds hold whole cycles of short and long batches.
    Where every row is padded to the same length all steps are alike, and a few will do.

    >>> steps_for(4, 0.08, padded=False), steps_for(4, 0.9, padded=False), steps_for(4, 2.0, padded=True)
    (50, 10, 2)
    """
    steps = seconds / step
    if padded:
        return max(2, min(CYCLE, round(steps)))
    return min(CYCLE, max(1, round(steps / (CYCLE / 5))) * (CYCLE // 5))


def measure(case: Case, names: list[str], asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Warm up, let all engines take turns, and return every round of each."""
    warm: dict[str, Any] = {}
    sides: dict[str, Any] = {}
    with ExitStack() as stack:
        engines = [
            stack.enter_context(Engine(name, case, folder / str(number), asked.threads))
            for number, name in enumerate(names)
        ]
        for engine, first, rest in warm_up(engines, asked.warm_up):
            padded = case.has_equal_steps(engine.name)
            steps = steps_for(asked.seconds, rest["seconds"] / asked.warm_up, padded=padded)
            steps = asked.steps or (1 if engine.name == "peak" else steps)
            ready = round(engine.ready, 2)
            warm[engine.name] = {"ready": ready, "first_step": round(first["seconds"], 3), "steps": steps}
            say(f"  {engine.name}: ready in {ready} s, first step {first['seconds']:.2f} s, {steps} steps a round")
            sides[engine.name] = partial(clean_round, engine, steps, asked.foreign, asked.repeats)
        rounds = take_turns(sides, asked.rounds)
    return {name: {**warm[name], "rounds": rounds[name]} for name in sides}


def warm_up(engines: list[Engine], steps: int) -> list[tuple[Engine, Report, Report]]:
    """Run the first step of each engine, and some more; a machine with a GPU has cores for all of them at once."""
    if find_device().is_cpu:
        return [(engine, engine.run(1), engine.run(steps)) for engine in engines]
    answers: dict[Engine, list[Report]] = {engine: [] for engine in engines}
    for count in (1, steps):
        _try_each(answers, partial(Engine.begin, steps=count))
        _try_each(answers, lambda engine: answers[engine].append(engine.read_answer()))
    return [(engine, first, rest) for engine, (first, rest) in answers.items()]


def _try_each(engines: dict[Engine, Any], act: Callable[[Engine], None]) -> None:
    """Do something with each engine, and leave out those that end, as a Trainer that finds no compiler."""
    for engine in list(engines):
        try:
            act(engine)
        except SystemExit as ended:
            say(f"  {engine.name} is left out: {ended}")
            del engines[engine]


def clean_round(engine: Engine, steps: int, foreign: float, repeats: int) -> Report:
    """Repeat a round while other programs use the machine; after too many, keep the calmest, marked as not clean."""
    tries = []
    for number in range(repeats + 1):
        one_round = engine.run(steps)
        tries.append(one_round)
        if one_round["foreign"] <= foreign:
            return {**one_round, "clean": True, "repeats": number}
        time.sleep(min(2.0, 0.2 * 2**number))
    best = min(tries, key=lambda each: each["foreign"])
    say(f"    {engine.name}: no clean round in {repeats + 1} tries, {best['foreign']:.2f} cores were in use by others")
    return {**best, "clean": False, "repeats": repeats}


def summarize(measured: dict[str, Any], shape: dict[str, int], peaks: dict[str, float]) -> Report:
    """Summarize the clean rounds of an engine, or all of them where none is clean."""
    used = [each for each in measured["rounds"] if each["clean"]] or measured["rounds"]
    total = {name: sum(each[name] for each in used) for name in ("seconds", "tokens", "squares", "examples", "steps")}
    flops = training_flops(total["tokens"], total["squares"], **shape)
    steps = [each["seconds"] / each["steps"] for each in used]
    rounds = [
        {name: round(value, 4) if isinstance(value, float) else value for name, value in each.items()}
        for each in measured["rounds"]
    ]
    return {
        **measured,
        "median_step": round(statistics.median(steps), 5),
        "least_step": round(min(steps), 5),
        "tokens_per_second": round(total["tokens"] / total["seconds"], 1),
        "examples_per_second": round(total["examples"] / total["seconds"], 2),
        "tokens_per_step": round(total["tokens"] / total["steps"], 1),
        "gflops": round(flops / total["seconds"] / 1e9, 2),
        "share_of_peak": {dtype: round(flops / total["seconds"] / peak, 4) for dtype, peak in peaks.items()},
        "memory_mb": round(max(each["memory"] for each in used)),
        "clean_rounds": sum(each["clean"] for each in rounds),
        "rounds": rounds,
    }


def summarize_all(measured: dict[str, Any], shape: dict[str, int]) -> dict[str, Any]:
    """Return the matrix rates (medians over rounds) and the summary of each engine."""
    peaks: dict[str, float] = {}
    for each in measured.get("peak", {}).get("rounds", []):
        for dtype in each["rates"]:
            peaks[dtype] = statistics.median(one["rates"][dtype] for one in measured["peak"]["rounds"])
    engines = {name: summarize(each, shape, peaks) for name, each in measured.items() if name != "peak"}
    return {"peak_gflops": {dtype: round(peak / 1e9, 1) for dtype, peak in peaks.items()}, "engines": engines}


def measure_task(task: str, asked: argparse.Namespace) -> Report:
    """Let the engines take turns on a recipe, and return what each took."""
    sizes = {"limit": asked.limit, "batch_size": asked.batch_size, "max_length": asked.max_length}
    case = replace(make_case(task, asked.model, asked.data, **sizes), epochs=EPOCHS)
    engines = asked.engines or (MLM_ENGINES if task == "mlm" else ENGINES)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(case, engines.split(","), asked, Path(folder))
    settings = case.load().training
    shape = shape_of(json.loads(Path(case.model, "config.json").read_text(encoding="utf-8")))
    return {
        "task": task,
        "model": shape,
        "settings": {"batch_size": settings.batch_size, "max_length": settings.max_length, "limit": case.limit},
        "foreign_limit": asked.foreign,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "machine": machine(asked.threads),
        **summarize_all(measured, shape),
    }


def print_engines(title: str, report: Report) -> None:
    """Print a line per engine."""
    for name, each in report["engines"].items():
        print(
            f"{title:6} {name:24} {1000 * each['median_step']:9.1f} ms/step"
            f" {each['tokens_per_second']:9.0f} tokens/s {each['share_of_peak'].get('bf16', 0):6.1%}"
            f" {each['memory_mb']:6} MB {each['clean_rounds']}/{len(each['rounds'])} clean",
            flush=True,
        )


def main() -> None:
    own: dict[str, Any] = {"engines": ("", f"comma-separated; usual: {ENGINES}")}
    own |= {"batch_size": (int, "rows of a step"), "max_length": (int, "tokens of a row, or of a block of mlm")}
    asked = read_options(__doc__, "tasks+ model data limit threads foreign output", **own, **ROUNDS)
    for task in asked.tasks:
        say(f"{task}:")
        report = measure_task(task, asked)
        write_results(report, asked.output / f"speed-{task}.json")
        print_engines(task, report)


if __name__ == "__main__":
    main()
