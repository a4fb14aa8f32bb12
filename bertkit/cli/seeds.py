"""Several seeds on the command line: how they are named, and how their scores are printed."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertkit.cli.output import (
    end_with_error,
    format_interval,
    format_number,
    format_rows,
    print_json,
    print_line,
    print_table,
    print_text,
)
from bertkit.errors import BertkitError, UsageError

if TYPE_CHECKING:
    from bertkit.evaluation.seeds import SeedsSummary

_MOST = 100


def choose_seeds(seeds: str | None, seed: int | None, changes: Sequence[str] | None) -> tuple[int, ...]:
    """Return the seeds that `--seeds` names; none without it.

    Raises:
        UsageError: a seed is given beside them, or what `parse_seeds` raises.
    """
    if seeds is None:
        return ()
    if seed is not None or any(change.startswith("training.seed=") for change in changes or ()):
        raise UsageError("one seed and --seeds are both given", "name all seeds in a list: --seeds 1,2,7")
    return parse_seeds(seeds)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that `--seeds` names: a number of them, counted from 1, or a list.

    Raises:
        UsageError: neither of the two, more than a hundred, or a seed named twice.

    >>> parse_seeds("3"), parse_seeds("1,2,7")
    ((1, 2, 3), (1, 2, 7))
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0 or max(numbers) >= 2**32 or numbers == [0]:
        raise UsageError(
            f"--seeds {text!r} is neither a number of seeds nor a list", "write --seeds 5 or --seeds 1,2,7"
        )
    if len(numbers) == 1 and numbers[0] > _MOST:
        remedy = f"--seed {numbers[0]} trains once with this seed"
        raise UsageError(f"--seeds {text} asks for {numbers[0]:,} runs, of at most {_MOST}", remedy)
    if len(numbers) > _MOST or len(set(numbers)) < len(numbers):
        raise UsageError(f"--seeds {text}: a seed is named twice, or more than {_MOST}", "name each seed once")
    return tuple(range(1, numbers[0] + 1)) if len(numbers) == 1 else tuple(numbers)


def end_seeds(summary: SeedsSummary, error: BertkitError | None, *, as_json: bool) -> None:
    """Print the summary, and end as the first run ended that diverged.

    Raises:
        BertkitError: that run's; as JSON, it is printed in the same object as the summary.
    """
    if as_json:
        values = dataclasses.asdict(summary)
        print_json(values) if error is None else end_with_error(values, error)
        return
    print_seeds(summary)
    if error is not None:
        raise error


def print_seeds(summary: SeedsSummary) -> None:
    """Print what the seeds scored: the spread of each metric, every run, and what to make of the best one."""
    count = len(summary.runs)
    for split in summary.splits:
        seeds = f"{count} seed{'s' if count > 1 else ''}"
        print_text(f"{summary.recipe}, {split.split}: {format_rows(split.rows)}, {seeds}, {summary.model}")
        print_table("scores over seeds", _spread_table(split.spreads, split.baseline))
        for why, metrics in _group(split.spreads).items():
            print_text(f"  n/a: interval of {', '.join(metrics)} ({why})")
    if summary.splits:
        print_text("  95% CI: of the mean, over seeds and rows (Student; variance between seeds and of resampled rows)")
    print_table("runs", run_table(summary))
    for failure in dict.fromkeys(run.failure for run in summary.failed):
        alike = [str(run.seed) for run in summary.failed if run.failure == failure]
        print_text(f"  failed: seed{'s' if len(alike) > 1 else ''} {', '.join(alike)}. {failure}")
    _print_best(summary)
    print_line("\nNext:")
    folder = shlex.quote(summary.folder)
    print_line(f"  open {folder}/report.html")


def run_table(summary: SeedsSummary) -> list[dict[str, Any]]:
    """Return the rows of a table of the runs: the scores of each on the first split."""
    if not summary.splits:
        return []
    first = summary.splits[0]
    rows = [
        {
            "seed": str(run.seed),
            **{metric: format_number(run.scores.get(first.split, {}).get(metric)).strip() for metric in first.spreads},
            "": run.status if run.status != "finished" else "failed" if run.failure else "",
        }
        for run in summary.runs
    ]
    if summary.soup is not None:
        scores = summary.soup[first.split]
        cells = {metric: format_number(scores.get(metric)).strip() for metric in first.spreads}
        rows.append({"seed": "soup", **cells, "": ""})
    return rows if any(row[""] for row in rows) else [{k: v for k, v in row.items() if k} for row in rows]


def _spread_table(spreads: Mapping[str, Any], baseline: Mapping[str, float | None]) -> list[dict[str, str]]:
    def cell(value: float | None) -> str:
        return format_number(value).strip()

    return [
        {
            "metric": metric,
            "mean": cell(spread.mean),
            "sd": cell(spread.standard_deviation),
            "min": cell(spread.minimum),
            "median": cell(spread.median),
            "max": cell(spread.maximum),
            "95% CI of the mean": format_interval(spread.interval),
            "null model": cell(baseline.get(metric)),
        }
        for metric, spread in spreads.items()
        if spread is not None
    ]


def _group(spreads: Mapping[str, Any]) -> dict[str, list[str]]:
    """Group the metrics that have no interval by the reason."""
    grouped: dict[str, list[str]] = {}
    for metric, spread in spreads.items():
        reason = "no run has such a score" if spread is None else spread.no_interval
        if reason:
            grouped.setdefault(reason, []).append(metric)
    return grouped


def _print_best(summary: SeedsSummary) -> None:
    metric = summary.best_metric
    spread = summary.splits[0].spreads.get(metric) if summary.splits else None
    if spread is None or spread.runs < 2:
        return
    best = spread.expected_best[-1]
    print_text(f"  best of {spread.runs}: {metric} {format_number(best).strip()} (seed {summary.best_seed})")
    print_text(f"  expected best {metric} of k runs: {_expected(spread.expected_best)}")


def _expected(values: Sequence[float]) -> str:
    return ", ".join(f"{number}: {format_number(value).strip()}" for number, value in enumerate(values, start=1))
