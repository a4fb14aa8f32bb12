"""How many bits labels take with the vectors at hand: the online code of Voita and Titov 2020."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from bertkit.insight.probing.linear import code_length, fit_classifier
from bertkit.metrics import Numbers

_SHARES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)  # those of the paper
_LEAST = 8  # items of the first part


@dataclass(frozen=True)
class DescriptionLength:
    """What labels take."""

    bits: float
    uniform_bits: float
    """What they take where nothing is known of them."""

    @property
    def compression(self) -> float:
        """How many times shorter the code is than the uniform one; 1 or less where the vectors tell nothing."""
        return self.uniform_bits / self.bits if self.bits else math.inf


def measure_code(
    features: Numbers, labels: Numbers, classes: int, strength: float, *, gram: Numbers
) -> DescriptionLength:
    """Measure the online (prequential) code of labels, in the order of the items.

    The first thousandth of them is coded uniformly. Each further part, up to the next of the paper's shares, is coded
    with a probe that has learned from all parts before it.

    Args:
        features: as `bertkit.insight.probing.linear.Scaling.apply` returns them, (items, features), in random order.
        labels: numbers of classes, (items,).
        classes: how many there are.
        strength: of the probe; chosen on other items, since it is no part of the code.
        gram: as `bertkit.insight.probing.linear.gram_of` returns it.
    """
    count = len(labels)
    ends = sorted({min(count, max(_LEAST, round(share * count))) for share in _SHARES})
    per_item = math.log2(classes)
    bits, weights = ends[0] * per_item, None
    for begin, end in itertools.pairwise(ends):
        weights = fit_classifier(features[:begin], labels[:begin], classes, strength, gram=gram, start=weights)
        bits += code_length(features[begin:end], labels[begin:end], weights)
    return DescriptionLength(bits, count * per_item)
