"""Write docs/scores.md: run the tests that tests/scores.yaml names, and show the coverage that was measured."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import yaml
from make_reliability_page import ROOT, run_tests, test_cells

from bertkit.metrics.intervals import wilson_interval

SOURCE = ROOT / "tests" / "scores.yaml"
COVERAGE = ROOT / "benchmarks" / "results" / "coverage.json"
NULL = ROOT / "benchmarks" / "results" / "null_tables.json"
PAGE = ROOT / "docs" / "scores.md"

HEAD = """\
# Scores

`make scores` runs the tests that this page names, measures how often intervals hold the true score, and writes the page
with both. Do not edit it by hand; its text is in `tests/scores.yaml` and `tools/make_scores_page.py`.

## What each number is equal to

Each number that bertkit prints is counted a second time by code that shares nothing with bertkit: a library, a model of
transformers, or an official scorer written as a plain loop. The tests compare both on random answers.

| printed by | metrics | equal to | tests | result |
|---|---|---|---|---|
"""

INTERVALS = """
## Intervals

A score has a 95% interval over rows: it says how far the score on all rows of this kind may lie from the score on
these. The model is fixed, so it does not say what another training seed would give. The terminal, `--json` (under
`interval_methods`), the report and the model card name the method of each interval:

* **Wilson**: the score is a share, such as accuracy or exact match. Precision and recall are shares of the rows that
  are predicted or gold, and F1 of one label follows from the share of those rows that are both. This interval is valid
  for few rows, and where all or none are right: 12 of 12 is 0.7575 to 1.
* **bootstrap**: other scores, from 1,000 resamples of the rows. The ends are BCa percentiles (Efron 1987). For few
  rows they lie further out, as Student's quantiles do (Hesterberg 2015).
* **halves**: `ece`, `adaptive_ece` and `squared_error_debiased` of a [calibration](calibration.md), from 1,000 random
  halves of the rows: twice the value less that of a half, at 2.5% and 97.5% of the halves (the jackknife histogram, Wu
  1990). Chance makes these errors larger. Resampled rows repeat, which makes them larger once more, so that a bootstrap
  would leave out the true error. Where the interval of `squared_error_debiased` reaches 0, the other two do as well.

A score has no interval where its resamples score the same, and where there is only one row and the score is not a
share. The reason is printed. A correlation of 1 on 12 rows does not tell how far it may be off.

`best_f1` and `best_exact` are the best of many thresholds on the same rows, which makes them too high for few rows. So
are `f1` and `exact_match` where the threshold was [tuned](recipes.md#questions-without-an-answer) on the scored rows,
and a line says so. Score other rows with `bertkit eval --split test`.

### How often they hold the truth

The true score of a made-up population is known. Each trial draws rows from it and asks whether their interval holds
that score, which 95% of them should. Models range from 60% to 97% right. `none` is the share of trials without an
interval, mostly because everything was right; these trials do not count. A cell has {trials} trials of {samples}
resamples, so figures from {least:.1f} to {most:.1f} do not differ from 95 beyond the noise of the simulation; those
below are bold. Metrics of the same rows share the draws, so their figures err together. The rows of
`rankings` are queries.

| rows | metric | method | n = 20 | n = 100 | n = 1,000 |
|---|---|---|---:|---:|---:|
"""


CALIBRATION = """
The intervals of the measures of a calibration are simulated in the same way, with {trials} trials. Figures from
{least:.1f} to {most:.1f} do not differ from 95 beyond the noise. The model is as sure as it is right, or its logits are
1.15 times or twice as large. The mean width of the intervals is in parentheses. An `ece` of 0 lies at the end of what
is possible, so intervals hold it more often than 95 times of 100.

| confidence | measure | true value | n = 300 | n = 1,000 | n = 5,000 |
|---|---|---:|---:|---:|---:|
"""


FALSE_ALARMS = """
## False alarms

Where there is nothing to find, nothing should be found. The rows are pairs of MRPC, {train} to train on and
{validation} to validate, drawn anew each time. Their labels are random, as skewed as the column says, for `check`.
For `errors` and `compare`, the mistakes of two runs fall on rows at random ({wrong:.0%} of the training rows);
`errors` tests up to 14 slices of them, by label among others. A cell is how often something is found in {draws} draws,
with Wilson's 95% interval.

`check --label-errors` is not here: random labels are wrong, and it says so. `probe` calls nothing a
finding; a control stands beside each of its scores. `python -m benchmarks.null_tables` counts again.

| what is found | {shares} |
|---|{columns}
"""


def null_lines(cells: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table of false alarms."""
    lines: dict[str, list[str]] = {}
    for cell in cells:
        low, high = wilson_interval(cell["alarms"], cell["draws"])
        lines.setdefault(cell["what"], []).append(
            f"{100 * cell['alarms'] / cell['draws']:.0f}% ({100 * low:.1f} to {100 * high:.1f})"
        )
    return [f"| {' | '.join([what, *line])} |" for what, line in lines.items()]


def recount_lines(entries: list[dict[str, Any]], results: dict[str, Counter[str]]) -> list[str]:
    """Return the lines of the table of metrics."""
    lines = []
    for entry in entries:
        metrics = ", ".join(f"`{name}`" for name in entry["metrics"])
        cells = [f"`{entry['where']}`", metrics, entry["same_as"], *test_cells(entry["tests"], results)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def noise_of(trials: int) -> float:
    """Return how far the share of trials lies from 0.95 by chance, 95 times of 100."""
    return float(1.96 * (0.05 * 0.95 / trials) ** 0.5)


def coverage_lines(coverage: dict[str, Any]) -> list[str]:
    """Return the lines of the table of coverage, a metric on each."""
    least = 100 * (0.95 - noise_of(coverage["trials"]))
    lines: dict[tuple[str, str], list[str]] = {}
    methods: dict[tuple[str, str], set[str]] = {}
    for cell in coverage["cells"]:
        head, none = (cell["rows"], f"`{cell['metric']}`"), 1 - cell["intervals"] / coverage["trials"]
        text = held_text(cell, least)
        lines.setdefault(head, []).append(text + (f" ({100 * none:.0f} none)" if none >= 0.005 else ""))
        methods.setdefault(head, set()).update(cell["methods"])
    return [f"| {' | '.join([*head, ' or '.join(sorted(methods[head])), *cells])} |" for head, cells in lines.items()]


def held_text(cell: dict[str, Any], least: float) -> str:
    """Write the percent of intervals that held the truth, bold where there are fewer than `least`."""
    held = 100 * cell["held"] / cell["intervals"]
    return f"{held:.1f}" if held >= least - 0.05 else f"**{held:.1f}**"


def calibration_lines(cells: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table of the measures of calibrations."""
    least = 100 * (0.95 - noise_of(cells[0]["trials"]))
    lines: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        line = lines.setdefault((cell["rows"], f"`{cell['metric']}`"), [f"{cell['truth']:.2g}"])
        line.append(f"{held_text(cell, least)} ({cell['width']:.2g})")
    return [f"| {' | '.join([*head, *line])} |" for head, line in lines.items()]


def false_alarms(null: dict[str, Any]) -> str:
    """Return the section about what is found where there is nothing to find."""
    shares = list(dict.fromkeys(f"{100 * cell['share']:.0f}:{100 - 100 * cell['share']:.0f}" for cell in null["cells"]))
    settings = {name: value for name, value in null.items() if name != "cells"}
    head = FALSE_ALARMS.format(**settings, shares=" | ".join(shares), columns="---:|" * len(shares))
    return head + "\n".join([*null_lines(null["cells"]), ""])


def scores_page(entries: list[dict[str, Any]], results: dict[str, Counter[str]], coverage: dict[str, Any]) -> str:
    """Return the page: what each metric is equal to, and how often intervals hold the truth."""
    noise = noise_of(coverage["trials"])
    trials = {"trials": coverage["trials"], "samples": coverage["samples"]}
    head = INTERVALS.format(**trials, least=100 * (0.95 - noise), most=100 * (0.95 + noise))
    recounted, covered = recount_lines(entries, results), coverage_lines(coverage)
    cells = coverage["calibration"]
    count, noise = cells[0]["trials"], noise_of(cells[0]["trials"])
    second = CALIBRATION.format(trials=count, least=100 * (0.95 - noise), most=100 * (0.95 + noise))
    measured = calibration_lines(cells)
    return HEAD + "\n".join([*recounted, ""]) + head + "\n".join([*covered, ""]) + second + "\n".join([*measured, ""])


def main() -> None:
    """Run the tests and write the page; exit with 1 if one failed."""
    entries = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    results = run_tests(sorted({test for entry in entries for test in entry["tests"]}))
    coverage, null = (json.loads(file.read_text(encoding="utf-8")) for file in (COVERAGE, NULL))
    PAGE.write_text(scores_page(entries, results, coverage) + false_alarms(null), encoding="utf-8")
    print(f"{PAGE}: written")
    sys.exit(any(result["failed"] or not result for result in results.values()))


if __name__ == "__main__":
    main()
