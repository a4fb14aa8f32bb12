"""Files of predictions are laid out as the file with the rows is, unless they are asked to be otherwise."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bertkit.data.output import FileLayout, check_layout, follow_source
from bertkit.errors import UsageError
from bertkit.recipe import DataConfig

TEXT = "text;n\nGröße;1\n"


@pytest.mark.parametrize(
    ("name", "content", "output", "delimiter", "encoding"),
    [
        ("a.csv", TEXT.encode(), "out.csv", ";", "utf-8"),
        ("a.csv", b"\xef\xbb\xbf" + TEXT.encode(), "out.csv", ";", "utf-8-sig"),
        ("a.csv.gz", gzip.compress(b"\xef\xbb\xbf" + TEXT.encode(), mtime=0), "out.csv", ";", "utf-8-sig"),
        ("a.csv", TEXT.encode(), "out.tsv", "\t", "utf-8"),
        ("a.tsv", TEXT.replace(";", "\t").encode(), "out.csv", ",", "utf-8"),
        ("a.jsonl", b'{"text": "a"}\n', "out.csv", None, None),
        ("a.csv", TEXT.encode(), "out.parquet", None, None),
    ],
)
def test_delimiter_and_encoding_are_those_of_the_file_with_the_rows(here, name, content, output, delimiter, encoding):
    Path(name).write_bytes(content)
    layout = follow_source(FileLayout(), Path(output), name, DataConfig())
    assert (layout.delimiter, layout.encoding) == (delimiter, encoding)


def test_the_encoding_of_the_recipe_is_kept_and_what_is_asked_for_comes_first(here):
    Path("a.csv").write_bytes(TEXT.encode("cp1252"))
    data = DataConfig(encoding="cp1252")
    assert follow_source(FileLayout(), Path("out.csv"), "a.csv", data) == FileLayout(delimiter=";", encoding="cp1252")
    asked = FileLayout(delimiter="|", encoding="utf-8")
    assert follow_source(asked, Path("out.csv"), "a.csv", data) == asked
    for source in (None, "-"):
        assert follow_source(FileLayout(), Path("out.csv"), source, data) == FileLayout()


def test_numbers_have_four_decimals_in_files_that_people_read():
    assert check_layout(FileLayout(), Path("out.csv")).digits == 4
    assert check_layout(FileLayout(digits=0), Path("out.tsv")).digits == 0
    assert check_layout(FileLayout(), Path("out.jsonl")).digits is None
    assert check_layout(FileLayout(delimiter="tab"), Path("out.csv")).delimiter == "\t"


@pytest.mark.parametrize(
    ("layout", "output", "message"),
    [
        (
            FileLayout(escape_formulas=True),
            "a.jsonl",
            "--escape-formulas with --output a.jsonl - --escape-formulas requires .csv or .tsv",
        ),
        (FileLayout(digits=3), "a.parquet", "--digits with --output a.parquet"),
        (FileLayout(delimiter=";"), "a.parquet", "--delimiter with --output a.parquet"),
        (FileLayout(encoding="utf-16"), "a.jsonl", "--encoding with --output a.jsonl"),
        (FileLayout(delimiter="ab"), "a.csv", "--delimiter must be one character, not 'ab' - write tab for a tab"),
        (FileLayout(encoding="none"), "a.csv", "--encoding: unknown text encoding 'none' - use utf-8, utf-8-sig"),
    ],
)
def test_what_does_not_fit_the_file_is_refused(layout, output, message):
    with pytest.raises(UsageError) as refused:
        check_layout(layout, Path(output))
    assert str(refused.value).startswith(message)
