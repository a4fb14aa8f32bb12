"""Readers of texts: one per line, or one per document (text, Markdown or HTML) of a folder."""

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
    """Yield the rows of a text file; its first lines show whether it is CoNLL-U, CoNLL columns or texts."""
    content = read_lines(source, data.encoding, name)
    head = list(islice(content, 200))
    parse, title = _find_parser(head)
    if title:
        log.info("%s is read as %s; if it is text: --set data.format=lines", name, title)
    elif len(head) > 1 and len(tabs := {line.count("\t") for line in head if line.strip()}) == 1 and tabs != {0}:
        log.info("%s has the same number of tabs in each line; if they separate columns: --set data.format=tsv", name)
    yield from parse(chain(head, content), data, name)


def _find_parser(head: list[str]) -> tuple[_Parser, str]:
    """Return the parser for a file that starts with these lines, and the name of its format; empty for texts."""
    stripped = (line.strip(" \t\r\n") for line in head)
    lines = list(islice(filter(None, stripped), 50))
    first = next((line for line in lines if not line.startswith("#")), "")
    if _CONLLU_LINE.fullmatch(first):
        return parse_conllu, "CoNLL-U"
    words = [line for line in lines if not line.startswith((DOCUMENT, "#"))]
    # In running text, it never happens that all lines end in a separate O or B-PER.
    if (words and all(map(_TAGGED_LINE.fullmatch, words))) or (lines and lines[0].startswith(DOCUMENT)):
        return parse, "CoNLL columns"
    return parse_texts, ""


def read_texts(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield each line as a text, including blank lines before the last text."""
    return parse_texts(read_lines(source, data.encoding, name), data, name)


def parse_texts(lines: Iterable[str], data: DataConfig, name: str) -> Iterator[Record]:
    """Yield each line as a text, in the column that the recipe maps to ``text``.

    Raises:
        DataError: If a line has a NUL character, or all lines are blank.
    """
    column, row = source_column("text", data), 0
    blank_rows: list[Record] = []  # held back until a text follows
    for row, line in enumerate(lines, 1):
        check_nul(line, name, row)
        blank_rows.append((row, {column: line.rstrip("\r\n")}))
        if line.strip():
            yield from blank_rows
            blank_rows = []
    if len(blank_rows) == row:
        raise empty_file_error(name)


_WEB = (".html", ".htm")
_IN_FOLDER = (".txt", ".md", *_WEB)
_UNSEEN = ("script", "style", "template", "noscript")
_IN_LINE = ("a", "abbr", "b", "code", "em", "i", "mark", "q", "s", "small", "span", "strong", "sub", "sup", "u", "wbr")


def read_documents(source: Path, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield a row per file, with its path in the folder as ``id`` and its ``text``; empty files are skipped.

    Raises:
        DataError: If a file is too long or not text in this encoding, or the only file is empty.
        UsageError: If a folder has no documents, or other data files.
    """
    if not source.is_dir():
        return iter([(1, {"id": source.name, "text": read_document(source, data)})])
    files = sorted(file for file in source.rglob("*") if guess_format(file.name)[0] and file.is_file())
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(source).parts)]
    # Other data files in the folder mean that it is a dataset, which needs a split per file.
    if not files or any(_ending(file) not in _IN_FOLDER for file in files):
        hint = f"name one of its files; only folders of documents ({', '.join(_IN_FOLDER)}) can be read"
        raise UsageError("a folder, not a file", hint, file=source)
    return _read_folder(source, files, data)


def read_document(file: Path, data: DataConfig) -> str:
    """Return the text of a file, with LF as line ends; HTML is reduced to its visible text.

    Raises:
        DataError: If the file is empty, too long, or not text in this encoding.
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
    r"""Return the title and the text of HTML, without scripts and styles, with a line per block.

    >>> visible_text("<title>A</title><style>p {}</style><p>b <b>c</b>\n&amp; d<p>e")
    'A\nb c & d\ne'
    """
    parser = _VisibleText()
    parser.feed(page)
    parser.close()
    lines = (re.sub(r"\s+", " ", line).strip() for line in "".join(parser.parts).split("\0"))
    return "\n".join(filter(None, lines))


class _VisibleText(HTMLParser):
    """Parser that collects texts. A NUL, which pages do not contain, marks the start and the end of each block."""

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
    empty_files, row = list[str](), 0
    for file in files:
        try:
            text = read_document(file, data)
        except DataError as error:
            if error.message != empty_file_error("").message:
                raise
            empty_files.append(str(file.relative_to(folder)))
            continue
        row += 1
        yield row, {"id": file.relative_to(folder).as_posix(), "text": text}
    if empty_files:
        log.info("files of %s without text, left out: %d (%s)", folder, len(empty_files), ", ".join(empty_files[:5]))
    if not row:
        raise empty_file_error(str(folder))


def _ending(file: Path) -> str:
    return strip_compression(guess_format(file.name)[1])
