"""What all measurements share: options, results files to go on with, programs in turns, and tables."""

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
BEGAN = "BENCHMARK_BEGAN"  # environment: the monotonic clock when the program was started, one clock for all programs

# --- Options ---

SHARED: dict[str, dict[str, Any]] = {
    "model": {"type": Path, "required": True, "help": "folder of the encoder that all sides start from"},
    "data": {"type": Path, "required": True, "help": "folder with cola, stsb, ..., conll2003, squad"},
    "limit": {"type": int, "help": "rows of each split"},
    "threads": {"type": int, "default": os.cpu_count(), "help": "of every program; all cores by default"},
    "foreign": {"type": float, "default": 0.06, "help": "cores that others may use in a clean round"},
    "output": {"type": Path, "default": RESULTS, "help": "folder that the results are written to"},
}


def read_options(doc: str | None, shared: str, **own: Any) -> argparse.Namespace:
    """Parse the command line of a script.

    Args:
        doc: its docstring, which is its help.
        shared: names of `SHARED` (`NAME?` is not required), and of arguments without a name (`NAME+` takes several).
        own: further options by name. Each is its default, or (default, help). A list takes several values, a mapping
            some of its keys, and a type has no default.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for word in shared.split():
        name = word.rstrip("+?")
        if name not in SHARED:
            parser.add_argument(name, nargs="+" if word.endswith("+") else None)
        elif word.endswith("?"):
            parser.add_argument(f"--{name}", **{**SHARED[name], "required": False})
        else:
            parser.add_argument(f"--{name}", **SHARED[name])
    for name, given in own.items():
        default, text = given if isinstance(given, tuple) else (given, None)
        parser.add_argument(f"--{name.replace('_', '-')}", help=text, **_keywords(default))
    return parser.parse_args()


def _keywords(default: Any) -> dict[str, Any]:
    if isinstance(default, bool):
        return {"action": argparse.BooleanOptionalAction, "default": default}
    if isinstance(default, Mapping):
        return {"nargs": "+", "choices": list(default), "default": list(default)}
    if isinstance(default, list) and callable(default[0]):
        return {"nargs": "*", "type": default[0], "default": []}
    if isinstance(default, list):
        return {"nargs": "*", "type": type(default[0]), "default": default}
    return {"type": default} if callable(default) else {"type": type(default), "default": default}


# --- Files ---


def read_lines(file: Path) -> list[Report]:
    """Read lines of JSON; one that a kill left incomplete is skipped, and a missing file has none."""
    lines = []
    for line in split_lines(file.read_text(encoding="utf-8")) if file.exists() else ():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return lines


def find_line(file: Path, identity: Mapping[str, Any]) -> Report | None:
    """Find the first recorded line that has all of these values."""
    has_all = (line for line in read_lines(file) if all(line.get(key) == value for key, value in identity.items()))
    return next(has_all, None)


def add_line(file: Path, line: Report) -> Report:
    """Append a line of JSON to a file, print it, and return it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
    say(json.dumps(line))
    return line


def measure_once(file: Path, identity: Report, measure: Callable[[], Report]) -> Report:
    """Return the recorded line with this identity; where there is none, measure it and append it.

    So a command that was stopped goes on where it was. After a change of bertkit, take the old lines out.
    """
    return find_line(file, identity) or add_line(file, {**identity, **measure()})


def write_rows(rows: Iterable[Mapping[str, Any]], file: Path) -> None:
    """Write rows as lines of JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_results(report: Report, file: Path) -> None:
    """Write a report as JSON that people can read: the innermost records take one line each."""
    text = re.sub(r"[{\[][^{}\[\]]*[}\]]", lambda match: re.sub(r"\n *", " ", match[0]), json.dumps(report, indent=1))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n", encoding="utf-8")


def read_columns(file: Path, *names: str) -> list[Report]:
    """Read columns of a Parquet file, all where none is named, as rows."""
    from pyarrow import parquet

    rows: list[Report] = parquet.read_table(file, columns=list(names) or None).to_pylist()
    return rows


# --- Programs ---


def split_checkout(engine: str) -> tuple[str, Path]:
    """Return the name of an engine and the checkout whose code it runs: `bertkit@FOLDER` is bertkit as of that folder.

    >>> split_checkout("bertkit@/old:training.unpad=false"), split_checkout("bertkit@/old bf16")
    (('bertkit:training.unpad=false', PosixPath('/old')), ('bertkit bf16', PosixPath('/old')))
    """
    found = re.fullmatch(r"bertkit@([^: ]+)(.*)", engine)
    return (f"bertkit{found[2]}", Path(found[1]).resolve()) if found else (engine, ROOT)


def environment(threads: int | None, checkout: Path = ROOT, **more: str) -> dict[str, str]:
    """Return the environment of every measured program: no network, the same threads unless each engine chooses.

    Waits are those of the engine. Threads of libgomp spin for some milliseconds and then sleep, so an engine between
    its turns takes no time from the other one.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "KMP_", "GOMP_", "MKL_"))}
    path = os.pathsep.join(filter(None, (str(checkout), os.environ.get("PYTHONPATH"))))
    fixed = {
        **({"OMP_NUM_THREADS": str(threads)} if threads else {}),
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        BEGAN: str(time.monotonic()),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    return {**own, **fixed, **more}


def seconds_since_start() -> float:
    """Return the seconds since the program that runs now was started, as the one that started it noted; else 0."""
    now = time.monotonic()
    return now - float(os.environ.get(BEGAN, now))


def start_program(
    words: Iterable[object], threads: int | None, cache: Path, checkout: Path = ROOT, **options: Any
) -> subprocess.Popen[Any]:
    """Start `python -m WORDS` of a checkout, with a cache for `datasets`; the options are those of `Popen`."""
    command = [sys.executable, "-P", "-m", *map(str, words)]  # -P: the working directory is no place of modules
    own = environment(threads, checkout, HF_DATASETS_CACHE=str(cache))
    return subprocess.Popen(command, env=own, **options)


def run_program(*words: object, threads: int | None = 1) -> Report:
    """Run `python -m WORDS` from start to end, and return what it took and `printed`, the JSON it wrote.

    That is wall and processor seconds, peak memory in MB, and the cores that others used meanwhile. Its last line is
    taken, since libraries may print before it. The cache of `datasets` is empty, so the program tokenizes itself.
    """
    began, watch = time.monotonic(), Watch(os.getpid())
    with (
        tempfile.TemporaryFile("w+") as errors,
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryDirectory() as cache,
    ):
        program = start_program(words, threads, Path(cache), stdout=output, stderr=errors)
        _, status, usage = os.wait4(program.pid, 0)
        program.returncode = os.waitstatus_to_exitcode(status)
        seconds, others, processor = time.monotonic() - began, watch.foreign(), usage.ru_utime + usage.ru_stime
        output.seek(0)
        errors.seek(0)
        if program.returncode:
            raise SystemExit(f"{' '.join(map(str, words))}\nended with {program.returncode}: {errors.read()[-3000:]}")
        lines = output.read().strip().splitlines()
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(processor, 2),
        "memory_mb": round(usage.ru_maxrss / 1024),
        "foreign": round(max(0.0, others - processor / seconds), 3),
        "printed": json.loads(lines[-1]) if lines else {},
    }


def run_bertkit(*words: object, threads: int = 1) -> Report:
    """Run a command of bertkit with `--json`, and return what it prints."""
    printed: Report = run_program("bertkit", *words, "--json", threads=threads)["printed"]
    return printed


def finetune_here(recipe: str, changes: Report, folder: Path) -> Any:
    """Fine-tune in this process, and return the results of the validation splits."""
    from bertkit.recipe import load_recipe
    from bertkit.workflows.finetune import finetune

    return finetune(load_recipe(recipe, changes), output=folder)


def take_turns(sides: Mapping[str, Callable[[], Report]], rounds: int) -> dict[str, list[Report]]:
    """Measure every side in every round, one after the other, and return what each took."""
    runs: dict[str, list[Report]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, measure in sides.items():
            runs[name].append(measure())
            took = f"{runs[name][-1]['seconds']:.2f} s, others used {runs[name][-1].get('foreign', 0):.2f} cores"
            say(f"  round {number + 1} of {rounds}, {name}: {took}")
    return runs


def choose_clean(rounds: Sequence[Report], foreign: float) -> list[Report]:
    """Return the rounds in which others used at most so many cores, or all where there is none."""
    return [each for each in rounds if each["foreign"] <= foreign] or list(rounds)


def summarize_runs(runs: Sequence[Report], foreign: float) -> Report:
    """Return the median seconds and the peak memory of the clean runs, how many these are, and what each run took."""
    clean = choose_clean(runs, foreign)
    return {
        "seconds": round(statistics.median(run["seconds"] for run in clean), 3),
        "memory_mb": max(run["memory_mb"] for run in clean),
        "clean_runs": sum(run["foreign"] <= foreign for run in runs),
        "runs": [{name: round(run[name], 3) for name in ("seconds", "foreign")} for run in runs],
    }


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# --- Tables ---


def table(columns: Mapping[str, Any] | Sequence[str], items: Iterable[Any], align: str = "") -> str:
    """Build a Markdown table with a row per item.

    Args:
        columns: by title, how an item is shown: a format of its values, or a function. Titles alone show its cells.
        items: records, dicts, or sequences of cells.
        align: `l` or `r` for each column; all but the first are numbers unless it is given.

    >>> print(table({"engine": "{name}", "s": "{seconds[0]:.1f}"}, [{"name": "a", "seconds": [2]}]))
    | engine | s |
    |---|---:|
    | a | 2.0 |
    """
    rules = {"l": "---", "r": "---:"}
    lines = [f"| {' | '.join(title.strip() for title in columns)} |"]  # a title that is there twice ends in a space
    lines.append(f"|{'|'.join(rules[side] for side in align or 'l' + 'r' * (len(columns) - 1))}|")
    for item in items:
        if isinstance(columns, Mapping):
            item = [show.format_map(item) if isinstance(show, str) else show(item) for show in columns.values()]
        lines.append(f"| {' | '.join(map(str, item))} |")
    return "\n".join(lines)


def with_names(records: Mapping[str, Mapping[str, Any]]) -> list[Report]:
    """Return records with their keys as `name`."""
    return [{"name": name, **record} for name, record in records.items()]


def ratio(ours: float, theirs: float) -> str:
    """Format one number divided by another."""
    quotient = ours / theirs
    return f"{quotient:.1f}x" if quotient >= 10 else f"{quotient:.2f}x"


def with_ends(value: float, ends: Sequence[float] | None, style: str = ".3f") -> str:
    """Format a value, with the ends of its interval where it has one.

    >>> with_ends(0.5, (0.25, 0.75), "+.2f"), with_ends(0.5, None)
    ('+0.50 (+0.25 to +0.75)', '0.500')
    """
    return f"{value:{style}}" + (f" ({ends[0]:{style}} to {ends[1]:{style}})" if ends else "")


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% interval of the mean of two values or more (Student's t)."""
    from scipy.stats import ttest_1samp

    return tuple(ttest_1samp(values, 0).confidence_interval()) if len(values) > 1 else None
