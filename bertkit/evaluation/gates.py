"""Gates: what a model must score, and by how much it must not be worse than another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from bertkit.errors import UsageError, closest
from bertkit.evaluation.differences import Side, group_rows, slice_values
from bertkit.evaluation.stored import Scorer
from bertkit.metrics.basic import LOWER_IS_BETTER
from bertkit.metrics.paired import Difference, compare_paired, count_units, holm, judge_difference, take
from bertkit.metrics.paired_seeds import compare_seeds
from bertkit.metrics.slices import LEAST_UNITS
from bertkit.reports.cases import Case, Outcome
from bertkit.reports.text import p_text, score_text
from bertkit.tokens.features import Rows


@dataclass(frozen=True)
class WorseGate:
    """By how much a model must not be worse than the first."""

    metrics: Sequence[str] = ()
    """The best metric where there is none."""
    margin: float = 0.0
    """How much may be lost; above 0, it must be shown that no more is."""
    undecided: Literal["fail", "pass"] = "fail"
    """What becomes of a difference that too few rows show."""

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
    """One difference of several that a gate is about."""

    group: str
    name: str
    metric: str
    units: int
    found: Difference | None
    """None where too few units are there to test it."""


def compare_sides(scorer: Scorer, first: Side, second: Side) -> dict[str, Difference]:
    """Compare two systems, over their seeds too where each has several."""
    if len(first.judged) > 1:
        return compare_seeds(scorer.score, first.judged, second.judged)
    return compare_paired(scorer.score, first.judged[0], second.judged[0])


def judge_systems(
    scorer: Scorer,
    rows: Rows,
    sides: Mapping[str, Side],
    differences: Mapping[str, Mapping[str, Difference]],
    extra: Mapping[str, Sequence[Any]],
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
    of_all = [
        GatedDifference(name, metric, metric, units, differences[name][metric]) for name in others for metric in metrics
    ]
    if set(metrics) <= set(scorer.recipe.metrics):  # no other need be scored in each resample of each slice
        scorer = replace(scorer, recipe=scorer.recipe.model_copy(update={"metrics": metrics}))
    numbers = group_rows(scorer, rows, sides[first])
    slices = slice_values(scorer, rows, numbers, extra)
    of_slices = [
        GatedDifference(f"{name}, {by}", f"{value}: {metric}", metric, len(chosen), found[metric] if found else None)
        for by in extra
        for name in others
        for value, chosen in slices.get(by, {}).items()
        for found in (_compare_slice(scorer, sides[first], sides[name], chosen),)
        for metric in metrics
    ]
    return judge_worse(of_all, gate) + judge_worse(of_slices, gate)


def _compare_slice(scorer: Scorer, first: Side, second: Side, units: Sequence[int]) -> dict[str, Difference] | None:
    """Compare two systems on some units; None where these are too few."""
    if len(units) < LEAST_UNITS:
        return None
    chosen = np.array(units)
    sides = [Side(side.predictions, [take(of, chosen) for of in side.judged]) for side in (first, second)]
    return compare_sides(scorer, *sides)


def judge_worse(tested: Sequence[GatedDifference], gate: WorseGate) -> list[Case]:
    """Judge differences by a gate; p of several is corrected for their number."""
    known = [one.found.p for one in tested if one.found is not None]
    corrected = iter(holm(known) if len(known) > 1 else [None])
    cases = []
    for group, name, metric, units, found in tested:
        if found is None:
            text = f"not tested: {units:,} rows, and {LEAST_UNITS} are the fewest"
            cases.append(Case(group, name, "skipped", text))
            continue
        found = replace(found, p_holm=next(corrected))
        outcome = judge_difference(found, units, gate.margin, lower_is_better=metric in LOWER_IS_BETTER)
        text = f"{score_text(found.first)}, then {score_text(found.second)}: "
        text += f"{found.difference:+.4f}" + _ends_of(found) + _explain(outcome, found, units, gate)
        undecided: Outcome = "failed" if gate.undecided == "fail" else "skipped"
        cases.append(Case(group, name, undecided if outcome == "undecided" else outcome, text))
    return cases


def _ends_of(found: Difference) -> str:
    ends = "no interval" if found.interval is None else f"95% CI {found.interval[0]:+.4f} to {found.interval[1]:+.4f}"
    return f" ({ends}{'' if found.p_holm is None else f', p {p_text(found.p_holm)} after correction'})"


def _explain(outcome: str, found: Difference, units: int, gate: WorseGate) -> str:
    by = f" by more than {gate.margin:g}" if gate.margin else ""
    if outcome != "undecided":
        return f", {'worse' if outcome == 'failed' else 'not shown to be worse' if not by else 'not worse'}{by}"
    least = "" if found.detectable is None else f": {units:,} show a difference of {found.detectable:.4f}"
    return f", too few rows to tell whether it is worse{by}{least}"
