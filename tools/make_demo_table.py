"""Fine-tune the demo model with every recipe on the demo rows, and write the table of docs/demo.md (`make demo-table`).

Two recipes run in parallel, with one thread per recipe. The table has the processor seconds of complete processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bertkit.metrics.baselines import find_best_baseline
from bertkit.recipe import load_recipe, recipe_names

PAGE = Path(__file__).parent.parent / "docs" / "demo.md"
HEAD = "| recipe | metric | score | baseline | seconds |\n|---|---|---|---|---|\n"


def finetune(name: str, folder: Path) -> str:
    """Fine-tune with a recipe, and return its row of the table.

    Raises:
        RuntimeError: If the command fails.
    """
    output, log = folder / f"{name}.json", folder / f"{name}.log"
    command = [sys.executable, "-m", "bertkit", "finetune", name, "--model", "demo", "--data", "demo", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with output.open("wb") as stdout, log.open("wb") as stderr:
        command += ["--output", str(folder / name)]
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{name}: {log.read_text().strip().splitlines()[-1]}")
    row = format_row(json.loads(output.read_text())["results"][0], usage.ru_utime + usage.ru_stime)
    print(row, flush=True)
    return row


def format_row(result: dict[str, Any], seconds: float) -> str:
    """Format a result: the metric that chose its checkpoint, its score, and the strongest baseline."""
    metric = load_recipe(result["recipe"]).best_metric
    scores = (result["scores"][metric], find_best_baseline(result["baselines"], metric)[1])
    cells = (f"{score:.3f}" if isinstance(score, float) else "n/a" for score in scores)
    return f"| `{result['recipe']}` | {metric} | {' | '.join(cells)} | {seconds:.0f} |"


def main() -> None:
    names = sys.argv[1:] or recipe_names()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max_workers=2) as pool:
        rows = list(pool.map(lambda name: finetune(name, Path(folder)), names))
    if names == recipe_names():
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(HEAD)
        _, blank, after = rest.partition("\n\n")
        PAGE.write_text(before + HEAD + "\n".join(rows) + blank + after, encoding="utf-8")
        print(f"{PAGE}: written")


if __name__ == "__main__":
    main()
