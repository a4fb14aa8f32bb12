"""Documents: a text, Markdown or HTML file as one row, or a folder of them with a row per file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from bertkit.data.formats import Format, format_of
from bertkit.data.text import (
    MAX_CHARS,
    Record,
    Source,
    empty_file,
    read_text,
    refuse_nul,
    require_path,
    without_compression,
)
from bertkit.errors import DataError, UsageError
from bertkit.progress import log
from bertkit.recipe.records import Data

_WEB = (".html", ".htm")
_IN_FOLDER = (".txt", ".md", *_WEB)
_UNSEEN = ("script", "style", "template", "noscript")
_IN_LINE = ("a", "abbr", "b", "code", "em", "i", "mark", "q", "s", "small", "span", "strong", "sub", "sup", "u", "wbr")


def read(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield a row per file, with its name (below the folder) as ``id`` and its ``text``; an empty file is left out.

    Raises:
        DataError: a file is not text in this encoding, or too long; or a file that is read alone is empty.
        UsageError: it is standard input, or a folder without documents, or with other files of data.
    """
    source = require_path(source, "a document")
    if not source.is_dir():
        return iter([(1, {"id": source.name, "text": read_document(source, data)})])
    files = sorted(file for file in source.rglob("*") if format_of(file.name)[0] and file.is_file())
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(source).parts)]
    if not files or any(_ending(file) not in _IN_FOLDER for file in files):
        hint = f"name one of its files; only folders of documents ({', '.join(_IN_FOLDER)}) are read whole"
        raise UsageError("a folder, not a file", hint, file=source)
    return _read_folder(source, files, data)


def read_document(file: Path, data: Data) -> str:
    """Return the text of a file with line ends as Python has them; of HTML, what a reader sees of it.

    Raises:
        DataError: it is empty, too long, or not text in this encoding.
    """
    text = "".join(read_text(file, data.encoding, str(file))).replace("\r\n", "\n").replace("\r", "\n")
    refuse_nul(text, str(file), 1)
    if len(text) > MAX_CHARS:
        raise DataError(f"a document of more than {MAX_CHARS:,} characters", "split the file", file=file)
    if _ending(file) in _WEB:
        text = visible_text(text)
    if not text.strip():
        raise empty_file(str(file))
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
    """Collects texts, with a NUL, which no page has, where a block begins or ends."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.unseen = ""  # the element that is open and not seen

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.unseen = self.unseen or (tag if tag in _UNSEEN else "")
        self.parts += () if tag in _IN_LINE else "\0"

    def handle_endtag(self, tag: str) -> None:
        self.unseen = "" if tag == self.unseen else self.unseen
        self.parts += () if tag in _IN_LINE else "\0"

    def handle_data(self, data: str) -> None:
        self.parts += () if self.unseen else (data,)


def _read_folder(folder: Path, files: list[Path], data: Data) -> Iterator[Record]:
    empty, row = list[str](), 0
    for file in files:
        try:
            text = read_document(file, data)
        except DataError as error:
            if error.what != empty_file("").what:
                raise
            empty.append(str(file.relative_to(folder)))
            continue
        row += 1
        yield row, {"id": file.relative_to(folder).as_posix(), "text": text}
    if empty:
        log.info("files of %s without text, left out: %d (%s)", folder, len(empty), ", ".join(empty[:5]))
    if not row:
        raise empty_file(str(folder))


def _ending(file: Path) -> str:
    return without_compression(format_of(file.name)[1])


FORMAT = Format("documents", read, endings=(".md", *_WEB))
