"""False alarms of `check`, `errors` and `compare` on random labels and mistakes.

    python -m benchmarks.null_tables --pairs FILE

`--pairs` has JSON lines with `text` and `text_pair`. Labels are random with the skew of a column of the table, and
mistakes fall on random rows. Writes benchmarks/results/null_tables.json, which `make scores` reads. One core takes 15
minutes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS as FOLDER
from benchmarks.harness import read_lines, read_options, write_results

RESULTS = FOLDER / "null_tables.json"
DRAWS, SKEWS = 100, (0.5, 0.8, 0.95)
TRAIN, VALIDATION = 400, 200
WRONG = 0.15  # fraction of the rows


def draw_labels(count: int, share: float, draw: np.random.Generator) -> np.ndarray:
    """Return labels in random order; a fraction of them is 1.

    >>> int(draw_labels(200, 0.8, np.random.default_rng(0)).sum())
    160
    """
    return draw.permutation((np.arange(count) < round(share * count)).astype(int))


def check_draw(rows: Sequence[dict[str, Any]], share: float, draw: np.random.Generator) -> dict[str, bool]:
    """Return which findings of `check` warn about rows with random labels and a random split."""
    from bertkit.checks.shortcuts import find_shift, find_shortcuts
    from bertkit.data.rows import Split
    from bertkit.recipe import load_recipe
    from bertkit.tasks import load_task

    recipe = load_recipe("classify", {"metrics": ["accuracy"]})
    task, names = load_task(recipe), ("bad", "good")
    indices = draw.permutation(len(rows))[: TRAIN + VALIDATION]
    labels = draw_labels(len(indices), share, draw)
    ids = draw.permutation(10**6)[: len(indices)]
    sample = [
        {**rows[row], "label": names[label], "id": str(row_id)}
        for row, label, row_id in zip(indices, labels, ids, strict=True)
    ]
    splits = {
        name: Split(name, f"{name}.csv", part, list(range(len(part))))
        for name, part in (("train", sample[:TRAIN]), ("validation", sample[TRAIN:]))
    }
    findings = [*find_shortcuts(splits, task, recipe, names), *find_shift(splits, task.COLUMNS)]
    alarms = dict.fromkeys((f"check: {finding.name}" for finding in findings), False)
    return alarms | {f"check: {finding.name}": True for finding in findings if finding.level != "good"}


def errors_draw(rows: Sequence[dict[str, Any]], share: float, draw: np.random.Generator) -> dict[str, bool]:
    """Return whether a slice is reported as worse, or a run as better, if mistakes are random."""
    from bertkit.analysis.slices import find_slices
    from bertkit.metrics.paired import compare_paired
    from bertkit.metrics.slices import compare_slices
    from bertkit.recipe import load_recipe
    from bertkit.tasks import load_task

    count = TRAIN
    indices = draw.permutation(len(rows))[:count]
    labels = [str(label) for label in draw_labels(count, share, draw)]
    sample = [{**rows[row], "label": label} for row, label in zip(indices, labels, strict=True)]
    scorer: Any = SimpleNamespace(task=load_task(load_recipe("classify")))
    groups = find_slices(scorer, sample, [[row] for row in range(count)])
    slices = [np.array(members) for values in groups.values() for members in values.values()]
    first, second = ((draw.random(count) < WRONG).astype(float) for _ in range(2))
    runs = ({"right": 1 - first}, {"right": 1 - second})
    p = compare_paired(lambda scores: {"accuracy": float(scores["right"].mean())}, *runs, samples=1000)["accuracy"].p
    tests = compare_slices(first, np.ones(count), slices)
    return {
        "errors: any slice of a run": any(test is not None and test.is_beyond_chance for test in tests),
        "compare: accuracy of two runs": p is not None and p < 0.05,
    }


def measure(pairs: Path, count: int) -> Iterator[dict[str, Any]]:
    """Count the alarms of all draws at each fraction of the more frequent label."""
    rows = [{name: row[name] for name in ("text", "text_pair")} for row in read_lines(pairs)]
    for share in SKEWS:
        draw, alarms, draws = np.random.default_rng(round(100 * share)), Counter[str](), Counter[str]()
        for _ in range(count):
            results = check_draw(rows, share, draw) | errors_draw(rows, share, draw)
            draws.update(results.keys())
            alarms.update(name for name, is_alarm in results.items() if is_alarm)
        for name, total in draws.items():
            yield {"what": name, "share": share, "alarms": alarms[name], "draws": total}


def main() -> None:
    options = read_options(__doc__, "", pairs=Path, draws=DRAWS)
    settings = {"draws": options.draws, "train": TRAIN, "validation": VALIDATION, "wrong": WRONG}
    write_results({**settings, "cells": list(measure(options.pairs, options.draws))}, RESULTS)


if __name__ == "__main__":
    main()
