"""What pictures are drawn with: ticks that enclose values, and texts that stay texts."""

from __future__ import annotations

import pytest

from bertkit.reports.canvas import draw_picture, escape_text, fit_area, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.811, 0.862, [0.8, 0.82, 0.84, 0.86, 0.88]),
        (-0.3, 0.4, [-0.4, -0.2, 0.0, 0.2, 0.4]),
        (3, 1870, [0, 500, 1000, 1500, 2000]),
        (0, 2e-5, [0, 5e-06, 1e-05, 1.5e-05, 2e-05]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected


@pytest.mark.parametrize(("low", "high"), [(5, 5), (0, 0), (-3, -3), (1e-9, 2e-9), (-1e12, 1e12), (0.1, 0.3)])
def test_ticks_enclose_any_range(low: float, high: float) -> None:
    found = ticks(low, high)
    slack = 1e-6 * (found[-1] - found[0])
    assert 2 <= len(found) <= 12
    assert found[0] <= low + slack and high - slack <= found[-1]
    assert found == sorted(set(found))


def test_an_area_maps_the_ends_of_its_axes_to_its_corners():
    area = fit_area([0.0, 6.0], [0.1, 0.9])
    assert area.x == (0.0, 6.0) and area.right(0.0) == area.left and area.right(6.0) == area.end
    assert area.up(area.y[0]) == area.bottom and area.up(area.y[1]) == area.top


def test_texts_stay_texts():
    assert escape_text('a < b\x00 & "c"') == "a &lt; b  &amp; &#34;c&#34;"
    assert 'aria-label="a &lt; b"' in draw_picture(10, "a < b", [])


def test_long_numbers_of_the_y_axis_stand_in_the_picture():
    assert fit_area([0, 1], [0.0, 0.9]).left == 52
    area = fit_area([0, 1], [0.0, 0.00075])
    assert area.left - 8 >= 8 * len("0.00025") and area.right(0) == area.left
