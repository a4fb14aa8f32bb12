"""The templates of pages and cards, which lie beside this module."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from bertkit.reports.text import cell_text, duration_text, p_text, plain, score_text
from bertkit.storage.files import write_text
from bertkit.storage.outputs import PAGE_MARK

_FOLDER = Path(__file__).parent
_ABSOLUTE = re.compile(r"""(?<![\w.:~/-])/[^\s'",:;()/]+(?:/[^\s'",:;()/]+)+""")
"""A path of at least two parts, and no end of a relative path or of an address."""


def write_page(file: Path, name: str, *, scripts: Sequence[str] = (), **values: object) -> None:
    """Fill a template and write the page in ASCII, so that it reads the same in any encoding.

    Args:
        file: to be written.
        name: of the template.
        scripts: files beside the template, one after the other; a browser runs what has their hash, `digest`, alone.
        values: what the template shows.
    """
    script = "".join((_FOLDER / name).parent.joinpath(of_page).read_text(encoding="utf-8") for of_page in scripts)
    page = load_template(name).render(script=Markup(script), digest=hash_script(script), **values)
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{PAGE_MARK}', 1)
    write_text(file, page.encode("ascii", "xmlcharrefreplace").decode())


def hash_script(script: str) -> str:
    """Return the hash by which a page names the script that a browser may run."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def load_template(name: str, **filters: Callable[..., Any]) -> Template:
    """Load a template, with filters of its own; a page (``.html.j2``) escapes what it shows, and Markdown does not."""
    # with numpy, which a command that finds a mistake needs not
    from bertkit.metrics.registry import with_direction

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(_FILTERS | filters, directed=with_direction)
    return environment.get_template(name)


def name_model(model: str) -> str:
    """Return what a model is called: that in a local folder by its name, or its id where the hub's cache has it.

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

    def name(found: re.Match[str]) -> str:
        path = Path(found[0])
        return str(path.relative_to(here) if here in path.parents else path.name)

    return _ABSOLUTE.sub(name, text)


def keep_words(text: str) -> Markup:
    """Return a text whose words with a hyphen are not broken there, where a browser would: options, above all.

    >>> print(keep_words("try --max-length 64"))
    try <span class="unbroken">--max-length</span> 64
    """
    parts = (
        Markup('<span class="unbroken">{}</span>').format(word) if "-" in word else word for word in text.split(" ")
    )
    return Markup(" ").join(parts)


def break_names(name: str) -> Markup:
    """Return a label that a browser may break behind each underscore, as it does behind a space.

    >>> print(break_names("card_arrival <1>"))
    card_<wbr>arrival &lt;1&gt;
    """
    return escape(name).replace("_", Markup("_<wbr>"))


_FILTERS: dict[str, Callable[..., Any]] = {
    "score": score_text,
    "cell": cell_text,
    "duration": duration_text,
    "p": p_text,
    "plain": plain,
    "unbroken": keep_words,
    "breakable": break_names,
    "named": name_model,
    "pathless": name_paths,
}
"""What every template may write values by."""
