"""Texts: one per line, or one per document (text, Markdown or HTML) of a folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from html.parser import HTMLParser
from itertools import chain, islice
from pathlib import Path

from bertkit.data.files import guess_format
from bertkit.data.formats.conll import DOCUMENT, ENTITY_TAG, parse, parse_conllu
from bertkit.data.text import (
    MAX_CHARS,
    Record,
    Source,
    check_nul,
    empty_file_error,
    read_lines,
    read_text,
    source_column,
    strip_compression,
)
from bertkit.errors import DataError, UsageError
from bertkit.progress import log
from bertkit.recipe.records import DataConfig

_Parser = Callable[[Iterable[str], DataConfig, str], Iterator[Record]]

_CONLLU_LINE = re.compile(r"[0-9]+([-.][0-9]+)?(\t[^\t]*){9}")
_TAGGED_LINE = re.compile(rf"[^ \t].*[ \t]({ENTITY_TAG.pattern})")


def read(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
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
    """Return the parser of a file from its first lines, and the name of its format, or an empty name for texts."""
    stripped = (line.strip(" \t\r\n") for line in head)
    lines = list(islice(filter(None, stripped), 50))
    first = next((line for line in lines if not line.startswith("#")), "")
    if _CONLLU_LINE.fullmatch(first):
        return parse_conllu, "CoNLL-U"
    words = [line for line in lines if not line.startswith((DOCUMENT, "#"))]
    # A line of running text almost never ends in a separate O or B-PER, and never do all lines.
    if (words and all(map(_TAGGED_LINE.fullmatch, words))) or (lines and lines[0].startswith(DOCUMENT)):
        return parse, "CoNLL columns"
    return parse_texts, ""


def read_texts(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield each line as a text, blank lines too, except those after the last text."""
    return parse_texts(read_lines(source, data.encoding, name), data, name)


def parse_texts(lines: Iterable[str], data: DataConfig, name: str) -> Iterator[Record]:
    """Yield each line as a text under the source's name of the column ``text``.

    Raises:
        DataError: If a line has a NUL character, or all lines are blank.
    """
    column, row = source_column("text", data), 0
    blank: list[Record] = []  # held back until a text follows them
    for row, line in enumerate(lines, 1):
        check_nul(line, name, row)
        blank.append((row, {column: line.rstrip("\r\n")}))
        if line.strip():
            yield from blank
            blank = []
    if len(blank) == row:
        raise empty_file_error(name)


_WEB = (".html", ".htm")
_IN_FOLDER = (".txt", ".md", *_WEB)
_UNSEEN = ("script", "style", "template", "noscript")
_IN_LINE = ("a", "abbr", "b", "code", "em", "i", "mark", "q", "s", "small", "span", "strong", "sub", "sup", "u", "wbr")


def read_documents(source: Path, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield a row per file, with its name (below the folder) as ``id`` and its ``text``; an empty file is left out.

    Raises:
        DataError: If a file is too long or not text in this encoding, or the only file is empty.
        UsageError: If it is a folder without documents, or with other files of data.
    """
    if not source.is_dir():
        return iter([(1, {"id": source.name, "text": read_document(source, data)})])
    files = sorted(file for file in source.rglob("*") if guess_format(file.name)[0] and file.is_file())
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(source).parts)]
    # Files of rows in the folder show that it is a dataset, whose splits must be named.
    if not files or any(_ending(file) not in _IN_FOLDER for file in files):
        hint = f"name one of its files; only folders of documents ({', '.join(_IN_FOLDER)}) can be read"
        raise UsageError("a folder, not a file", hint, file=source)
    return _read_folder(source, files, data)


def read_document(file: Path, data: DataConfig) -> str:
    """Return the text of a file with line ends as in Python; HTML is reduced to its visible text.

    Raises:
        DataError: If it is empty, too long, or not text in this encoding.
    """
    text = "".join(read_text(file, data.encoding, str(file))).replace("\r\n", "\n").replace("\r", "\n")
    check_nul(text, str(file), 1)
    if len(text) > MAX_CHARS:
        raise DataError(f"a document of more than {MAX_CHARS:,} characters", "split the file", file=file)
    if _ending(file) in _WEB:
        text = visible_text(text)
    if not text.strip():
        raise empty_file_error(str(file))
    return text


def visible_text(page: str) -> str:
    r"""Return the title and the text of HTML without scripts and styles, one line per block.

    >>> visible_text("<title>A</title><style>p {}</style><p>b <b>c</b>\n&amp; d<p>e")
    'A\nb c & d\ne'
    """
    parser = _VisibleText()
    parser.feed(page)
    parser.close()
    lines = (re.sub(r"\s+", " ", line).strip() for line in "".join(parser.parts).split("\0"))
    return "\n".join(filter(None, lines))


class _VisibleText(HTMLParser):
    """Parser that collects texts, with a NUL, which pages do not contain, at the start and end of each block."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.unseen = ""  # name of the open element that is not visible

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.unseen = self.unseen or (tag if tag in _UNSEEN else "")
        self.parts += () if tag in _IN_LINE else "\0"

    def handle_endtag(self, tag: str) -> None:
        self.unseen = "" if tag == self.unseen else self.unseen
        self.parts += () if tag in _IN_LINE else "\0"

    def handle_data(self, data: str) -> None:
        self.parts += () if self.unseen else (data,)


def _read_folder(folder: Path, files: list[Path], data: DataConfig) -> Iterator[Record]:
    empty, row = list[str](), 0
    for file in files:
        try:
            text = read_document(file, data)
        except DataError as error:
            if error.message != empty_file_error("").message:
                raise
            empty.append(str(file.relative_to(folder)))
            continue
        row += 1
        yield row, {"id": file.relative_to(folder).as_posix(), "text": text}
    if empty:
        log.info("files of %s without text, left out: %d (%s)", folder, len(empty), ", ".join(empty[:5]))
    if not row:
        raise empty_file_error(str(folder))


def _ending(file: Path) -> str:
    return strip_compression(guess_format(file.name)[1])
