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
_ABSOLUTE = re.compile(r"""(?<![\w.:~/-])/[^\s'",:;()/]+(?:/[^\s'",:;()/]+)+""")
"""An absolute path of at least two parts, but not the end of a relative path or of an address."""
_OPTION = re.compile(r"(?<!\w)-")
_NUMBER = re.compile(r"[-+−<]?[\d.]|n/a$|[-–]?$")
_LONG_TEXT = 24
"""Maximum characters of a cell before its column breaks lines."""


class Cell(NamedTuple):
    """A cell of a table that is not sorted by its text."""

    text: str
    value: float | None


def write_page(file: Path, name: str, *, scripts: Sequence[str] = (), **values: object) -> None:
    """Fill a template and write the page in ASCII, so that it reads the same in any encoding.

    Args:
        file: Page to write.
        name: Name of the template.
        scripts: Files next to the template that become one script. A browser runs no other script, because the page
            names its hash.
        values: Values of the variables of the template.
    """
    # The page has a Content-Security-Policy with the hash of its script. A text of the user that smuggles in
    # another script therefore cannot run it, even if escaping failed.
    script = "".join((_FOLDER / script).read_text(encoding="utf-8") for script in scripts)
    page = load_template(name).render(script=Markup(script), digest=hash_script(script), **values)
    # A later command replaces only files with this mark.
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{PAGE_MARK}', 1)
    write_text(file, page.encode("ascii", "xmlcharrefreplace").decode())


def hash_script(script: str) -> str:
    """Return the hash by which a page names the script that a browser may run."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def load_template(name: str, **filters: Callable[..., Any]) -> Template:
    """Load a template, with further filters; a page (``.html.j2``) escapes what it shows, and Markdown does not."""
    # Import numpy late, because a command that reports a mistake does not need it.
    from bertkit.metrics.registry import with_direction

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=name.endswith(".html.j2"),
        # A misspelled variable of a template is an error, and not an empty place on the page.
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
    """Align the cells of a table, each a text, a number, a range of two numbers, None if missing, or a `Cell`.

    Columns with numbers, including numbers that are texts already, are aligned to the right, and others to the left. A
    column with a long text has the class ``text``, which breaks lines.

    Returns:
        Name and class of each column; and for each row class, value and text of its cells. A cell that sorts by its
        text has None as its value.
    """
    # 1. The class of a column depends on all its cells. A number makes it numeric, also next to a note such as "n/a".
    classes = []
    for cells in zip(*rows, strict=True):
        texts = [cell for cell in cells if isinstance(cell, str)]
        is_long = max(map(len, texts), default=0) > _LONG_TEXT
        has_numbers = len(texts) < len(cells) or all(map(_NUMBER.match, texts))
        classes.append("" if has_numbers else "text" if is_long else "left")
    # 2. An interval sorts by its first end, and a missing number before all others.
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
    cached = re.search(r"/models--([^/]+)/snapshots/", folder.absolute().as_posix())
    return cached[1].replace("--", "/") if cached else folder.resolve().name


def name_paths(text: str) -> str:
    """Return a text, such as a command, without the folders that its absolute paths have on this machine.

    A path below the working directory becomes a relative one, and any other the name of its last part.

    >>> name_paths("bertkit finetune mine.yaml --data /home/me/reviews.csv --set data.cache=../x")
    'bertkit finetune mine.yaml --data reviews.csv --set data.cache=../x'
    """
    here = Path.cwd()

    def name(path_match: re.Match[str]) -> str:
        path = Path(path_match[0])
        return str(path.relative_to(here) if here in path.parents else path.name)

    return _ABSOLUTE.sub(name, text)


def keep_words(text: str) -> Markup:
    """Return a text whose options are not broken at their hyphens.

    >>> print(keep_words("try --max-length 64"))
    try <span class="unbroken">--max-length</span> 64
    """
    unbroken = Markup('<span class="unbroken">{}</span>')
    return Markup(" ").join(unbroken.format(word) if _OPTION.search(word) else word for word in text.split(" "))


def break_names(name: str) -> Markup:
    """Return a label that a browser may break behind each underscore, as it does behind a space.

    >>> print(break_names("card_arrival <1>"))
    card_<wbr>arrival &lt;1&gt;
    """
    return escape(name).replace("_", Markup("_<wbr>"))


def mark_failed(status: str) -> Markup:
    """Return the status of a run that failed, in red."""
    return Markup('<span class="bad">{}</span>').format(status)


_FILTERS: dict[str, Callable[..., Any]] = {
    "score": score_text,
    "cell": cell_text,
    "duration": duration_text,
    "p": lambda p: Cell(p_text(p), p),
    "signed": lambda value: Cell(f"{value:+.4f}", value),
    "failed": mark_failed,
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
