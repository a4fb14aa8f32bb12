"""Code that all measurements share: options, files of results, programs in turns, and tables."""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.load import Watch
from bertkit.storage.files import split_lines

Report = dict[str, Any]

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
START = "BENCHMARK_BEGAN"  # environment variable: time.monotonic() at the start of the program

# --- Options ---

SHARED: dict[str, dict[str, Any]] = {
    "model": {"type": Path, "required": True, "help": "folder of the encoder that all engines start from"},
    "data": {"type": Path, "required": True, "help": "folder with cola, stsb, ..., conll2003, squad"},
    "limit": {"type": int, "help": "maximum rows per split"},
    "threads": {"type": int, "default": os.cpu_count(), "help": "threads per program (default: all cores)"},
    "foreign": {"type": float, "default": 0.06, "help": "cores that other programs may use in a clean round"},
    "output": {"type": Path, "default": RESULTS, "help": "folder of the results"},
}


def read_options(doc: str | None, shared: str, **options: Any) -> argparse.Namespace:
    """Parse the command line of a script.

    Args:
        doc: Docstring of the script, which is its help.
        shared: Names of `SHARED` (`NAME?` is optional), and of positional arguments (`NAME+` takes several).
        options: Further options by name. Each is its default, or (default, help). A list takes several values, a
            mapping some of its keys, and a type has no default.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for word in shared.split():
        name = word.rstrip("+?")
        if name not in SHARED:
            parser.add_argument(name, nargs="+" if word.endswith("+") else None)
        else:
            optional = {"required": False} if word.endswith("?") else {}
            parser.add_argument(f"--{name}", **{**SHARED[name], **optional})
    for name, option in options.items():
        default, message = option if isinstance(option, tuple) else (option, None)
        parser.add_argument(f"--{name.replace('_', '-')}", help=message, **_get_keywords(default))
    return parser.parse_args()


def _get_keywords(default: Any) -> dict[str, Any]:
    if isinstance(default, bool):
        return {"action": argparse.BooleanOptionalAction, "default": default}
    if isinstance(default, Mapping):
        return {"nargs": "+", "choices": list(default), "default": list(default)}
    if isinstance(default, list):
        is_type = callable(default[0])
        value_type = default[0] if is_type else type(default[0])
        return {"nargs": "*", "type": value_type, "default": [] if is_type else default}
    return {"type": default} if callable(default) else {"type": type(default), "default": default}


# --- Files ---


def read_lines(file: Path) -> list[Report]:
    """Read lines of JSON; an incomplete line is skipped, and a missing file has no lines."""
    lines = []
    for line in split_lines(file.read_text(encoding="utf-8")) if file.exists() else ():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return lines


def find_line(file: Path, identity: Mapping[str, Any]) -> Report | None:
    """Return the first recorded line with these values, or None if no line has them."""
    return next((line for line in read_lines(file) if identity.items() <= line.items()), None)


def add_line(file: Path, line: Report) -> Report:
    """Append a line of JSON to a file, log it, and return it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
    log(json.dumps(line))
    return line


def measure_once(file: Path, identity: Report, measure: Callable[[], Report]) -> Report:
    """Return the recorded line with this identity, or measure it and append it.

    The same command resumes after a stop. Remove old lines after a change of bertkit.
    """
    return find_line(file, identity) or add_line(file, {**identity, **measure()})


def write_rows(rows: Iterable[Mapping[str, Any]], file: Path) -> None:
    """Write rows as lines of JSON."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_results(report: Report, file: Path) -> None:
    """Write a report as readable JSON: each innermost record is one line."""
    text = re.sub(r"[{\[][^{}\[\]]*[}\]]", lambda match: re.sub(r"\n *", " ", match[0]), json.dumps(report, indent=1))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n", encoding="utf-8")


def read_column(file: Path, name: str) -> list[Any]:
    """Return the values of a column of a Parquet file."""
    from pyarrow import parquet

    values: list[Any] = parquet.read_table(file, columns=[name])[name].to_pylist()
    return values


# --- Programs ---


def split_checkout(engine: str) -> tuple[str, Path]:
    """Return the name of an engine and its checkout: `bertkit@FOLDER` runs the code of that folder.

    >>> split_checkout("bertkit@/old:training.unpad=false"), split_checkout("bertkit@/old bf16")
    (('bertkit:training.unpad=false', PosixPath('/old')), ('bertkit bf16', PosixPath('/old')))
    """
    match = re.fullmatch(r"bertkit@([^: ]+)(.*)", engine)
    return (f"bertkit{match[2]}", Path(match[1]).resolve()) if match else (engine, ROOT)


def make_environment(threads: int | None, checkout: Path = ROOT, **more: str) -> dict[str, str]:
    """Return the environment of a measured program: offline, with a number of threads if it is given.

    Settings of OpenMP are removed. By default, threads of libgomp sleep after some milliseconds, so an engine between
    its turns takes no time from the others.
    """
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "KMP_", "GOMP_", "MKL_"))
    }
    fixed = {
        **({"OMP_NUM_THREADS": str(threads)} if threads else {}),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(checkout), os.environ.get("PYTHONPATH")))),
        "PYTHONUNBUFFERED": "1",
        START: str(time.monotonic()),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    return {**variables, **fixed, **more}


def seconds_since_start() -> float:
    """Return the seconds since this program was started by `start_program`, else 0."""
    now = time.monotonic()
    return now - float(os.environ.get(START, now))


def start_program(
    words: Iterable[object], threads: int | None, cache: Path, checkout: Path = ROOT, **options: Any
) -> subprocess.Popen[Any]:
    """Start `python -m WORDS` of a checkout with its own cache for `datasets`; the options belong to `Popen`."""
    command = [sys.executable, "-P", "-m", *map(str, words)]  # -P: do not import from the working directory
    environment = make_environment(threads, checkout, HF_DATASETS_CACHE=str(cache))
    return subprocess.Popen(command, env=environment, **options)


def run_program(*words: object, threads: int | None = 1) -> Report:
    """Run `python -m WORDS`, and return its cost and the JSON in its last line.

    The cost is wall and processor seconds, peak memory in MB, and the mean cores that other programs used. The cache of
    `datasets` is empty, so the program tokenizes.
    """
    start, watch = time.monotonic(), Watch(os.getpid())
    with (
        tempfile.TemporaryFile("w+") as errors,
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryDirectory() as cache,
    ):
        program = start_program(words, threads, Path(cache), stdout=output, stderr=errors)
        _, status, usage = os.wait4(program.pid, 0)
        program.returncode = os.waitstatus_to_exitcode(status)
        seconds, cores, processor = time.monotonic() - start, watch.foreign(), usage.ru_utime + usage.ru_stime
        output.seek(0)
        errors.seek(0)
        if program.returncode:
            raise SystemExit(f"{' '.join(map(str, words))}\nexit code {program.returncode}: {errors.read()[-3000:]}")
        lines = output.read().strip().splitlines()
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(processor, 2),
        "memory_mb": round(usage.ru_maxrss / 1024),
        "foreign": round(max(0.0, cores - processor / seconds), 3),
        "printed": json.loads(lines[-1]) if lines else {},
    }


def run_bertkit(*words: object, threads: int = 1) -> None:
    """Run a command of bertkit."""
    run_program("bertkit", *words, "--json", threads=threads)


def take_turns(engines: Mapping[str, Callable[[], Report]], rounds: int) -> dict[str, list[Report]]:
    """Measure every engine in every round, and return the reports per engine."""
    runs: dict[str, list[Report]] = {name: [] for name in engines}
    for index in range(rounds):
        for name, measure in engines.items():
            report = measure()
            runs[name].append(report)
            cost = f"{report['seconds']:.2f} s, other programs used {report.get('foreign', 0):.2f} cores"
            log(f"  round {index + 1} of {rounds}, {name}: {cost}")
    return runs


def choose_clean(rounds: Sequence[Report], foreign: float) -> list[Report]:
    """Return the rounds in which other programs used at most `foreign` cores, or all rounds if none is clean."""
    return [report for report in rounds if report["foreign"] <= foreign] or list(rounds)


def summarize_runs(runs: Sequence[Report], foreign: float) -> Report:
    """Return the median seconds and the peak memory of the clean runs, their number, and the time of each run."""
    clean = choose_clean(runs, foreign)
    return {
        "seconds": round(statistics.median(run["seconds"] for run in clean), 3),
        "memory_mb": max(run["memory_mb"] for run in clean),
        "clean_runs": sum(run["foreign"] <= foreign for run in runs),
        "runs": [{name: round(run[name], 3) for name in ("seconds", "foreign")} for run in runs],
    }


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# --- Tables ---


def make_table(columns: Mapping[str, Any] | Sequence[str], items: Iterable[Any], align: str = "") -> str:
    """Build a Markdown table with a row per item.

    Args:
        columns: Format or function of a cell, by title; or only titles, if the items are sequences of cells.
        items: Records, dicts, or sequences of cells.
        align: `l` or `r` per column; by default, only the first column is left-aligned.

    >>> print(make_table({"engine": "{name}", "s": "{seconds[0]:.1f}"}, [{"name": "a", "seconds": [2]}]))
    | engine | s |
    |---|---:|
    | a | 2.0 |
    """
    rules = {"l": "---", "r": "---:"}
    lines = [f"| {' | '.join(columns)} |"]
    lines.append(f"|{'|'.join(rules[letter] for letter in align or 'l' + 'r' * (len(columns) - 1))}|")
    for item in items:
        if isinstance(columns, Mapping):
            item = [cell.format_map(item) if isinstance(cell, str) else cell(item) for cell in columns.values()]
        lines.append(f"| {' | '.join(map(str, item))} |")
    return "\n".join(lines)


def with_names(records: Mapping[str, Mapping[str, Any]]) -> list[Report]:
    """Return records with their keys as `name`."""
    return [{"name": name, **record} for name, record in records.items()]


def format_ratio(first: float, second: float) -> str:
    """Format the ratio of two numbers."""
    quotient = first / second
    return f"{quotient:.1f}x" if quotient >= 10 else f"{quotient:.2f}x"
