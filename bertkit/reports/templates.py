"""The templates of pages and cards, which lie beside this module."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from bertkit.storage.files import write_text


def write_page(file: Path, text: str) -> None:
    """Write a page in ASCII, with references for all other characters, so that it reads the same in any encoding."""
    write_text(file, text.encode("ascii", "xmlcharrefreplace").decode())


@cache
def load_template(name: str, **filters: Callable[..., Any]) -> Template:
    """Load a template with these filters; what a page (``.html.j2``) shows is escaped, what Markdown shows is not."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(filters)
    return environment.get_template(name)
