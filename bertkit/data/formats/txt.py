"""``.txt``: one text per line, unless the first lines look like CoNLL-U or CoNLL columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

from bertkit.data.formats import Format, conll, conllu, lines
from bertkit.data.text import Record, Source, read_lines
from bertkit.progress import log
from bertkit.recipe.records import Data

_Parser = Callable[[Iterable[str], Data, str], Iterator[Record]]

_CONLLU_LINE = re.compile(r"[0-9]+([-.][0-9]+)?(\t[^\t]*){9}")
_TAGGED_LINE = re.compile(rf"[^ \t].*[ \t]({conll.ENTITY_TAG.pattern})")


def read(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the rows of a text file as its first lines suggest; a format other than texts is logged."""
    content = read_lines(source, data.encoding, name)
    head = list(islice(content, 200))
    parse, title = _find_parser(head)
    if title:
        log.info("%s is read as %s; if it is text, --set data.format=lines", name, title)
    elif len(head) > 1 and len(tabs := {line.count("\t") for line in head if line.strip()}) == 1 and tabs != {0}:
        log.info("%s has the same number of tabs in each line; if they separate columns, --set data.format=tsv", name)
    yield from parse(chain(head, content), data, name)


def _find_parser(head: list[str]) -> tuple[_Parser, str]:
    """Find the parser of a file from its first lines, and the title of its format unless it holds texts."""
    stripped = (line.strip(" \t\r\n") for line in head)
    filled = list(islice(filter(None, stripped), 50))
    first = next((line for line in filled if not line.startswith("#")), "")
    if _CONLLU_LINE.fullmatch(first):
        return conllu.parse, "CoNLL-U"
    words = [line for line in filled if not line.startswith((conll.DOCUMENT, "#"))]
    if (words and all(map(_TAGGED_LINE.fullmatch, words))) or (filled and filled[0].startswith(conll.DOCUMENT)):
        return conll.parse, "CoNLL columns"
    return lines.parse, ""


FORMAT = Format("txt", read, endings=(".txt",))
