"""Write docs/reliability.md: run the tests that tests/reliability.yaml names, and say how each ended."""

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
TITLES = {"faults": "What can happen to a run", "inputs": "What can be wrong with data, models and recipes"}
PYTEST = ["-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-m", "", "-p", "no:cacheprovider"]

HEAD = """\
# Reliability

`make reliability` runs the tests that this page names, the slow ones too, and writes the page with their results. Do
not edit it by hand; its text is in `tests/reliability.yaml`. The tests need no network and no GPU. Some are skipped by
root, who may write anywhere.

bertkit promises:

1. A run that is killed at any moment and started again with the same command ends bit-identical to one that was never
   killed, on the same machine with the same versions and number of threads.
2. A damaged file is never used in silence.
3. Neither your files nor the last good checkpoint are overwritten or deleted.
4. No code from a checkpoint or a data set is run.
5. What a user can cause ends in one line: what is wrong, where, and what to do. There is no traceback.
6. Exit code 0 means that the work was done, and that its numbers are finite.

The other exit codes: 1 is a fault of bertkit; 2 the command line or recipe; 3 data; 4 a model or checkpoint; 5 the
network, the hub or a missing package; 6 disk, memory, permissions or locks; 7 a loss that is not finite; 8 a gate that
was not passed; 129, 130 and 143 a signal. A `-` stands where the command does not end by what happens.
"""


ATTACKS = """\
## Attacks

`make soak` does at random what the tests do on purpose. It takes every command in turn, with a run of each task family
and each objective, and lets something happen to it:

* *kill* and *signal*: SIGKILL at a file operation or a moment; SIGTERM, SIGINT or SIGHUP at a moment, to all its
  processes. It ends in one line, or in none where it was killed.
* *full*, *quota*, *eio* and *read-only*: from a file operation on, the disk is full or read-only, or that operation
  fails. It ends with exit code 6 and one line, or with 0 and all of its output.
* *twice*: the same command runs beside it. One of them ends well, the other one too or in one line.
* *damage*: a file that it reads has a bit flipped, is cut in half or emptied, or has another version or content. It is
  refused in one line and left as it is, or the answer is that of the undamaged file.

After all but damage, the same command must end as one that nothing has happened to, with the same files and bytes and
nothing else. Inputs must be as they were.

Fuzzing damages bytes and values of what is read: rows in each format, recipes, `--set`, tests, the files of runs,
indexes and models, caches, and requests to `serve`. That must end well or in one line, within 5 seconds and 1 GB, and
requests beside it get their own answers. In `coverage`, Atheris (libFuzzer) chooses bytes by the branches of bertkit
that they reach. Hypothesis puts any value at any depth of a file (`tests/test_attacks.py`); what it or the others found
stays a test there.

```bash
make soak MINUTES=120 SEED=1
python tools/attack.py fuzz --minutes 20 --seed 1
python tools/attack_coverage.py --minutes 20 --folder corpus
```

Each failure is printed with the command that repeats it. Servers are attacked by fuzzing alone. The last runs:

| attack | tried | how they ended | wrong |
|---|---|---|---|
"""


def read_entries() -> dict[str, list[dict[str, Any]]]:
    """Return the entries of both tables, in their order."""
    entries: dict[str, list[dict[str, Any]]] = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    return entries


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
            results.setdefault(name, Counter())[outcome] += 1  # a file that cannot be collected has a name of its own
    return results


def reliability_page(entries: dict[str, list[dict[str, Any]]], results: dict[str, Counter[str]]) -> str:
    """Return the page: the promises, a table per group of entries, and what is not covered."""
    parts = [HEAD]
    for group, title in TITLES.items():
        lines = [f"## {title}", "", "| id | what happens | what bertkit does | exit code | tests | result |"]
        lines += ["|---|---|---|---|---|---|", *(_line(entry, results) for entry in entries[group]), ""]
        parts.append("\n".join(lines))
    parts.append(attack_section())
    gaps = [f"{entry['id']}: {entry['not_covered']}" for group in entries.values() for entry in group if _gap(entry)]
    items = [textwrap.fill(gap, 120, initial_indent="* ", subsequent_indent="  ") for gap in gaps]
    parts.append("\n".join(["## What is not covered", "", *items, ""]))
    return "\n".join(parts)


def attack_section() -> str:
    """Return what the attacks have tried and found, as their last results say, and what became of it."""
    content = json.loads(ATTACKED.read_text(encoding="utf-8"))
    lines, sums = [], []
    for attack, figures in content.items():
        wrong = Counter(entry["kind"] for entry in figures["wrong"])
        for kind, endings in figures["kinds"].items():
            ended = "; ".join(f"{how}: {count:,}" for how, count in endings.items())
            lines.append(f"| {attack}: {kind} | {sum(endings.values()):,} | {ended} | {wrong[kind]} |\n")
        what = "commands" if attack == "soak" else "kinds of files and requests"
        sums.append(f"{attack}, {figures['minutes']} minutes, {figures['names']} {what}, seed {figures['seed']}")
    judged = [entry["judged"] for figures in content.values() for entry in figures["wrong"]]
    items = [textwrap.fill(text, 120, initial_indent="* ", subsequent_indent="  ") for text in dict.fromkeys(judged)]
    return "\n".join(
        [f"{ATTACKS}{''.join(lines)}", f"{'; '.join(sums)}. What was wrong, case by case:", "", *items, ""]
    )


def _gap(entry: dict[str, Any]) -> bool:
    return "not_covered" in entry


def test_cells(tests: list[str], results: dict[str, Counter[str]]) -> tuple[str, str]:
    """Return two cells of a table: the names of tests, and how they ended."""
    counts = sum((results[test] for test in tests), Counter[str]())
    result = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped") if counts[outcome])
    return "<br>".join(f"`{test.rpartition('/')[2]}`" for test in tests), result or "not run"


def _line(entry: dict[str, Any], results: dict[str, Counter[str]]) -> str:
    tests = entry.get("tests", [])
    names, result = test_cells(tests, results) if tests else ("", "not covered")
    result += " (in part)" if tests and _gap(entry) else ""
    cells = [entry["id"], entry["what"], entry["outcome"], str(entry["code"]), names, result]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Run the tests and write the page; exit with 1 if one failed."""
    entries = read_entries()
    names = sorted({test for group in entries.values() for entry in group for test in entry.get("tests", [])})
    results = run_tests(names)
    PAGE.write_text(reliability_page(entries, results), encoding="utf-8")
    print(f"{PAGE}: written")
    sys.exit(any(result["failed"] or not result for result in results.values()))


if __name__ == "__main__":
    main()
