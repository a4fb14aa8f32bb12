"""Search space of a sweep: keys of a recipe with their values or ranges, and the points of a grid or random search.

>>> parse_axis("training.batch_size=16,32").values
(16, 32)
>>> parse_axis("training.learning_rate=log:1e-5..1e-4").scale
'log'
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bertkit.errors import RecipeError, UsageError, did_you_mean, shorten
from bertkit.recipe.yaml import read_value

SweepPoint = dict[str, Any]
"""Recipe key -> value: the settings of one trial."""

BERT_GRID = (
    "training.batch_size=16,32",
    "training.learning_rate=5e-5,4e-5,3e-5,2e-5",
    "training.epochs=2,3,4",
)
"""Devlin et al. 2019, section 4.1 and appendix A.3."""

METHODS = ("grid", "random", "tpe")
MAX_TRIALS = 1000
_DEFAULT_TRIALS = 24  # the number of points in BERT's grid
# Position of a test value in a range. The value is rarely an integer, so keys that require integers reject it.
_INNER_POSITION = 0.3819
# Number of draws without a new point, after which the space counts as exhausted.
_MAX_REPEATED_DRAWS = 20_000
_RANGE = re.compile(r"(log|float|int):(.*)\.\.(.*)")
_SCALES = re.compile(r"(log|float|int):")
_EXAMPLES = "write e.g. training.batch_size=16,32 or training.learning_rate=log:1e-5..1e-4"


@dataclass(frozen=True)
class SweepDimension:
    """Searched key with its list of values, or its range of integers or real numbers."""

    key: str
    text: str
    """Text after the ``=``, as the user typed it."""
    scale: str
    """``list``, ``int``, ``float``, or ``log``, a range whose orders of magnitude are equally likely."""
    values: tuple[Any, ...] = ()
    """All values of a list or of a range of integers; empty for real numbers."""
    low: float = 0
    high: float = 0

    def draw(self, rng: random.Random) -> Any:
        """Draw a value; all values of a list, and all parts of the scale, are equally likely."""
        if self.values:
            return rng.choice(self.values)
        fraction = rng.random()
        # For a range from 1e-5 to 1e-3, half of the draws are below 1e-4.
        if self.scale == "log":
            return self.round(math.exp(math.log(self.low) + fraction * (math.log(self.high) - math.log(self.low))))
        return self.round(self.low + fraction * (self.high - self.low))

    def round(self, value: float) -> float:
        """Round a real number to four digits, so that users can read and type it, but keep it within the range."""
        return min(max(float(f"{value:.4g}"), self.low), self.high)

    @property
    def extremes(self) -> tuple[Any, ...]:
        """Values that show whether a recipe accepts the key: a complete list, or both ends and a point of a range."""
        if self.scale == "list":
            return self.values
        if self.scale == "int":
            return self.values[0], self.values[-1]
        return self.low, self.high, self.round(self.low + _INNER_POSITION * (self.high - self.low))


@dataclass(frozen=True)
class SweepSpace:
    """Method that chooses the points of a space, and their number."""

    method: str
    axes: tuple[SweepDimension, ...]
    trials: int

    def points(self, seed: int) -> Iterator[SweepPoint]:
        """Yield the points of a grid in order, or distinct random points; the n-th depends only on the seed and n."""
        if self.method == "grid":
            for values in itertools.product(*(axis.values for axis in self.axes)):
                yield dict(zip((axis.key for axis in self.axes), values, strict=True))
            return
        # The points are drawn in one sequence, so a sweep with more trials continues a shorter one.
        rng, names, repeated_draws = random.Random(seed), set[str](), 0
        while repeated_draws < _MAX_REPEATED_DRAWS:
            point = {axis.key: axis.draw(rng) for axis in self.axes}
            repeated_draws += 1
            if (name := name_point(point)) not in names:
                names.add(name)
                repeated_draws = 0
                yield point
        raise UsageError(f"the space has only {len(names):,} points", f"use --trials {len(names)}")

    def describe(self) -> dict[str, Any]:
        """Return the method and the space; searches with equal descriptions can share a folder."""
        return {"search": self.method, "space": {axis.key: axis.text for axis in self.axes}}


def name_point(point: Mapping[str, Any]) -> str:
    """Write a point as ``key=value, ...``.

    >>> name_point({"training.batch_size": 16, "training.learning_rate": 5e-5})
    'training.batch_size=16, training.learning_rate=5e-05'
    """
    return ", ".join(f"{key}={name_value(value)}" for key, value in point.items())


def name_value(value: object) -> str:
    """Write a value of a recipe as in `--set`."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def parse_sweep_space(method: str, space: Iterable[str], trials: int | None) -> SweepSpace:
    """Return the search space that the options describe; without `space`, it is BERT's grid.

    Raises:
        UsageError: If there is no such method, or it does not support the space or the number of trials.
    """
    if method not in METHODS:
        raise UsageError(f"--search {shorten(method)} is not a method", did_you_mean(method, METHODS))
    axes = tuple(map(parse_axis, list(space) or BERT_GRID))
    for axis in axes:
        if [every_axis.key for every_axis in axes].count(axis.key) > 1:
            raise UsageError(f"--space names {axis.key} twice", "give all its values at once, separated by commas")
        if method == "grid" and not axis.values:
            message = f"--space {axis.key}={axis.text} has infinitely many values, so there is no grid"
            raise UsageError(message, "list values, such as 1e-5,2e-5, or use --search random or --search tpe")
    size = math.prod(len(axis.values) for axis in axes) if all(axis.values for axis in axes) else math.inf
    if method == "grid" and trials is not None and trials != size:
        raise UsageError(f"--trials {trials}, but the grid has {size:,} points", "leave it out, or use --search random")
    if trials is None:
        trials = int(size) if method == "grid" else min(_DEFAULT_TRIALS, int(min(size, MAX_TRIALS)))
    if trials < 1:
        raise UsageError(f"--trials {trials}", "give the number of points to try, at least 1")
    if trials > size:
        raise UsageError(f"--trials {trials:,}, but the space has only {size:,} points", "use fewer, or --search grid")
    if trials > MAX_TRIALS:
        raise UsageError(f"the sweep has {trials:,} trials", f"try fewer values: the maximum is {MAX_TRIALS:,} trials")
    return SweepSpace(method, axes, trials)


def parse_axis(text: str) -> SweepDimension:
    """Read ``key=value,value``, ``key=int:2..4``, ``key=float:0..0.3`` or ``key=log:1e-5..1e-4``; values are YAML.

    Raises:
        UsageError: If the text has another form.
    """
    key, equals, values_text = (part.strip() for part in text.partition("="))
    if not equals or not key or not values_text:
        raise UsageError(f"--space {shorten(text)} is not key=values", _EXAMPLES)
    if _SCALES.match(values_text):
        return _parse_range(key, values_text)
    try:
        values = read_value(f"[{values_text}]")
    except RecipeError as error:
        raise UsageError(f"--space {shorten(text)}: {error.message}", _EXAMPLES) from None
    if not isinstance(values, list):
        raise UsageError(f"--space {shorten(text)} is not key=values", _EXAMPLES)
    if len(values) < 2:
        raise UsageError(f"--space {shorten(text)} has one value", f"give several, or use --set {shorten(text)}")
    names = list(map(name_value, values))
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--space {key} has the value {shorten(name)} twice", "give each value once")
    return SweepDimension(key, values_text, "list", tuple(values))


def _parse_range(key: str, range_text: str) -> SweepDimension:
    option = f"--space {key}={shorten(range_text)}"
    match = _RANGE.fullmatch(range_text)
    convert = int if range_text.startswith("int:") else float
    try:
        if match is None:
            raise ValueError
        scale, low, high = match[1], convert(match[2]), convert(match[3])
    except ValueError:
        kind = "integers" if convert is int else "numbers"
        raise UsageError(f"{option} is not a range of {kind}", "write e.g. log:1e-5..1e-4 or int:2..4") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(f"{option}: the first number is not below the second", "write the smaller one first")
    if scale == "log" and low <= 0:
        raise UsageError(f"{option}: a log range must start above zero", "start higher, or write float:")
    if scale == "int":
        if high - low >= MAX_TRIALS:
            raise UsageError(f"{option} has more than {MAX_TRIALS:,} integers", "give a shorter range")
        return SweepDimension(key, range_text, scale, tuple(range(int(low), int(high) + 1)), low, high)
    return SweepDimension(key, range_text, scale, (), low, high)
