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

Tests compute each score that bertkit prints a second time with independent code, on random predictions. This code is a
library, a model of transformers, or an official scorer written as a plain loop. `make scores` runs the tests of
`tests/scores.yaml`, simulates how often intervals contain the true score, and writes this page.

## Recounted metrics

| printed by | metrics | equal to | tests |
|---|---|---|---|
"""

INTERVALS = """
## Intervals

A score has a 95% interval over rows: it shows how much the score varies among samples of rows. The model is fixed, so
the interval does not include the variance of training seeds. The terminal, `--json` (`interval_methods`), the report
and the model card name the method:

* **Wilson**: for fractions, such as accuracy and exact match, and for precision, recall and F1 of one label. This
  interval is valid for few rows, and if all or no rows are right: for 12 of 12, it is 0.7575 to 1.
* **bootstrap**: for other scores, from 1,000 resamples of the rows, with BCa percentiles (Efron 1987). For few rows,
  the interval is widened as Student's quantiles are (Hesterberg 2015).
* **halves**: for `ece`, `adaptive_ece` and `squared_error_debiased` of a [calibration](calibration.md), from 1,000
  random halves of the rows (the jackknife histogram, Wu 1990). A bootstrap would miss the true error, because repeated
  rows increase it. If the interval of `squared_error_debiased` contains 0, the other two start at 0.

A score has no interval if all resamples have the same score, or if there is only one row and the score is not a
fraction. bertkit prints the reason.

`best_f1` and `best_exact` are the best of many thresholds on the same rows, so they are too high for few rows. If the
threshold was [tuned](recipes.md#questions-without-an-answer) on the scored rows, `f1` and `exact_match` are too high
for the same reason; bertkit prints a note. Score other rows with `bertkit eval --split test`.

### Coverage

Each trial draws n rows from a simulated population with a known score. A cell has the percentage of intervals that
contain this score; it should be 95. Models are 60% to 97% accurate. Trials without an interval are excluded; their
percentage is in parentheses. In most of them, every row was right.

With {trials} trials of {samples} resamples, figures from {lowest:.1f} to {highest:.1f} do not differ from 95
significantly. Lower figures are bold. Metrics of the same rows use the same draws. The rows of `rankings` are queries.

| rows | metric | method | n = 20 | n = 100 | n = 1,000 |
|---|---|---|---:|---:|---:|
"""


CALIBRATION = """
The intervals of the measures of a calibration have {trials} trials, so figures from {lowest:.1f} to {highest:.1f} do
not differ from 95 significantly. The logits are calibrated, 1.15 times too large, or twice as large. The mean width of
the intervals is in parentheses. An `ece` of 0 is the lowest possible value, so intervals contain it more often.

| confidence | measure | true value | n = 300 | n = 1,000 | n = 5,000 |
|---|---|---:|---:|---:|---:|
"""


FALSE_ALARMS = """
## False alarms

The table shows how often bertkit reports a finding in {draws} random datasets that contain no pattern. (95%
intervals: 0 of {draws} is 0 to {zero:.1f}%; {highest:.0f} of {draws} is {low:.1f} to {high:.1f}%.) Each dataset
has {train} training and {validation} validation pairs of MRPC. For `check`, labels are random, with the frequencies
in the heading. For `errors` and `compare`, each of two runs is wrong on a random {wrong:.0%} of the training rows.
`errors` tests up to 14 slices.

`check --label-errors` is not in the table, because it is right to report random labels.
`python -m benchmarks.null_tables` repeats the measurement.

| finding | {shares} |
|---|{columns}
"""


def null_lines(cells: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table of false alarms."""
    lines: dict[str, list[str]] = {}
    for cell in cells:
        lines.setdefault(cell["what"], []).append(f"{100 * cell['alarms'] / cell['draws']:.0f}%")
    return [f"| {' | '.join([finding, *line])} |" for finding, line in lines.items()]


def recount_lines(entries: list[dict[str, Any]], results: dict[str, Counter[str]]) -> list[str]:
    """Return the lines of the table of metrics."""
    lines = []
    for entry in entries:
        metrics = ", ".join(f"`{name}`" for name in entry["metrics"])
        cells = [f"`{entry['where']}`", metrics, entry["same_as"], test_cells(entry["tests"], results)[1]]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def coverage_noise(trials: int) -> float:
    """Return the half-width of the 95% interval of a coverage of 0.95."""
    return float(1.96 * (0.05 * 0.95 / trials) ** 0.5)


def coverage_lines(coverage: dict[str, Any]) -> list[str]:
    """Return the lines of the table of coverage, a metric on each."""
    min_percent = 100 * (0.95 - coverage_noise(coverage["trials"]))
    lines: dict[tuple[str, str], list[str]] = {}
    methods: dict[tuple[str, str], set[str]] = {}
    for cell in coverage["cells"]:
        head, none = (cell["rows"], f"`{cell['metric']}`"), 1 - cell["intervals"] / coverage["trials"]
        text = held_text(cell, min_percent)
        lines.setdefault(head, []).append(text + (f" ({100 * none:.0f})" if none >= 0.005 else ""))
        methods.setdefault(head, set()).update(cell["methods"])
    return [f"| {' | '.join([*head, ' or '.join(sorted(methods[head])), *cells])} |" for head, cells in lines.items()]


def held_text(cell: dict[str, Any], min_percent: float) -> str:
    """Format the percentage of intervals that contain the truth, in bold if it is below `min_percent`."""
    held = 100 * cell["held"] / cell["intervals"]
    return f"{held:.1f}" if held >= min_percent - 0.05 else f"**{held:.1f}**"


def calibration_lines(cells: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table of the measures of calibrations."""
    min_percent = 100 * (0.95 - coverage_noise(cells[0]["trials"]))
    lines: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        line = lines.setdefault((cell["rows"], f"`{cell['metric']}`"), [f"{cell['truth']:.2g}"])
        line.append(f"{held_text(cell, min_percent)} ({cell['width']:.2g})")
    return [f"| {' | '.join([*head, *line])} |" for head, line in lines.items()]


def false_alarms(null: dict[str, Any]) -> str:
    """Return the section about findings in data without a pattern."""
    shares = list(dict.fromkeys(f"{100 * cell['share']:.0f}:{100 - 100 * cell['share']:.0f}" for cell in null["cells"]))
    settings = {name: value for name, value in null.items() if name != "cells"}
    draws, max_alarms = null["draws"], max(cell["alarms"] for cell in null["cells"])
    (_, zero), (low, high) = ([100 * end for end in wilson_interval(alarms, draws)] for alarms in (0, max_alarms))
    limits = {"zero": zero, "highest": 100 * max_alarms / draws, "low": low, "high": high}
    head = FALSE_ALARMS.format(**settings, **limits, shares=" | ".join(shares), columns="---:|" * len(shares))
    return head + "\n".join([*null_lines(null["cells"]), ""])


def scores_page(entries: list[dict[str, Any]], results: dict[str, Counter[str]], coverage: dict[str, Any]) -> str:
    """Return the page: what each metric is equal to, and how often intervals hold the truth."""
    noise = coverage_noise(coverage["trials"])
    trials = {"trials": coverage["trials"], "samples": coverage["samples"]}
    head = INTERVALS.format(**trials, lowest=100 * (0.95 - noise), highest=100 * (0.95 + noise))
    recounted, covered = recount_lines(entries, results), coverage_lines(coverage)
    cells = coverage["calibration"]
    count, noise = cells[0]["trials"], coverage_noise(cells[0]["trials"])
    second = CALIBRATION.format(trials=count, lowest=100 * (0.95 - noise), highest=100 * (0.95 + noise))
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
