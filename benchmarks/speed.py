"""Seconds per training step of bertkit and its peers; each engine is a live program, and they take turns.

    python -m benchmarks.speed cola stsb ner squad mlm --model DIR --data DIR

`mlm` compares masked language modeling with the Trainer of run_mlm. A round is repeated if other programs used the
machine. The engine `bertkit@FOLDER` runs the code of another checkout. Writes benchmarks/results/speed-TASK.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

from benchmarks.cases import Case, make_case
from benchmarks.harness import Report, log, read_options, split_checkout, start_program, take_turns, write_results
from benchmarks.load import Watch, get_shape, machine, training_flops

ENGINES = "peak,bertkit,hf-default,hf-dynamic,hf-tuned,bare"
MLM_ENGINES = "peak,bertkit,bertkit:fp32,hf,hf-bf16"
CYCLE = 50  # batches that bertkit and group_by_length sort by length together
EPOCHS = 1000  # so that no engine finishes
ROUNDS: dict[str, Any] = {
    "rounds": 5,
    "seconds": (4.0, "approximate seconds per round"),
    "steps": (int, "steps per round of every engine, instead of --seconds"),
    "warm_up": (4, "steps before the first round, after the first step"),
    "repeats": (4, "maximum repetitions of a round"),
}
"""Options of rounds."""


class Engine:
    """Live program that runs the requested steps."""

    def __init__(self, name: str, case: Any, folder: Path, threads: int, module: str = "benchmarks.engines") -> None:
        self.name, self.folder = name, folder
        folder.mkdir(parents=True)
        with (folder / "log.txt").open("w") as errors:
            engine, checkout = split_checkout(name)
            words = (module, engine, case.write(folder), folder)
            pipes = {"stdin": PIPE, "stdout": PIPE, "stderr": errors}
            self.program = start_program(words, threads, folder / "cache", checkout, text=True, **pipes)

    @cached_property
    def ready(self) -> float:
        """Wait until the engine can run its first step, and return the seconds since its start."""
        return float(self.read_report()["ready"])

    def run(self, steps: int) -> Report:
        """Run steps, and measure how many cores other programs use."""
        watch = Watch(self.program.pid, os.getpid())
        assert self.ready  # the first report of an engine
        assert self.program.stdin
        self.program.stdin.write(json.dumps({"steps": steps}) + "\n")
        self.program.stdin.flush()
        return {**self.read_report(), "steps": steps, "foreign": round(watch.foreign(), 3)}

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the program; its model is not needed."""
        self.program.kill()
        self.program.wait()

    def read_report(self) -> Report:
        """Wait for the next report."""
        assert self.program.stdout
        line = self.program.stdout.readline()
        if not line:
            raise SystemExit(f"the engine {self.name} ended:\n{(self.folder / 'log.txt').read_text()[-2000:]}")
        report: Report = json.loads(line)
        return report


def count_steps(seconds: float, step: float, *, is_padded: bool) -> int:
    """Compute how many steps a round of about `seconds` has.

    The count is a multiple of a fifth of a cycle, so that five rounds have complete cycles of short and long batches.
    If all rows are padded to one length, all steps cost the same, and a few are enough.

    >>> count_steps(4, 0.08, is_padded=False), count_steps(4, 0.9, is_padded=False), count_steps(4, 2.0, is_padded=True)
    (50, 10, 2)
    """
    steps = seconds / step
    if is_padded:
        return max(2, min(CYCLE, round(steps)))
    return min(CYCLE, max(1, round(steps / (CYCLE / 5))) * (CYCLE // 5))


def measure(case: Case, names: list[str], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Warm up, measure all engines in turns, and return every round of each engine."""
    reports: dict[str, Any] = {}
    runs: dict[str, Any] = {}
    with ExitStack() as stack:
        engines = [
            stack.enter_context(Engine(name, case, folder / str(index), options.threads))
            for index, name in enumerate(names)
        ]
        for engine, first, rest in warm_up(engines, options.warm_up):
            name, ready = engine.name, round(engine.ready, 2)
            is_padded = case.recipe == "mlm" or (name == "hf-default" and case.recipe != "ner")
            steps = count_steps(options.seconds, rest["seconds"] / options.warm_up, is_padded=is_padded)
            steps = options.steps or (1 if name == "peak" else steps)
            reports[name] = {"ready": ready, "first_step": round(first["seconds"], 3), "steps": steps}
            log(f"  {name}: ready in {ready} s, first step {first['seconds']:.2f} s, {steps} steps per round")
            runs[name] = partial(run_clean_round, engine, steps, options.foreign, options.repeats)
        rounds = take_turns(runs, options.rounds)
    return {name: {**report, "rounds": rounds[name]} for name, report in reports.items()}


def warm_up(engines: list[Engine], steps: int) -> Iterator[tuple[Engine, Report, Report]]:
    """Run the first step of each engine, and some more; skip compiled engines on a machine without a compiler."""
    for engine in engines:
        try:
            yield engine, engine.run(1), engine.run(steps)
        except SystemExit as error:
            if "compiled" not in engine.name:
                raise
            log(f"  {engine.name} is skipped: {error}")


def run_clean_round(engine: Engine, steps: int, foreign: float, repeats: int) -> Report:
    """Repeat a round while other programs use the machine; return the quietest round if none is clean."""
    rounds = []
    for index in range(repeats + 1):
        report = engine.run(steps)
        if report["foreign"] <= foreign:
            return {**report, "clean": True, "repeats": index}
        rounds.append(report)
        time.sleep(min(2.0, 0.2 * 2**index))
    best = min(rounds, key=lambda report: report["foreign"])
    log(f"    {engine.name}: no clean round of {repeats + 1}; other programs used {best['foreign']:.2f} cores")
    return {**best, "clean": False, "repeats": repeats}


def summarize(measured: dict[str, Any], shape: dict[str, int], peaks: dict[str, float]) -> Report:
    """Summarize the clean rounds of an engine, or all rounds if none is clean."""
    clean = [report for report in measured["rounds"] if report["clean"]] or measured["rounds"]
    total = {name: sum(report[name] for report in clean) for name in ("seconds", "tokens", "squares", "examples")}
    flops = training_flops(total["tokens"], total["squares"], **shape)
    steps = [report["seconds"] / report["steps"] for report in clean]
    rounds = [
        {name: round(value, 4) if isinstance(value, float) else value for name, value in report.items()}
        for report in measured["rounds"]
    ]
    return {
        **measured,
        "median_step": round(statistics.median(steps), 5),
        "tokens_per_second": round(total["tokens"] / total["seconds"], 1),
        "examples_per_second": round(total["examples"] / total["seconds"], 2),
        "gflops": round(flops / total["seconds"] / 1e9, 2),
        "share_of_peak": {dtype: round(flops / total["seconds"] / peak, 4) for dtype, peak in peaks.items()},
        "memory_mb": round(max(report["memory"] for report in clean)),
        "clean_rounds": sum(report["clean"] for report in rounds),
        "rounds": rounds,
    }


def summarize_all(measured: dict[str, Any], shape: dict[str, int]) -> dict[str, Any]:
    """Return the matrix rates (medians over rounds) and the summary of each engine."""
    rates = [report["rates"] for report in measured.get("peak", {}).get("rounds", [])]
    peaks = {dtype: statistics.median(rate[dtype] for rate in rates) for dtype in (rates[0] if rates else ())}
    engines = {name: summarize(reports, shape, peaks) for name, reports in measured.items() if name != "peak"}
    return {"peak_gflops": {dtype: round(peak / 1e9, 1) for dtype, peak in peaks.items()}, "engines": engines}


def measure_task(task: str, options: argparse.Namespace) -> Report:
    """Measure the engines in turns on a recipe."""
    sizes = {"limit": options.limit, "batch_size": options.batch_size, "max_length": options.max_length}
    case = replace(make_case(task, options.model, options.data, **sizes), epochs=EPOCHS)
    engines = options.engines or (MLM_ENGINES if task == "mlm" else ENGINES)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(case, engines.split(","), options, Path(folder))
    settings = case.load().training
    shape = get_shape(json.loads(Path(case.model, "config.json").read_text(encoding="utf-8")))
    return {
        "task": task,
        "model": shape,
        "settings": {"batch_size": settings.batch_size, "max_length": settings.max_length, "limit": case.limit},
        "foreign_limit": options.foreign,
        "minutes": round((time.monotonic() - start) / 60, 1),
        "machine": machine(options.threads),
        **summarize_all(measured, shape),
    }


def print_engines(title: str, report: Report) -> None:
    """Print a line per engine."""
    for name, summary in report["engines"].items():
        print(
            f"{title:6} {name:24} {1000 * summary['median_step']:9.1f} ms/step"
            f" {summary['tokens_per_second']:9.0f} tokens/s {summary['share_of_peak'].get('bf16', 0):6.1%}"
            f" {summary['memory_mb']:6} MB {summary['clean_rounds']}/{len(summary['rounds'])} clean",
            flush=True,
        )


def main() -> None:
    settings: dict[str, Any] = {"engines": ("", f"separated by commas (default: {ENGINES})")}
    settings |= {"batch_size": (int, "rows per step"), "max_length": (int, "tokens per row, or per block of mlm")}
    options = read_options(__doc__, "tasks+ model data limit threads foreign output", **settings, **ROUNDS)
    for task in options.tasks:
        log(f"{task}:")
        report = measure_task(task, options)
        write_results(report, options.output / f"speed-{task}.json")
        print_engines(task, report)


if __name__ == "__main__":
    main()
