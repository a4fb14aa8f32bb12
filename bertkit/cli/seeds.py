"""Several seeds on the command line: how they are named, and how their scores are printed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertkit.cli.output import (
    format_count,
    format_number,
    format_rows,
    group_by_reason,
    print_next,
    print_notes,
    print_table,
    print_text,
)
from bertkit.errors import UsageError

if TYPE_CHECKING:
    from bertkit.evaluation.seeds import SeedsSummary


_MAX_SEEDS = 100


def choose_seeds(seeds: str | None, changes: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the seeds that `--seeds` names, or no seeds without the option.

    Raises:
        UsageError: If a single seed is given too, or `parse_seeds` raises it.
    """
    if seeds is None:
        return ()
    if "training.seed" in changes:
        raise UsageError("one seed and --seeds are both given", "name all seeds in a list: --seeds 1,2,7")
    return parse_seeds(seeds)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that `--seeds` names: a number of them, counted from 1, or a list.

    Raises:
        UsageError: If the text is neither, names more than a hundred seeds, or a seed twice.

    >>> parse_seeds("3"), parse_seeds("1,2,7")
    ((1, 2, 3), (1, 2, 7))
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0 or max(numbers) >= 2**32 or numbers == [0]:
        message = f"--seeds {text!r} is neither a number of seeds nor a list"
        raise UsageError(message, "write --seeds 5 or --seeds 1,2,7")
    if len(numbers) == 1 and numbers[0] > _MAX_SEEDS:
        remedy = f"--seed {numbers[0]} trains once with this seed"
        raise UsageError(f"--seeds {text} asks for {numbers[0]:,} runs, of at most {_MAX_SEEDS}", remedy)
    if len(numbers) > _MAX_SEEDS or len(set(numbers)) < len(numbers):
        raise UsageError(f"--seeds {text}: a seed is named twice, or more than {_MAX_SEEDS}", "name each seed once")
    return tuple(range(1, numbers[0] + 1)) if len(numbers) == 1 else tuple(numbers)


def name_seeds(seeds: Sequence[object]) -> str:
    """Return what seeds are called.

    >>> name_seeds([3]), name_seeds([1, 2])
    ('seed 3', 'seeds 1, 2')
    """
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def print_seeds(summary: SeedsSummary) -> None:
    """Print what the seeds scored: the spread of each metric, every run, and what to make of the best one."""
    for split in summary.splits:
        seeds = format_count(len(summary.runs), "seed")
        print_text(f"{summary.recipe}, {split.split}: {format_rows(split.rows)}, {seeds}, {summary.model}")
        print_table("scores over seeds", _spread_table(split.spreads, split.baseline))
        # A metric without an interval gets its reason: n/a alone looks like a fault.
        reasons = {
            name: spread.no_interval if spread else "no run has such a score" for name, spread in split.spreads.items()
        }
        print_notes(f"n/a: interval of {', '.join(names)} ({why})" for why, names in group_by_reason(reasons).items())
    if summary.splits:
        print_text("  95% CI: of the mean, over seeds and rows (Student; variance between seeds and of resampled rows)")
    print_table("runs", run_table(summary))
    failures = group_by_reason({run.seed: run.failure for run in summary.failed})
    print_notes(f"failed: {name_seeds(seeds)}. {failure}" for failure, seeds in failures.items())
    _print_best(summary)
    print_notes(summary.warnings)
    print_next(f"open {shlex.quote(summary.folder)}/report.html")


def run_table(summary: SeedsSummary) -> list[dict[str, Any]]:
    """Return the rows of a table of the runs: the scores of each on the first split."""
    if not summary.splits:
        return []
    first = summary.splits[0]
    return [
        {
            "seed": str(run.seed),
            **{metric: run.scores.get(first.split, {}).get(metric) for metric in first.spreads},
            "": run.status if run.status != "finished" else "failed" if run.failure else "",
        }
        for run in summary.runs
    ]


def _spread_table(spreads: Mapping[str, Any], baseline: Mapping[str, float | None]) -> list[dict[str, Any]]:
    return [
        {
            "metric": metric,
            "mean": spread.mean,
            "sd": spread.standard_deviation,
            "min": spread.minimum,
            "median": spread.median,
            "max": spread.maximum,
            "95% CI of the mean": spread.interval,
            "null model": baseline.get(metric),
        }
        for metric, spread in spreads.items()
        if spread is not None
    ]


def _print_best(summary: SeedsSummary) -> None:
    metric = summary.best_metric
    spread = summary.splits[0].spreads.get(metric) if summary.splits else None
    if spread is None or spread.runs < 2:
        return
    best = format_number(spread.expected_best[-1])
    print_text(f"  best of {spread.runs}: {metric} {best} (seed {summary.best_seed})")
    print_text(f"  expected best {metric} of k runs: {number_values(spread.expected_best)}")


def number_values(values: Sequence[float]) -> str:
    """Return values with their numbers from 1.

    >>> number_values([0.5, 0.75])
    '1: 0.5000, 2: 0.7500'
    """
    return ", ".join(f"{number}: {format_number(value)}" for number, value in enumerate(values, start=1))
