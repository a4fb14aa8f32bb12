"""Gates: what a model must score, and by how much it must not be worse than another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from bertkit.errors import UsageError, closest
from bertkit.evaluation.differences import Extra, Side, group_rows, slice_values
from bertkit.evaluation.run_sets import SeedsSummary
from bertkit.evaluation.scoring import Result
from bertkit.evaluation.stored import Scorer
from bertkit.metrics.baselines import Scores
from bertkit.metrics.intervals import Interval, count_units, take
from bertkit.metrics.paired import Difference, compare_paired, compare_seeds, correct_differences, judge_difference
from bertkit.metrics.registry import is_lower_better
from bertkit.metrics.slices import LEAST_UNITS
from bertkit.modeling.checkpoint import weight_bytes
from bertkit.recipe.records import Gates
from bertkit.reports.cases import Case, Outcome
from bertkit.reports.text import p_text, score_text
from bertkit.storage.exports import is_exported
from bertkit.storage.run_list import count_bytes
from bertkit.tokens.features import Rows

Ece = Mapping[str, Any]
"""``value`` and ``interval`` of a calibration error."""


@dataclass(frozen=True)
class WorseGate:
    """By how much a model must not be worse than the first.

    Args:
        metrics: those that count; the best metric where there is none.
        margin: how much may be lost; above 0, it must be shown that no more is.
        undecided: what becomes of a difference that too few rows show.
    """

    metrics: Sequence[str] = ()
    margin: float = 0.0
    undecided: Literal["fail", "pass"] = "fail"

    def choose(self, scorer: Scorer, side: Side) -> list[str]:
        """Return the metrics that it is about.

        Raises:
            UsageError: one of them is not scored.
        """
        known = scorer.score(side.judged[0])
        for name in self.metrics:
            if name not in known:
                raise UsageError(f"--metric {name} is not scored", closest(name, known))
        return list(self.metrics) or [scorer.recipe.best_metric]


class GatedDifference(NamedTuple):
    """One difference of several that a gate is about; None where too few units are there to test it."""

    group: str
    name: str
    metric: str
    units: int
    found: Difference | None


def judge_scores(
    gates: Gates, group: str, scores: Scores, intervals: Mapping[str, Interval], ece: Ece | None, size: int
) -> list[Case]:
    """Judge what a model scored by the gates of a recipe: a case per gate.

    Args:
        gates: of the recipe.
        group: what was scored, such as the name of a split.
        scores: metric -> score.
        intervals: metric -> its 95% interval.
        ece: where it is known.
        size: bytes of the weights.
    """
    known = {**scores, "size_mb": size / 1e6} | ({"ece": ece["value"]} if ece else {})
    ends = {**intervals} | ({"ece": ece["interval"]} if ece else {})
    cases = []
    for name, bound in gates.limits.items():
        value, interval, is_most = known.get(name), ends.get(name), is_lower_better(name)
        asked = f"at {'most' if is_most else 'least'} {bound:g}"
        # With confidence, the end of the interval must pass, and not the score: the one on the side that could fail.
        end = interval and interval[is_most] if gates.confident and name != "size_mb" else value
        # What was not measured fails: a gate that skips what it cannot judge lets everything pass.
        if value is None or end is None:
            what = "not measured" if value is None else f"{score_text(value)} has no interval"
            cases.append(Case(group, name, "failed", f"{what}, and {asked} is asked for"))
            continue
        reached = end <= bound if is_most else end >= bound
        shown = f"{score_text(value)}{f' (95% CI {score_text(interval)})' if interval else ''}"
        text = f"{shown}, {'' if reached else 'not '}{asked}{' with confidence' if gates.confident else ''}"
        cases.append(Case(group, name, "passed" if reached else "failed", text))
    return cases


def judge_seeds(gates: Gates, summary: SeedsSummary) -> list[Case]:
    """Judge the means of several seeds; the size is that of one of them, and their calibration is not known."""
    size = next((model_bytes(Path(summary.folder, run.name)) for run in summary.runs if run.results), 0)
    cases = []
    for split in summary.splits:
        known = {name: spread for name, spread in split.spreads.items() if spread is not None}
        means = {name: spread.mean for name, spread in known.items()}
        ends = {name: spread.interval for name, spread in known.items()}
        cases += judge_scores(gates, split.split, means, ends, None, size)
    return cases


def model_bytes(folder: Path) -> int:
    """Return the size of a model on disk: of its weights, or of all files of an exported one."""
    if is_exported(folder):
        return count_bytes(folder)
    return weight_bytes(folder)


def judge_result(gates: Gates, result: Result, folders: Sequence[Path] = ()) -> Result:
    """Return a result with what came of the gates; the weights are in its folder, or in those that are named."""
    if not gates.limits:
        return result
    size = sum(map(model_bytes, folders or [Path(str(result.folder))]))
    cases = judge_scores(gates, result.split, result.scores, result.intervals, result.ece, size)
    return replace(result, gates=cases)


def compare_sides(scorer: Scorer, first: Side, second: Side) -> dict[str, Difference]:
    """Compare two systems, over their seeds too where each has several."""
    if len(first.judged) > 1:
        return compare_seeds(scorer.score, first.judged, second.judged, scorer.task.METRICS)
    return compare_paired(scorer.score, first.judged[0], second.judged[0], scorer.task.METRICS)


def judge_systems(
    scorer: Scorer,
    rows: Rows,
    sides: Mapping[str, Side],
    differences: Mapping[str, Mapping[str, Difference]],
    extra: Extra,
    gate: WorseGate | None,
) -> list[Case]:
    """Judge each system after the first by a gate, in all rows and in the slices of extra columns; none without one.

    Args:
        scorer: scores them.
        rows: of all of them.
        sides: name of a system -> its predictions.
        differences: name of a system after the first -> metric -> its difference from the first.
        extra: name of a column -> its value in each row.
        gate: what is asked for.
    """
    if gate is None:
        return []
    first, *others = sides
    metrics, units = gate.choose(scorer, sides[first]), count_units(sides[first].judged[0])
    tested = [
        GatedDifference(name, metric, metric, units, differences[name][metric]) for name in others for metric in metrics
    ]
    # Other metrics need not be computed in each resample of each slice.
    if set(metrics) <= set(scorer.recipe.metrics):
        scorer = replace(scorer, recipe=scorer.recipe.model_copy(update={"metrics": metrics}))
    # Slices make many tests, so their p values are corrected separately from the tests on all rows.
    tested_slices = []
    slices = slice_values(scorer, rows, group_rows(scorer, rows, sides[first]), extra)
    for by, name in ((by, name) for by in extra for name in others):
        for value, members in slices.get(by, {}).items():
            tested_here: dict[str, Difference] = {}
            if len(members) >= LEAST_UNITS:
                indices = np.array(members)
                parts = [
                    replace(side, judged=[take(arrays, indices) for arrays in side.judged])
                    for side in (sides[first], sides[name])
                ]
                tested_here = compare_sides(scorer, *parts)
            tested_slices += [
                GatedDifference(f"{name}, {by}", f"{value}: {metric}", metric, len(members), tested_here.get(metric))
                for metric in metrics
            ]
    return judge_worse(tested, gate) + judge_worse(tested_slices, gate)


def judge_worse(tested: Sequence[GatedDifference], gate: WorseGate) -> list[Case]:
    """Judge differences by a gate; p of several is corrected for their number."""
    corrected = iter(correct_differences([gated.found for gated in tested if gated.found is not None]))
    cases = []
    for group, name, metric, units, diff in tested:
        if diff is None:
            cases.append(Case(group, name, "skipped", f"not tested: {units:,} rows, fewer than {LEAST_UNITS}"))
            continue
        diff = next(corrected)
        outcome = judge_difference(diff, units, gate.margin, lower_is_better=is_lower_better(metric))
        # "Undecided" is an outcome of its own: too few rows to tell whether the margin is kept.
        undecided: Outcome = "failed" if gate.undecided == "fail" else "skipped"
        ends = "no interval" if diff.interval is None else f"95% CI {diff.interval[0]:+.4f} to {diff.interval[1]:+.4f}"
        corrected_p = "" if diff.p_holm is None else f", p {p_text(diff.p_holm)} after correction"
        text = f"{score_text(diff.first)}, then {score_text(diff.second)}: {diff.difference:+.4f} ({ends}{corrected_p})"
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
