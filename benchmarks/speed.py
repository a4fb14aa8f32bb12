"""Seconds of a training step, bertkit beside its peers: a live program for each engine, stepped in turns in one run.

    python -m benchmarks.speed cola stsb ner squad --model DIR --data DIR

A round of an engine in which other programs used the machine is repeated. Writes benchmarks/results/speed-TASK.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, add_options, environment, make_case, write_results
from benchmarks.load import Watch, machine, shape_of, training_flops
from benchmarks.stages import BEGAN

ENGINES = "peak,bertkit,hf-default,hf-dynamic,hf-tuned,bare"
CYCLE = 50  # batches sorted by length together, by bertkit and by group_by_length alike: a round takes a whole share
EPOCHS = 1000  # so that no engine comes to the end; a step costs the same in the first epoch as in the last
Round = dict[str, Any]


class Engine:
    """A live program that runs the steps it is asked for."""

    def __init__(self, name: str, case: Any, folder: Path, threads: int, module: str = "benchmarks.engines") -> None:
        self.name, self.folder = name, folder
        folder.mkdir(parents=True)
        file = folder / "case.json"
        file.write_text(case.as_json(), encoding="utf-8")
        more = {BEGAN: str(time.monotonic()), "HF_DATASETS_CACHE": str(folder / "cache")}
        with (folder / "log.txt").open("w") as log:
            self.program = subprocess.Popen(
                [sys.executable, "-m", module, name, str(file), str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=environment(threads, **more),
            )
        self.ready = self._answer()["ready"]

    def run(self, steps: int) -> Round:
        """Run `steps` steps, and measure how many cores other programs use meanwhile."""
        watch = Watch(self.program.pid, os.getpid())
        assert self.program.stdin
        self.program.stdin.write(json.dumps({"steps": steps}) + "\n")
        self.program.stdin.flush()
        answer = self._answer()
        return {**answer, "steps": steps, "foreign": round(watch.foreign(), 3)}

    def end(self) -> None:
        """End the program at once; what it trained is of no use."""
        self.program.kill()
        self.program.wait()

    def _answer(self) -> Round:
        assert self.program.stdout
        line = self.program.stdout.readline()
        if not line:
            tail = (self.folder / "log.txt").read_text()[-2000:]
            raise SystemExit(f"the engine {self.name} ended:\n{tail}")
        answer: Round = json.loads(line)
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


def measure(
    case: Any, names: list[str], arguments: argparse.Namespace, folder: Path, module: str = "benchmarks.engines"
) -> dict[str, Any]:
    """Warm up, let all engines take turns, and return every round of each."""
    engines: dict[str, Engine] = {}
    warm: dict[str, Any] = {}
    rounds: dict[str, list[Round]] = {name: [] for name in names}
    try:
        for number, name in enumerate(names):
            say(f"  starting {name}")
            engines[name] = Engine(name, case, folder / str(number), arguments.threads, module)
        for name, engine in engines.items():
            first, rest = engine.run(1), engine.run(arguments.warm_up)
            step = rest["seconds"] / arguments.warm_up
            padded = case.has_equal_steps(name)
            steps = arguments.steps or (1 if name == "peak" else steps_for(arguments.seconds, step, padded=padded))
            warm[name] = {"ready": round(engine.ready, 2), "first_step": round(first["seconds"], 3), "steps": steps}
            say(f"  {name}: ready in {engine.ready:.1f} s, first step {first['seconds']:.2f} s, {steps} steps a round")
        for number in range(arguments.rounds):
            for name, engine in engines.items():
                one_round = clean_round(engine, warm[name]["steps"], arguments.foreign, arguments.repeats)
                rounds[name].append(one_round)
            say(f"  round {number + 1} of {arguments.rounds} done")
    finally:
        for engine in engines.values():
            engine.end()
    return {name: {**warm[name], "rounds": rounds[name]} for name in names}


def clean_round(engine: Engine, steps: int, foreign: float, repeats: int) -> Round:
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


def summarize(measured: dict[str, Any], shape: dict[str, int], peaks: dict[str, float]) -> dict[str, Any]:
    """Summarize the clean rounds of an engine, or all of them where none is clean."""
    clean = [each for each in measured["rounds"] if each["clean"]]
    used = clean or measured["rounds"]
    total = {name: sum(each[name] for each in used) for name in ("seconds", "tokens", "squares", "examples", "steps")}
    flops = training_flops(total["tokens"], total["squares"], **shape)
    steps = [each["seconds"] / each["steps"] for each in used]
    return {
        **{name: value for name, value in measured.items() if name != "rounds"},
        "median_step": round(statistics.median(steps), 5),
        "least_step": round(min(steps), 5),
        "tokens_per_second": round(total["tokens"] / total["seconds"], 1),
        "examples_per_second": round(total["examples"] / total["seconds"], 2),
        "tokens_per_step": round(total["tokens"] / total["steps"], 1),
        "gflops": round(flops / total["seconds"] / 1e9, 2),
        "share_of_peak": {dtype: round(flops / total["seconds"] / peak, 4) for dtype, peak in peaks.items()},
        "memory_mb": round(max(each["memory"] for each in used)),
        "clean_rounds": len(clean),
        "rounds": [
            {k: round(v, 4) if isinstance(v, float) else v for k, v in each.items()} for each in measured["rounds"]
        ],
    }


def summarize_all(measured: dict[str, Any], shape: dict[str, int]) -> dict[str, Any]:
    """Return the matrix rates (medians over rounds) and the summary of each engine."""
    peaks: dict[str, float] = {}
    for each in measured.get("peak", {}).get("rounds", []):
        for dtype in each["rates"]:
            peaks[dtype] = statistics.median(one["rates"][dtype] for one in measured["peak"]["rounds"])
    engines = {name: summarize(each, shape, peaks) for name, each in measured.items() if name != "peak"}
    return {"peak_gflops": {dtype: round(peak / 1e9, 1) for dtype, peak in peaks.items()}, "engines": engines}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def add_round_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of rounds."""
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="a round's, about")
    parser.add_argument("--steps", type=int, help="a round's, the same for all engines, instead of --seconds")
    parser.add_argument("--warm-up", type=int, default=4, help="steps before the first round, after the very first")
    parser.add_argument("--foreign", type=float, default=0.06, help="cores that others may use in a clean round")
    parser.add_argument("--repeats", type=int, default=4, help="how often a round is repeated")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+", help="recipes: cola stsb ner squad ...")
    add_options(parser)
    parser.add_argument("--engines", default=ENGINES, help=f"comma-separated; usual: {ENGINES}")
    add_round_options(parser)
    arguments = parser.parse_args()
    for task in arguments.tasks:
        say(f"{task}:")
        case = replace(make_case(task, arguments.model, arguments.data, limit=arguments.limit), epochs=EPOCHS)
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            measured = measure(case, arguments.engines.split(","), arguments, Path(folder))
        settings = case.load().training
        shape = shape_of(json.loads(Path(case.model, "config.json").read_text(encoding="utf-8")))
        report = {
            "task": task,
            "model": shape,
            "settings": {"batch_size": settings.batch_size, "max_length": settings.max_length, "limit": case.limit},
            "foreign_limit": arguments.foreign,
            "minutes": round((time.monotonic() - began) / 60, 1),
            "machine": machine(arguments.threads),
            **summarize_all(measured, shape),
        }
        write_results(report, arguments.output / f"speed-{task}.json")
        show(report)


def show(report: dict[str, Any]) -> None:
    """Print one line per engine."""
    for name, each in report["engines"].items():
        share = each["share_of_peak"].get("bf16", 0)
        print(
            f"{report['task']:6} {name:24} {1000 * each['median_step']:9.1f} ms/step"
            f" {each['tokens_per_second']:9.0f} tokens/s {100 * share:5.1f} % {each['memory_mb']:6} MB"
            f" {each['clean_rounds']}/{len(each['rounds'])} clean",
            flush=True,
        )


if __name__ == "__main__":
    main()
