"""Every template loads, pages escape what they show, and a name that is missing is an error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from bertkit.reports import templates
from bertkit.reports.templates import load_template


def test_pages_escape_and_markdown_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(templates, "__file__", str(tmp_path / "templates.py"))
    for name in ("escaped.html.j2", "plain.md.j2"):
        (tmp_path / name).write_text("  {% if true %}\n{{ text|twice }}\n  {% endif %}\n")
    assert load_template("escaped.html.j2", twice=_twice).render(text="<b>") == "&lt;b&gt;&lt;b&gt;\n"
    assert load_template("plain.md.j2", twice=_twice).render(text="<b>") == "<b><b>\n"
    with pytest.raises(UndefinedError):
        load_template("plain.md.j2", twice=_twice).render()


def test_a_template_is_read_once():
    assert load_template("style.css.j2") is load_template("style.css.j2")
    assert (Path(templates.__file__).parent / "style.css.j2").is_file()


TEMPLATES = sorted(Path(templates.__file__).parent.rglob("*.html.j2"))


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda file: file.name)
def test_tables_are_read_aloud_and_scrolled_by_keyboard(file):
    text = file.read_text(encoding="utf-8")
    heads, boxes = re.findall(r"<th\b[^>]*", text), re.findall(r'<div class="scroll"[^>]*', text)
    assert [head for head in heads if not re.search(r'scope="(col|row)"', head)] == []
    assert [box for box in boxes if not re.search(r'tabindex="0" role="region" aria-label="[^"]+"', box)] == []
    labels = re.findall(r'role="region" aria-label="([^"]+)"', text)
    assert sorted(set(labels)) == sorted(labels)
    assert text.count("<table") == len(heads) == 0 or heads


def test_the_pages_have_tables_to_check():
    assert sum('class="scroll"' in file.read_text(encoding="utf-8") for file in TEMPLATES) > 10


def _twice(text: str) -> str:
    return 2 * text
