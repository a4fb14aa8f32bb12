"""The templates of pages and cards, which are next to this module."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from bertkit.reports.text import cell_text, duration_text, escape_markdown, p_text, score_text
from bertkit.storage.files import write_text
from bertkit.storage.outputs import PAGE_MARK

_FOLDER = Path(__file__).parent
_ABSOLUTE_PATH = re.compile(r"""(?<![\w.:~/-])/[^\s'",:;()/]+(?:/[^\s'",:;()/]+)+""")
"""Matches an absolute path of at least two parts, but not the end of a relative path or of a URL."""
_OPTION = re.compile(r"(?<!\w)-")
_NUMBER = re.compile(r"[-+−<]?[\d.]|n/a$|[-–]?$")
_MAX_UNBROKEN = 24  # characters of a cell; a column with longer texts breaks lines


class Cell(NamedTuple):
    """A cell of a table that is sorted by its value instead of its text."""

    text: str
    value: float | None


def write_page(file: Path, name: str, *, scripts: Sequence[str] = (), **values: object) -> None:
    """Fill a template, and write the page in ASCII, so that every encoding shows the same text.

    Args:
        file: Page to write.
        name: Name of the template.
        scripts: Files next to the template that become the only script of the page.
        values: Values of the variables of the template.
    """
    # The Content-Security-Policy of the page allows only the script with this hash, so a script in a text of the user
    # would not run even if it were not escaped.
    script = "".join((_FOLDER / script).read_text(encoding="utf-8") for script in scripts)
    page = load_template(name).render(script=Markup(script), digest=hash_script(script), **values)
    # A later command overwrites a page only if it has this mark.
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{PAGE_MARK}', 1)
    write_text(file, page.encode("ascii", "xmlcharrefreplace").decode())


def hash_script(script: str) -> str:
    """Return the hash of a script for the Content-Security-Policy."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def load_template(name: str, **filters: Callable[..., Any]) -> Template:
    """Load a template with additional filters. Pages (``.html.j2``) escape all values, other templates do not."""
    # Import numpy late, because a command that only prints an error does not need it.
    from bertkit.metrics.registry import with_direction

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=name.endswith(".html.j2"),
        # With a misspelled variable, raise an error instead of leaving a gap on the page.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        extensions=["jinja2.ext.do"],
    )
    environment.filters.update(_FILTERS | filters, directed=with_direction)
    environment.globals["lay_out"] = lay_out
    return environment.get_template(name)


def lay_out(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[list[Any], list[list[Any]]]:
    """Format and align the cells of a table.

    Columns of numbers, or of texts that are all numbers, are aligned to the right, other columns to the left. A column
    with a long text has the class ``text``, which breaks lines.

    Args:
        columns: Names of the columns.
        rows: Cells: texts, numbers, ranges of two numbers, None if missing, or a `Cell`.

    Returns:
        Name and class of each column; and for each row class, value and text of its cells. Cells that are sorted by
        their text have no value.
    """
    # 1. Choose the class of each column. One number makes it numeric, even next to texts such as "n/a".
    classes = []
    for cells in zip(*rows, strict=True):
        texts = [cell for cell in cells if isinstance(cell, str)]
        is_long = max(map(len, texts), default=0) > _MAX_UNBROKEN
        has_numbers = len(texts) < len(cells) or all(map(_NUMBER.match, texts))
        classes.append("" if has_numbers else "text" if is_long else "left")
    # 2. Find the sort value of each cell. Intervals are sorted by their lower end, and missing numbers ("") are first.
    body: list[list[Any]] = []
    for row in rows:
        body.append([])
        for kind, cell in zip(classes, row, strict=True):
            text, value = cell if isinstance(cell, Cell) else (cell_text(cell), cell)
            key = value[0] if isinstance(value, tuple) else value
            body[-1].append((kind, None if isinstance(key, str) else "" if key is None else key, text))
    return list(zip(columns, classes or [""] * len(columns), strict=False)), body


def name_model(model: str) -> str:
    """Return the display name of a model: the last part of a local path, or its id for a folder in the Hub's cache.

    >>> name_model("google-bert/bert-base-uncased"), name_model("3 layers of /home/me/teacher")
    ('google-bert/bert-base-uncased', '3 layers of teacher')
    """
    folder = Path(model)
    if not folder.exists():
        return name_paths(model)
    cache_match = re.search(r"/models--([^/]+)/snapshots/", folder.absolute().as_posix())
    return cache_match[1].replace("--", "/") if cache_match else folder.resolve().name


def name_paths(text: str) -> str:
    """Shorten the absolute paths in a text such as a command, which are specific to this machine.

    A path below the working directory becomes relative, any other path becomes its last part.

    >>> name_paths("bertkit finetune mine.yaml --data /home/me/reviews.csv --set data.cache=../x")
    'bertkit finetune mine.yaml --data reviews.csv --set data.cache=../x'
    """
    working_folder = Path.cwd()

    def shorten(path_match: re.Match[str]) -> str:
        path = Path(path_match[0])
        return str(path.relative_to(working_folder) if working_folder in path.parents else path.name)

    return _ABSOLUTE_PATH.sub(shorten, text)


def keep_words(text: str) -> Markup:
    """Return a text in which a browser does not break options at their hyphens.

    >>> print(keep_words("try --max-length 64"))
    try <span class="unbroken">--max-length</span> 64
    """
    unbroken = Markup('<span class="unbroken">{}</span>')
    return Markup(" ").join(unbroken.format(word) if _OPTION.search(word) else word for word in text.split(" "))


def break_names(name: str) -> Markup:
    """Return a label that a browser can break after each underscore, as after a space.

    >>> print(break_names("card_arrival <1>"))
    card_<wbr>arrival &lt;1&gt;
    """
    return escape(name).replace("_", Markup("_<wbr>"))


_FILTERS: dict[str, Callable[..., Any]] = {
    "score": score_text,
    "cell": cell_text,
    "duration": duration_text,
    "p": lambda p: Cell(p_text(p), p),
    "signed": lambda value: Cell(f"{value:+.4f}", value),
    "failed": Markup('<span class="bad">{}</span>').format,
    "filled": lambda record: ["" if value is None else value for value in record.values()],
    "pick": lambda names, record: [record.get(name) for name in names],
    "index_of": lambda values, value: values.index(value) if value in values else None,
    "slug": lambda title: "-".join(re.findall(r"\w+", title.lower())),
    "plain": escape_markdown,
    "unbroken": keep_words,
    "breakable": break_names,
    "named": name_model,
    "pathless": name_paths,
}
"""Filters of all templates."""
