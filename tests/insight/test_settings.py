"""Settings of an explanation."""

from __future__ import annotations

from bertkit.insight.settings import Settings


def test_an_explanation_is_of_the_prediction_unless_it_is_asked_for_something_else():
    assert Settings() == Settings(targets=(), baseline="mask", most_steps=512)
