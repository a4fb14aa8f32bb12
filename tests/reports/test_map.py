"""The page with a map."""

from __future__ import annotations

from xml.etree import ElementTree

from bertkit.reports import map as page
from bertkit.reports.map import Dot, color_of, write_map


def test_a_map_has_a_dot_per_text_and_escapes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "MAX_DOTS", 4)
    dots = [Dot(number, number % 3, number % 2 - 1, f"<b>{number}") for number in range(9)]
    write_map(tmp_path / "map.html", dots, {0: "0  cat & dog"}, title="1 cluster")
    text = (tmp_path / "map.html").read_text()
    picture = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    assert [dot.find("title").text for dot in picture] == [
        "none: <b>0",
        "0  cat & dog: <b>3",
        "0  cat & dog: <b>5",
        "none: <b>8",
    ]
    assert "4 of 9 texts are drawn" in text
    assert "cat &amp; dog" in text


def test_near_numbers_have_different_colors():
    assert len({color_of(number) for number in range(-1, 30)}) == 31
