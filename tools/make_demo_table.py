"""Fine-tune the demo model with every recipe on the demo rows, and write the table of docs/demo.md (`make demo-table`).

Two recipes at a time, one thread each. The seconds are those of one core, from the start of the process to its end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bertkit.metrics.baselines import strongest
from bertkit.recipe import load_recipe, recipe_names

PAGE = Path(__file__).parent.parent / "docs" / "demo.md"
HEAD = "| recipe | metric | score | baseline | seconds |\n|---|---|---|---|---|\n"


def finetune(name: str, folder: Path) -> str:
    """Fine-tune with a recipe, and return its line of the table.

    Raises:
        RuntimeError: the command failed.
    """
    output = folder / f"{name}.json"
    command = [sys.executable, "-m", "bertkit", "finetune", name, "--model", "demo", "--data", "demo", "--json"]
    with output.open("wb") as stdout, (folder / f"{name}.log").open("wb") as stderr:
        process = subprocess.Popen(
            [*command, "--output", str(folder / name)],
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{name}: {(folder / f'{name}.log').read_text().strip().splitlines()[-1]}")
    line = table_line(json.loads(output.read_text())["results"][0], used.ru_utime + used.ru_stime)
    print(line, flush=True)
    return line


def table_line(result: dict[str, object], seconds: float) -> str:
    """Write the line of a result: the metric that chose its checkpoint, beside the strongest baseline's."""
    scores, baselines = result["scores"], result["baselines"]
    assert isinstance(scores, dict) and isinstance(baselines, dict)
    metric = load_recipe(str(result["recipe"])).best_metric
    values = (scores[metric], strongest(baselines, metric)[1])
    shown = (f"{value:.3f}" if isinstance(value, float) else "n/a" for value in values)
    return f"| `{result['recipe']}` | {metric} | {' | '.join(shown)} | {seconds:.0f} |"


def main() -> None:
    names = sys.argv[1:] or recipe_names()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max_workers=2) as pool:
        lines = list(pool.map(lambda name: finetune(name, Path(folder)), names))
    if names == recipe_names():
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(HEAD)
        _, blank, after = rest.partition("\n\n")
        PAGE.write_text(before + HEAD + "\n".join(lines) + blank + after, encoding="utf-8")
        print(f"{PAGE}: written")


if __name__ == "__main__":
    main()
