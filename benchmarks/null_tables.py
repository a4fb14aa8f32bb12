"""How often `check`, `errors` and `compare` find something where there is nothing to find.

    python -m benchmarks.null_tables --pairs FILE

`--pairs` has JSON lines with `text`, `text_pair` and any label. Labels are drawn anew, at random and as skewed as a row
of the table says; mistakes fall on rows at random. Results are written to benchmarks/results/null_tables.json, and
`make scores` puts them into docs/scores.md. One core takes 15 minutes.
"""

from __future__ import annotations

import argparse
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
WRONG = 0.15  # of the rows


def draw_labels(count: int, share: float, draw: np.random.Generator) -> np.ndarray:
    """Return labels of which a share is 1, in random order.

    >>> int(draw_labels(200, 0.8, np.random.default_rng(0)).sum())
    160
    """
    return draw.permutation((np.arange(count) < round(share * count)).astype(int))


def check_draw(rows: Sequence[dict[str, Any]], share: float, draw: np.random.Generator) -> dict[str, bool]:
    """Tell which findings of `check` warn of rows whose labels and split are random."""
    from bertkit.checks.shortcuts import find_shift, find_shortcuts
    from bertkit.data.rows import Split
    from bertkit.recipe import load_recipe
    from bertkit.tasks import load_task

    recipe = load_recipe("classify", {"metrics": ["accuracy"]})
    task, names = load_task(recipe), ("bad", "good")
    chosen = draw.permutation(len(rows))[: TRAIN + VALIDATION]
    labels = draw_labels(len(chosen), share, draw)
    ids = draw.permutation(10**6)[: len(chosen)]
    drawn = [
        {**rows[row], "label": names[label], "id": str(one)}
        for row, label, one in zip(chosen, labels, ids, strict=True)
    ]
    splits = {
        name: Split(name, f"{name}.csv", part, list(range(len(part))))
        for name, part in (("train", drawn[:TRAIN]), ("validation", drawn[TRAIN:]))
    }
    found = [*find_shortcuts(splits, task, recipe, names), *find_shift(splits, task.COLUMNS)]
    alarms = dict.fromkeys((f"check: {finding.name}" for finding in found), False)
    return alarms | {f"check: {finding.name}": True for finding in found if finding.level != "good"}


def errors_draw(rows: Sequence[dict[str, Any]], share: float, draw: np.random.Generator) -> dict[str, bool]:
    """Tell whether a slice is called worse, or a run better, where mistakes fall on rows at random."""
    from bertkit.insight.slices import find_slices
    from bertkit.metrics.paired import compare_paired
    from bertkit.metrics.slices import compare_slices
    from bertkit.recipe import load_recipe
    from bertkit.tasks import load_task

    count = TRAIN
    chosen = draw.permutation(len(rows))[:count]
    labels = [str(label) for label in draw_labels(count, share, draw)]
    drawn = [{**rows[row], "label": label} for row, label in zip(chosen, labels, strict=True)]
    scorer: Any = SimpleNamespace(task=load_task(load_recipe("classify")))
    groups = find_slices(scorer, drawn, [[row] for row in range(count)])
    slices = [np.array(members) for values in groups.values() for members in values.values()]
    first, second = ((draw.random(count) < WRONG).astype(float) for _ in range(2))
    sides = ({"right": 1 - first}, {"right": 1 - second})
    compared = compare_paired(lambda judged: {"accuracy": float(judged["right"].mean())}, *sides, samples=1000)
    p = compared["accuracy"].p

    tested = compare_slices(first, np.ones(count), slices)
    return {
        "errors: any slice of a run": any(one is not None and one.is_beyond_chance for one in tested),
        "compare: accuracy of two runs": p is not None and p < 0.05,
    }


def measure(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Count the alarms of all draws at each share of the more frequent label."""
    rows = [{name: row[name] for name in ("text", "text_pair")} for row in read_lines(asked.pairs)]
    for share in SKEWS:
        draw, alarms, draws = np.random.default_rng(round(100 * share)), Counter[str](), Counter[str]()
        for _ in range(asked.draws):
            found = check_draw(rows, share, draw) | errors_draw(rows, share, draw)
            draws.update(found.keys())
            alarms.update(name for name, is_alarm in found.items() if is_alarm)
        yield from (
            {"what": name, "share": share, "alarms": alarms[name], "draws": count} for name, count in draws.items()
        )


def main() -> None:
    asked = read_options(__doc__, "", pairs=Path, draws=DRAWS)
    results = {
        "draws": asked.draws,
        "train": TRAIN,
        "validation": VALIDATION,
        "wrong": WRONG,
        "cells": list(measure(asked)),
    }
    write_results(results, RESULTS)


if __name__ == "__main__":
    main()
