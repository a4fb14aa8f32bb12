"""Excel workbooks: the first sheet as rows, and a missing openpyxl said before anything is read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bertkit.data.files import read_records
from bertkit.errors import DataError, UnavailableError
from bertkit.recipe import Data

ROWS = [["text", "label", "stars"], ["so fine", "good", 4.5], [None, None, None], ["bad é", None, 1], ["ok", "good"]]


def write_book(name, rows, **sheets):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for title, cells in sheets.items():
        book.create_sheet(title).append(cells)
    book.save(name)
    return name


def test_the_first_sheet_is_read(here, caplog):
    read = list(read_records(write_book("a.xlsx", ROWS, notes=["x"]), Data()))
    assert read == [
        (2, {"text": "so fine", "label": "good", "stars": 4.5}),
        (4, {"text": "bad é", "label": "", "stars": 1}),
        (5, {"text": "ok", "label": "good", "stars": ""}),
    ]
    names = {"header": ["a", "b", "c"]}
    assert next(iter(read_records("a.xlsx", Data(**names))))[1] == {"a": "text", "b": "label", "c": "stars"}


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([], r"the file is empty \(a.xlsx\)"),
        ([["text", "label"]], "the file has columns but no rows"),
        ([["text", "text"], ["a", "b"]], "two columns have the same name"),
        ([["text"], ["a", "b"]], r"more cells than columns with a name \(a.xlsx:2\)"),
    ],
)
def test_faults(here, rows, line):
    with pytest.raises(DataError, match=line):
        list(read_records(write_book("a.xlsx", rows), Data()))


def test_a_damaged_workbook(here):
    pytest.importorskip("openpyxl")
    for content in (b"PK\x03\x04 and no more", b"text,label\n"):
        Path("a.xlsx").write_bytes(content)
        with pytest.raises(DataError, match=r"not an Excel workbook, or a damaged one \(a.xlsx\)"):
            list(read_records("a.xlsx", Data()))


def test_a_missing_package_is_said_before_anything_is_read(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    Path("a.xlsx").write_bytes(b"PK\x03\x04")
    with pytest.raises(
        UnavailableError, match=r"need the package openpyxl \(a.xlsx\) - `pip install .*xlsx.*, or save it"
    ):
        read_records("a.xlsx", Data())


def test_a_damaged_workbook_is_read_or_refused(here):
    whole = Path(write_book("a.xlsx", ROWS)).read_bytes()
    said = set()
    for at in range(0, len(whole), 61):
        Path("a.xlsx").write_bytes(whole[:at] + bytes([whole[at] ^ 0x06]) + whole[at + 1 :])
        try:
            list(read_records("a.xlsx", Data()))
        except DataError as error:
            said.add(error.what)
    assert "not an Excel workbook, or a damaged one" in said
