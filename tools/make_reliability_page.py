"""Run the tests that tests/reliability.yaml names, and write docs/reliability.md."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "tests" / "reliability.yaml"
ATTACKED = ROOT / "benchmarks" / "results" / "attack.json"
PAGE = ROOT / "docs" / "reliability.md"
PYTEST = ["-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-m", "", "-p", "no:cacheprovider"]

HEAD = """\
# Reliability

bertkit promises:

1. A run that is killed at any time resumes with the same command. Its result is bit-identical to an uninterrupted run,
   on the same machine with the same versions and number of threads.
2. A damaged file is never used without a message.
3. Neither your files nor the last good checkpoint are overwritten or deleted.
4. No code from a checkpoint or a dataset is run.
5. If you make a mistake, one line names the problem, its place and the remedy. There is no traceback.
6. Exit code 0 means that the work was done, and that its numbers are finite.

The tables list the tested cases. [Exit codes](ci.md#exit-codes) explains the codes; `-` means that the command does not
exit.

`make reliability` runs the tests and writes this page. `tests/reliability.yaml` lists the tests of each case. They need
no network and no GPU. Some are skipped for root, which can write anywhere.
"""


ATTACKS = """\
## Attacks

`make soak` disturbs every command, with runs of all task families and objectives:

* *kill*, *signal*: the process gets SIGKILL at a file operation or a random time, or all processes get SIGTERM, SIGINT
  or SIGHUP. The command must print one line, or nothing after SIGKILL.
* *full*, *quota*, *eio*, *read-only*: from a random file operation on, writes fail. The command must exit with code 6
  and one line, or with 0 and complete output.
* *twice*: two processes run the same command. One must succeed; the other must succeed or print one line.
* *damage*: an input file has a flipped bit, other content, or is truncated or empty. The command must reject it in one
  line, or answer as for the intact file.

Except after *damage*, the repeated command must write the same bytes as an undisturbed command, and no other files.
Inputs must not change.

*fuzz* changes bytes and values of rows, recipes, `--set`, tests, caches, files of runs, models and indexes, and
requests to `serve`. Each input must succeed or fail in one line within 5 seconds and 1 GB, without effect on other
requests. In *coverage*, Atheris (libFuzzer) selects bytes that reach new code. `tests/test_attacks.py` keeps each case
that was found.

```bash
make soak MINUTES=120 SEED=1
python tools/attack.py fuzz --minutes 20 --seed 1
```

Each failure is printed with the command that repeats it. The last runs:

| attack | minutes | seed | targets | trials | failures |
|---|---:|---:|---:|---:|---:|
"""


def read_source() -> dict[str, list[Any]]:
    """Return the groups of entries, and the gaps."""
    source: dict[str, list[Any]] = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    return source


def list_entries(source: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return the entries of all groups."""
    return [entry for group in source["groups"] for entry in group["entries"]]


def run_tests(names: list[str]) -> dict[str, Counter[str]]:
    """Run tests in one call of pytest; return for each name how often it passed, failed or was skipped."""
    results: dict[str, Counter[str]] = {name: Counter() for name in names}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "results.xml")
        subprocess.run([sys.executable, *PYTEST, f"--junit-xml={file}", *names], cwd=ROOT, check=False)
        for case in ElementTree.parse(file).iter("testcase"):
            path = case.get("classname", "").replace(".", "/") + ".py"
            outcomes = {part.tag for part in case}
            outcome = "failed" if outcomes & {"failure", "error"} else "skipped" if "skipped" in outcomes else "passed"
            name = f"{path}::{case.get('name', '').partition('[')[0]}"
            results.setdefault(name, Counter())[outcome] += 1  # a file that cannot be collected gets a new name
    return results


def reliability_page(source: dict[str, list[Any]], results: dict[str, Counter[str]]) -> str:
    """Return the page: the promises, a table per group of entries, the attacks, and the gaps."""
    parts = [HEAD, f"The last run: {count_outcomes(results)}.\n"]
    for group in source["groups"]:
        lines = [f"## {group['title']}", "", "| case | behavior | exit code |", "|---|---|---|"]
        lines += [f"| {entry['what']} | {entry['outcome']} | {entry['code']} |" for entry in group["entries"]]
        parts.append("\n".join([*lines, ""]))
    parts.append(attack_section())
    parts.append("\n".join(["## Not covered", "", *map(_item, source["gaps"]), ""]))
    return "\n".join(parts)


def count_outcomes(results: dict[str, Counter[str]]) -> str:
    """Return the number of tests that passed, failed or were skipped, and the names of those that failed."""
    counts = sum(results.values(), Counter[str]())
    text = ", ".join(f"{counts[outcome]:,} {outcome}" for outcome in ("passed", "failed", "skipped") if counts[outcome])
    failed = [f"`{test}`" for test, counter in results.items() if counter["failed"] or not counter]
    return f"{text} ({', '.join(failed)})" if failed else text


def attack_section() -> str:
    """Return the table of the attacks in their last results, and the explanation of each failure."""
    content = json.loads(ATTACKED.read_text(encoding="utf-8"))
    lines = ""
    for attack, figures in content.items():
        trials = sum(sum(counts.values()) for counts in figures["kinds"].values())
        settings = f"{figures['minutes']} | {figures['seed']} | {figures['names']}"
        lines += f"| {attack} | {settings} | {trials:,} | {len(figures['wrong'])} |\n"
    causes = dict.fromkeys(entry["judged"] for figures in content.values() for entry in figures["wrong"])
    return "\n".join([f"{ATTACKS}{lines}", "The failures:", "", *map(_item, causes), ""])


def _item(text: str) -> str:
    return textwrap.fill(text, 120, initial_indent="* ", subsequent_indent="  ")


def test_cells(tests: list[str], results: dict[str, Counter[str]]) -> tuple[str, str]:
    """Return two cells of a table: the names of tests, and how they ended."""
    counts = sum((results[test] for test in tests), Counter[str]())
    result = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped") if counts[outcome])
    return "<br>".join(f"`{test.rpartition('/')[2]}`" for test in tests), result or "not run"


def main() -> None:
    """Run the tests and write the page; exit with 1 if one failed."""
    source = read_source()
    results = run_tests(sorted({test for entry in list_entries(source) for test in entry["tests"]}))
    PAGE.write_text(reliability_page(source, results), encoding="utf-8")
    print(f"{PAGE}: written")
    sys.exit(any(result["failed"] or not result for result in results.values()))


if __name__ == "__main__":
    main()
