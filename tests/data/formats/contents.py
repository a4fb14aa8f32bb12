"""Contents of files for the tests of several formats, and what reading any content must end in."""

from __future__ import annotations

import io
import json

from hypothesis import strategies as st

from bertkit.data.files import FORMATS
from bertkit.errors import BertkitError
from bertkit.recipe.records import DataConfig

UTF16 = "the file looks like utf-16-le: --set data.encoding=utf-16-le"

# Content of a file of texts, and the error that it ends in.
TEXT_FAULTS = [
    ("", "the file is empty (a.txt) - add rows"),
    ("\n \n", "the file is empty (a.txt) - add rows"),
    ("a\nb\0\n", "a NUL character (a.txt:2) - remove it"),
    ("a text\n".encode("utf-16-le"), f"a NUL character (a.txt:1) - {UTF16}"),
    ("a\n" * 300 + "\0", "a NUL character (a.txt:301) - remove it"),
]

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))

lines_of_any_content = st.binary() | st.text().map(str.encode) | st.text("a1 \t\n#-O.").map(str.encode)
json_of_any_content = st.binary() | st.text().map(str.encode) | _values.map(lambda value: json.dumps(value).encode())
json_rows = st.fixed_dictionaries({"text": _texts, "score": st.none() | st.floats(), "tokens": st.lists(_texts)})


def read_content(format_name, content, name, **options):
    raw = content.encode() if isinstance(content, str) else content
    return list(FORMATS[format_name].read(io.BytesIO(raw), DataConfig(**options), name))


def rows_or_one_line(read, content):
    """Return the records of a content; none where reading ends in an error, which must be one line."""
    try:
        return read(content)
    except BertkitError as error:
        assert "\n" not in str(error)
        return []


def check_lines(read, content):
    """Read any content as lines: all rows have the same columns in order, and their lines rise."""
    records = rows_or_one_line(read, content)
    assert all(list(row) == list(records[0][1]) for _, row in records)
    assert sorted({line for line, _ in records}) == [line for line, _ in records]
