"""Text is read line by line in any encoding, and every fault names its line."""

from __future__ import annotations

import gzip
import io

import pytest

from bertkit.data import text
from bertkit.data.text import (
    excerpt,
    guess_encoding,
    is_blank_line,
    nul_remedy,
    read_lines,
    read_text,
    source_column,
)
from bertkit.errors import DataError, RecipeError
from bertkit.recipe.records import DataConfig


def lines_of(content: bytes, encoding: str = "utf-8") -> list[str]:
    return list(read_lines(io.BytesIO(content), encoding, "a.txt"))


@pytest.mark.parametrize("block", [1, 2, 3, 100])
def test_lines_keep_their_ends_whatever_the_block(monkeypatch, block):
    monkeypatch.setattr(text, "_BLOCK_BYTES", block)
    assert lines_of("\ufeffé\r\nb\rc\n\nd".encode()) == ["é\r\n", "b\r", "c\n", "\n", "d"]
    assert lines_of("é\nb".encode("utf-16"), "utf-16") == ["é\n", "b"]


def test_gzip_is_unpacked_and_its_damage_is_a_fault_of_the_data(tmp_path):
    file = tmp_path / "a.txt.gz"
    file.write_bytes(gzip.compress(b"one\ntwo\n"))
    assert list(read_lines(file, "utf-8", "a.txt.gz")) == ["one\n", "two\n"]
    file.write_bytes(b"one\n")
    with pytest.raises(DataError, match=r"damaged gzip file: .* \(a.txt.gz\) - download it again"):
        list(read_text(file, "utf-8", "a.txt.gz"))


def test_a_wrong_byte_is_named_with_its_line_and_offset():
    with pytest.raises(
        DataError, match=r"byte 0xe9 at offset 4 is not valid utf-8 \(a.txt:3\) - if the file is cp1252"
    ):
        lines_of(b"a\nb\n\xe9\n")
    with pytest.raises(RecipeError, match="unknown text encoding 'utf-9'"):
        lines_of(b"a", "utf-9")


@pytest.mark.parametrize(("encoding", "cut"), [("utf-8", 1), ("utf-8", 2), ("utf-16-le", 1)])
def test_text_that_ends_inside_a_character_has_the_lines_before(encoding, cut):
    content = "a\nb\n\u20ac".encode(encoding)[:-cut]
    lines = read_lines(io.BytesIO(content), encoding, "a.txt")
    assert [next(lines), next(lines)] == ["a\n", "b\n"]
    with pytest.raises(DataError) as raised:
        list(lines)
    what = f"the {encoding} text ends inside a character, after {len(content)} bytes"
    assert (raised.value.message, raised.value.row) == (what, 3)
    assert "data.encoding" not in raised.value.remedy


def test_a_line_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(text, "MAX_CHARS", 10)
    assert lines_of(b"123456789\n") == ["123456789\n"]
    with pytest.raises(DataError, match=r"a line of more than 10 characters \(a.txt:2\) - split it"):
        lines_of(b"a\n1234567890\n")


def test_guess_encoding():
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        assert guess_encoding("plain text".encode(encoding)) == encoding
    assert guess_encoding(b"plain text") == guess_encoding(b"") == "cp1252"


def test_what_to_do_about_nul():
    assert nul_remedy("a\0text") == "remove it"
    assert nul_remedy("text".encode("utf-16-le").decode()).endswith("--set data.encoding=utf-16-le")


def test_a_blank_line_has_only_spaces_and_tabs():
    assert is_blank_line(" \t\r\n")
    assert not is_blank_line("\u00a0\n")


def test_an_excerpt_ends_in_dots_only_where_text_is_left_out():
    assert (excerpt("abc\n", 3), excerpt("abcd", 3)) == ("'abc'", "'abc...'")


def test_a_column_of_a_file_without_names_is_called_as_the_recipe_says():
    assert source_column("text", DataConfig(columns={"text": "review"})) == "review"
    assert (
        source_column("tokens", DataConfig(columns={"tokens": ["a", "b"]}))
        == source_column("tokens", DataConfig())
        == "tokens"
    )


@pytest.mark.parametrize(
    ("content", "encoding"), [(b"ok\na +2AA- b\n", "utf-7"), (b"ok\na \\ud800 b\n", "unicode_escape")]
)
def test_half_of_a_surrogate_pair_is_refused_whatever_the_encoding(content, encoding):
    with pytest.raises(DataError, match=r"half of a surrogate pair: '\\ud800' \(a.txt:2\)"):
        lines_of(content, encoding)


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"one\ntwo\rthree\nfour\n", 2), (b"a\r\nb\rc\r\nd", 2), (b"a\rb\rc\r", 0), (b"a\r\nb\r\n", 0), (b"a\nb\nc", 0)],
)
def test_a_carriage_return_that_ends_only_some_lines_is_told(caplog, content, line):
    with caplog.at_level("INFO", logger="bertkit"):
        list(read_lines(io.BytesIO(content), "utf-8", "a.txt"))
    assert [message.split(": the line ends")[0] for message in caplog.messages] == [f"warning: a.txt:{line}"] * bool(
        line
    )
