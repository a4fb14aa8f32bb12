"""Intervals and p-values as users get them, which the other tests find from fewer resamples."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.quick import draw_resamples


@pytest.fixture(autouse=True)
def _usual_resamples(usual_resamples: dict[str, int]) -> Iterator[None]:
    few = draw_resamples(usual_resamples)
    yield
    draw_resamples(few)
