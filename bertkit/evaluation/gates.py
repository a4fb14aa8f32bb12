"""Gates: scores that a model must reach, and the largest acceptable loss against another model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from bertkit.errors import UsageError, did_you_mean
from bertkit.evaluation.differences import Extra, SystemScores, group_rows, slice_values
from bertkit.evaluation.run_sets import SeedsSummary
from bertkit.evaluation.scoring import EvalResult
from bertkit.evaluation.stored_predictions import StoredPredictionScorer
from bertkit.metrics.baselines import Scores
from bertkit.metrics.intervals import Interval, count_examples, select_units
from bertkit.metrics.paired import Difference, apply_holm, compare_paired, compare_seeds, judge_difference
from bertkit.metrics.registry import is_lower_better
from bertkit.metrics.slices import MIN_UNITS
from bertkit.modeling.checkpoint import get_weight_bytes
from bertkit.recipe.records import GateConfig
from bertkit.reports.cases import Case, Outcome
from bertkit.reports.text import p_text, score_text
from bertkit.storage.exports import is_exported
from bertkit.storage.run_list import count_bytes
from bertkit.tokens.features import Rows

Ece = Mapping[str, Any]
"""``value`` and ``interval`` of a calibration error."""


@dataclass(frozen=True)
class WorseGate:
    """Limit on how much worse a model can be than the first.

    Args:
        metrics: Metrics that must not get worse; the best metric if empty.
        margin: Largest acceptable loss; if above 0, the test must rule out a larger one.
        undecided: Outcome if there are too few rows to decide.
    """

    metrics: Sequence[str] = ()
    margin: float = 0.0
    undecided: Literal["fail", "pass"] = "fail"

    def choose_metrics(self, scorer: StoredPredictionScorer, system: SystemScores) -> list[str]:
        """Return the metrics to test.

        Raises:
            UsageError: If one of them is not scored.
        """
        scores = scorer.score(system.row_scores[0])
        for name in self.metrics:
            if name not in scores:
                raise UsageError(f"--metric {name} is not scored", did_you_mean(name, scores))
        return list(self.metrics) or [scorer.recipe.best_metric]


class GateTest(NamedTuple):
    """Difference that a gate tests; without a difference, there are too few units for a test."""

    group: str
    name: str
    metric: str
    units: int
    difference: Difference | None


def judge_scores(
    gates: GateConfig, group: str, scores: Scores, intervals: Mapping[str, Interval], ece: Ece | None, size: int
) -> list[Case]:
    """Judge the scores of a model by the gates of a recipe, one case per gate.

    Args:
        gates: Gates of the recipe.
        group: Subject of the scores, such as the name of a split.
        scores: Metric -> score.
        intervals: Metric -> its 95% interval.
        ece: Expected calibration error, if known.
        size: Size of the weights in bytes.
    """
    all_scores = {**scores, "size_mb": size / 1e6} | ({"ece": ece["value"]} if ece else {})
    all_intervals = {**intervals} | ({"ece": ece["interval"]} if ece else {})
    cases = []
    for name, bound in gates.limits.items():
        value, interval = all_scores.get(name), all_intervals.get(name)
        is_maximum = is_lower_better(name)
        requirement = f"at {'most' if is_maximum else 'least'} {bound:g}"
        # With confidence, the complete interval must pass, so compare its worse end with the bound.
        end = interval and interval[is_maximum] if gates.use_interval and name != "size_mb" else value
        # A gate without a measurement fails; otherwise, a broken measurement would pass unnoticed.
        if value is None or end is None:
            problem = "not measured" if value is None else f"{score_text(value)} has no interval"
            cases.append(Case(group, name, "failed", f"{problem}, and {requirement} is required"))
            continue
        is_reached = end <= bound if is_maximum else end >= bound
        measurement = f"{score_text(value)}{f' (95% CI {score_text(interval)})' if interval else ''}"
        confidence = " with confidence" if gates.use_interval else ""
        text = f"{measurement}, {'' if is_reached else 'not '}{requirement}{confidence}"
        cases.append(Case(group, name, "passed" if is_reached else "failed", text))
    return cases


def judge_seeds(gates: GateConfig, summary: SeedsSummary) -> list[Case]:
    """Judge the means over several seeds, and the size of one model; calibration is not measured."""
    size = next((model_bytes(Path(summary.folder, run.name)) for run in summary.runs if run.results), 0)
    cases = []
    for split in summary.splits:
        known_spreads = {name: spread for name, spread in split.spreads.items() if spread is not None}
        means = {name: spread.mean for name, spread in known_spreads.items()}
        intervals = {name: spread.interval for name, spread in known_spreads.items()}
        cases += judge_scores(gates, split.split, means, intervals, None, size)
    return cases


def model_bytes(folder: Path) -> int:
    """Return the size of a model on disk: its weights, or all files of an exported model."""
    return count_bytes(folder) if is_exported(folder) else get_weight_bytes(folder)


def judge_result(gates: GateConfig, result: EvalResult, folders: Sequence[Path] = ()) -> EvalResult:
    """Return a result with the outcomes of its gates; `folders` of weights default to the result's folder."""
    if not gates.limits:
        return result
    size = sum(map(model_bytes, folders or [Path(str(result.folder))]))
    return replace(result, gates=judge_scores(gates, result.split, result.scores, result.intervals, result.ece, size))


def compare_systems(scorer: StoredPredictionScorer, first: SystemScores, second: SystemScores) -> dict[str, Difference]:
    """Compare two systems on all metrics; with several seeds per system, the test also covers other seeds."""
    if len(first.row_scores) > 1:
        return compare_seeds(scorer.score, first.row_scores, second.row_scores, scorer.task.METRICS)
    return compare_paired(scorer.score, first.row_scores[0], second.row_scores[0], scorer.task.METRICS)


def judge_systems(
    scorer: StoredPredictionScorer,
    rows: Rows,
    systems: Mapping[str, SystemScores],
    differences: Mapping[str, Mapping[str, Difference]],
    extra: Extra,
    gate: WorseGate | None,
) -> list[Case]:
    """Judge each system after the first by a gate, on all rows and per value of extra columns.

    Args:
        scorer: Scorer of the systems.
        rows: Rows that all systems have predicted.
        systems: Name of a system -> its predictions.
        differences: Name of a system after the first -> metric -> its difference from the first.
        extra: Name of a column -> its value in each row.
        gate: Gate to apply, or None for an empty result.
    """
    if gate is None:
        return []
    first, *rivals = systems
    metrics, units = gate.choose_metrics(scorer, systems[first]), count_examples(systems[first].row_scores[0])
    tests = [GateTest(name, metric, metric, units, differences[name][metric]) for name in rivals for metric in metrics]
    # Compute only the tested metrics in each resample of each slice.
    if set(metrics) <= set(scorer.recipe.metrics):
        scorer = replace(scorer, recipe=scorer.recipe.model_copy(update={"metrics": metrics}))
    # Slices make many tests, so their p values are corrected separately from the tests on all rows.
    slice_tests = []
    slices = slice_values(scorer, rows, group_rows(scorer, rows, systems[first]), extra)
    for by, name in ((by, name) for by in extra for name in rivals):
        for value, members in slices.get(by, {}).items():
            by_metric: dict[str, Difference] = {}
            if len(members) >= MIN_UNITS:
                indices = np.array(members)
                parts = [
                    replace(system, row_scores=[select_units(arrays, indices) for arrays in system.row_scores])
                    for system in (systems[first], systems[name])
                ]
                by_metric = compare_systems(scorer, *parts)
            slice_tests += [
                GateTest(f"{name}, {by}", f"{value}: {metric}", metric, len(members), by_metric.get(metric))
                for metric in metrics
            ]
    return judge_worse(tests, gate) + judge_worse(slice_tests, gate)


def judge_worse(tests: Sequence[GateTest], gate: WorseGate) -> list[Case]:
    """Judge differences by a gate; p values are corrected for the number of tests."""
    # Skipped slices are left out of the correction, which they would make stricter without a reason.
    differences = [test.difference for test in tests if test.difference is not None]
    corrected_differences = iter(apply_holm(differences))
    cases = []
    for group, name, metric, units, diff in tests:
        if diff is None:
            cases.append(Case(group, name, "skipped", f"not tested: {units:,} rows, fewer than {MIN_UNITS}"))
            continue
        diff = next(corrected_differences)
        outcome = judge_difference(diff, units, gate.margin, lower_is_better=is_lower_better(metric))
        # A difference is undecided if too few rows show whether the margin holds.
        undecided: Outcome = "failed" if gate.undecided == "fail" else "skipped"
        interval = "95% CI {:+.4f} to {:+.4f}".format(*diff.interval) if diff.interval else "no interval"
        corrected_p = "" if diff.p_holm is None else f", p {p_text(diff.p_holm)} after correction"
        scores = f"{score_text(diff.first)}, then {score_text(diff.second)}"
        text = f"{scores}: {diff.difference:+.4f} ({interval}{corrected_p})"
        by = f" by more than {gate.margin:g}" if gate.margin else ""
        if outcome == "undecided":
            detectable = "" if diff.detectable is None else f": {units:,} show a difference of {diff.detectable:.4f}"
            text += f", too few rows to tell whether it is worse{by}{detectable}"  # dialect: ok, in the docs
        elif outcome == "failed":
            text += f", worse{by}"
        else:
            text += f", not worse{by}" if by else ", not shown to be worse"
        cases.append(Case(group, name, undecided if outcome == "undecided" else outcome, text))
    return cases
