"""The parts of all pages: how tables align, sort and are read aloud, and that texts of the data stay texts."""

from __future__ import annotations

import re

import pytest

from bertkit.reports import templates
from bertkit.reports.templates import Cell, lay_out, write_page
from tests.reports.test_html import Balance, rows

NASTY = "<script>alert(1)</script>"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes a page of the given content, and checks that its tags are balanced."""
    monkeypatch.setattr(templates, "_FOLDER", tmp_path)
    for file in templates.Path(templates.__file__).parent.glob("*.j2"):
        (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    imported = "about, card, code, facts, figures, matrix, scroll, section, table, warn"

    def write_content(content, **values):
        head = f'{{% extends "page.html.j2" %}}{{% from "parts.html.j2" import {imported} %}}'
        head += '{% set command_name, title = "probe", "a title" %}'
        (tmp_path / "mine.html.j2").write_text(f"{head}{{% block content %}}{content}{{% endblock %}}")
        templates.load_template.cache_clear()
        write_page(tmp_path / "page.html", "mine.html.j2", **values)
        page = (tmp_path / "page.html").read_text(encoding="ascii")
        Balance(page)
        return page

    yield write_content
    templates.load_template.cache_clear()


def test_every_part_escapes_its_texts(write):
    page = write(
        "{{ facts([(x, x), ('Seed', none)]) }}{{ warn([x]) }}{{ about(x) }}{{ code(x, x, x) }}"
        "{% call section(x, x) %}{{ table(x, [x], [[x]]) }}{{ figures([(x, x), (x, none)]) }}{% endcall %}"
        "{% call card([(x, x, 'good'), ('', x, '')], x) %}{{ x }}{% endcall %}"
        "{{ matrix([x], [(x, [(1, x, x, x)], x)]) }}",
        x=NASTY,
    )
    assert "<script" not in page and page.count("&lt;script&gt;") == 24
    assert "script-src" not in page and "Seed" not in page  # without a script, nothing runs
    assert page.count("<figure") == 1
    assert '<section id="script-alert-1-script">' in page


def test_tables_are_read_aloud_and_scrolled_by_keyboard(write):
    page = write("{{ table('Scores', ['a', 'b'], [['c', 1]]) }}{{ table('Totals', [], [['d', 2]]) }}")
    heads = re.findall(r"<th\b[^>]*", page)
    assert heads and all(re.search(r"scope=.?(col|row)", head) for head in heads)
    boxes = re.findall(r'<div class="scroll ?" tabindex="0" role="region" aria-label="([^"]+)">', page)
    assert boxes == ["Scores", "Totals"]


def test_cells_are_numbers_ranges_and_texts(write):
    row = ["a", 1024, 0.5, (0.25, 1.0), None, "", Cell("+0.5", 0.5)]
    page = write("{{ table('Scores', 'abcdefg'|list, [row], [0]) }}", row=row)
    assert rows(page)[1] == ["a", "1,024", "0.5000", "0.2500 – 1.0000", "n/a", "", "+0.5"]
    assert '<tr class="best"><th scope=row class=left>a</th><td>1,024</td>' in page
    assert "data-v" not in page


def test_texts_are_to_the_left_and_long_ones_break():
    heads, _ = lay_out("abcde", [["1.5", "12.3%", "state", "", "x" * 30], ["<0.001", "n/a", "3", "-2", "y"]])
    assert heads == [("a", ""), ("b", ""), ("c", "left"), ("d", ""), ("e", "text")]
    assert lay_out(["a"], []) == ([("a", "")], [])


def test_a_table_that_sorts_has_the_values_of_its_cells(write):
    page = write(
        "{{ table('Wrong rows', ['row', 'p'], cells, sorts=true) }}", cells=[["7", Cell("<0.001", 0.0004)], ["8", None]]
    )
    assert 'data-table="wrong-rows-table"' in page and 'id="wrong-rows-table"' in page
    assert re.findall(r'data-v="([^"]*)"', page) == ["0.0004", ""]
    assert page.count('<button type="button">') == 2
