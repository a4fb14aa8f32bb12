"""Every template loads, pages escape what they show, and a name that is missing is an error."""

from __future__ import annotations

import html
import shutil
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from bertkit.reports import templates
from bertkit.reports.templates import load_template
from tests.conftest import toy_rows, write_csv
from tests.evaluation.stored_runs import make_rows, make_run, predict


def test_pages_escape_and_markdown_does_not(tmp_path, monkeypatch):
    def twice(text: str) -> str:
        return 2 * text

    monkeypatch.setattr(templates, "_FOLDER", tmp_path)
    for name in ("escaped.html.j2", "plain.md.j2"):
        (tmp_path / name).write_text("  {% if true %}\n{{ text|twice }}\n  {% endif %}\n")
    assert load_template("escaped.html.j2", twice=twice).render(text="<b>") == "&lt;b&gt;&lt;b&gt;\n"
    assert load_template("plain.md.j2", twice=twice).render(text="<b>") == "<b><b>\n"
    with pytest.raises(UndefinedError):
        load_template("plain.md.j2", twice=twice).render()


@pytest.mark.parametrize(
    ("arguments", "title"),
    [
        (("attention", "show", "a cat", "--model", "MODEL", "-o", "page.html"), "tiny"),
        (("attention", "heads", "FILE", "--model", "MODEL", "-o", "page.html"), "Heads of tiny"),
        (("map", "FILE", "--column", "text", "--model", "MODEL", "-o", "page.html"), "60 texts"),
        (("probe", "classify", "--data", "FILE", "--model", "MODEL", "-o", "page.html"), "classify in tiny"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_page_has_the_short_name_of_a_model_and_no_path(arguments, title, run, tiny_model, tmp_path):
    model, file = tmp_path / "home" / "me" / "tiny", tmp_path / "home" / "me" / "rows.csv"
    shutil.copytree(tiny_model, model)
    write_csv(file, toy_rows(60, seed=4))
    ended = run(*({"MODEL": str(model), "FILE": str(file)}.get(word, word) for word in arguments))
    assert ended.code == 0, ended.err
    page = html.unescape(Path("page.html").read_text())
    assert f"<title>{title} · bertkit {arguments[0]}</title>" in page
    assert "home/me" not in page


def test_the_page_of_a_run_has_no_path(run, tmp_path):
    path = make_run(tmp_path / "home" / "a" / "run", predict(make_rows(40), {1}))
    assert run("errors", path, "-o", "page.html").code == 0
    page = Path("page.html").read_text()
    assert "<title>mine: mistakes of run " in page
    assert "/home/" not in page
