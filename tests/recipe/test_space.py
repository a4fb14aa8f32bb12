"""Spaces of a sweep: what is typed, what is refused, and which points are tried."""

from __future__ import annotations

import itertools
import math

import pytest

from bertkit.errors import UsageError
from bertkit.recipe.space import BERT_GRID, name_point, parse_axis, parse_sweep_space


def take(search, count, seed=1):
    return list(itertools.islice(search.points(seed), count))


def test_the_usual_space_is_the_grid_of_bert():
    search = parse_sweep_space("grid", (), None)
    points = list(search.points(1))
    assert search.trials == len(points) == 24
    assert points[0] == {"training.batch_size": 16, "training.learning_rate": 5e-5, "training.epochs": 2}
    assert points[-1] == {"training.batch_size": 32, "training.learning_rate": 2e-5, "training.epochs": 4}
    assert search.describe()["space"] == dict(axis.split("=") for axis in BERT_GRID)


def test_values_are_yaml():
    values = parse_axis("training.class_weights=balanced, null, {a: 1, b: 2}, no, true, 1e-5").values
    assert values == ("balanced", None, {"a": 1, "b": 2}, "no", True, 1e-5)


def test_random_points_follow_from_the_seed_and_their_number_and_none_comes_twice():
    axes = ["training.batch_size=16,32", "training.epochs=int:2..4"]
    everything = take(parse_sweep_space("random", axes, 6), 6)
    assert len(set(map(name_point, everything))) == 6
    assert take(parse_sweep_space("random", axes, 3), 3) == everything[:3]
    assert take(parse_sweep_space("random", axes, 6), 6, seed=2) != everything


def test_a_logarithmic_range_has_as_many_points_in_each_order_of_magnitude():
    rates = [point["a"] for point in take(parse_sweep_space("random", ["a=log:1e-5..1e-3"], 900), 900)]
    assert min(rates) >= 1e-5 and max(rates) <= 1e-3
    assert 0.45 < sum(rate < 1e-4 for rate in rates) / len(rates) < 0.55
    assert all(float(f"{rate:.4g}") == rate for rate in rates)
    even = [point["a"] for point in take(parse_sweep_space("random", ["a=float:0..1"], 900), 900)]
    assert math.isclose(sum(even) / len(even), 0.5, abs_tol=0.05)


@pytest.mark.parametrize(
    ("method", "space", "trials", "what"),
    [
        ("gird", (), None, "--search gird"),
        ("grid", ["a"], None, "is not key=values"),
        ("grid", ["=1,2"], None, "is not key=values"),
        ("grid", ["a="], None, "is not key=values"),
        ("grid", ["a=[1,2"], None, "is not key=values"),
        ("grid", ["a=1"], None, "has one value"),
        ("grid", ["a=1,1"], None, "a has the value 1 twice"),
        ("grid", ["a=1,2", "a=3,4"], None, "names a twice"),
        ("grid", ["a=float:0..1"], None, "there is no grid"),
        ("random", ["a=log:1..x"], None, "not a range of numbers"),
        ("random", ["a=int:1..2.5"], None, "not a range of integers"),
        ("random", ["a=log:1"], None, "not a range of numbers"),
        ("random", ["a=log:0..1"], None, "must start above zero"),
        ("random", ["a=float:2..1"], None, "not below the second"),
        ("random", ["a=float:0..inf"], None, "not below the second"),
        ("random", ["a=int:1..5000"], None, "more than 1,000 integers"),
        ("random", ["a=1,2"], 3, "the space has only 2 points"),
        ("random", ["a=1,2"], 0, "--trials 0"),
        ("grid", ["a=1,2"], 1, "the grid has 2 points"),
        ("grid", [f"{key}=int:1..20" for key in "abc"], None, "8,000 trials"),
    ],
)
def test_what_is_no_space_is_refused(method, space, trials, what):
    with pytest.raises(UsageError) as refused:
        parse_sweep_space(method, space, trials)
    assert what in refused.value.message and refused.value.remedy


def test_a_range_of_few_different_numbers_has_an_end():
    with pytest.raises(UsageError, match="has only 2 points"):
        take(parse_sweep_space("random", ["a=float:1..1.001"], 5), 5)
