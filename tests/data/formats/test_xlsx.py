"""Excel workbooks: the first sheet as rows, and a missing openpyxl said before anything is read."""

from __future__ import annotations

import datetime
import logging
import re
import sys
import zipfile
from pathlib import Path

import pytest

from bertkit.data.files import read_records
from bertkit.errors import DataError, UnavailableError
from bertkit.recipe import DataConfig

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
    read = list(read_records(write_book("a.xlsx", ROWS, notes=["x"]), DataConfig()))
    assert read == [
        (2, {"text": "so fine", "label": "good", "stars": 4.5}),
        (4, {"text": "bad é", "label": "", "stars": 1}),
        (5, {"text": "ok", "label": "good", "stars": ""}),
    ]
    names = {"header": ["a", "b", "c"]}
    assert next(iter(read_records("a.xlsx", DataConfig(**names))))[1] == {"a": "text", "b": "label", "c": "stars"}


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([], r"the file is empty \(a.xlsx\)"),
        ([["text", "label"]], "the file has columns but no rows"),
        ([["text", "text"], ["a", "b"]], "two columns have the same name"),
        ([["text"], ["a", "b"]], r"a cell in a column without a name \(a.xlsx:2\)"),
    ],
)
def test_faults(here, rows, line):
    with pytest.raises(DataError, match=line):
        list(read_records(write_book("a.xlsx", rows), DataConfig()))


def test_a_damaged_workbook(here):
    pytest.importorskip("openpyxl")
    for content, line in {
        b"PK\x03\x04": "not an Excel workbook, or damaged",
        b"text\n": "not an Xlsx file",
    }.items():
        Path("a.xlsx").write_bytes(content)
        with pytest.raises(DataError, match=rf"{line} \(a.xlsx\)"):
            list(read_records("a.xlsx", DataConfig()))


def test_a_missing_package_is_said_before_anything_is_read(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    Path("a.xlsx").write_bytes(b"PK\x03\x04")
    with pytest.raises(
        UnavailableError, match=r"need the package openpyxl \(a.xlsx\) - `pip install .*xlsx.*, or save it"
    ):
        read_records("a.xlsx", DataConfig())


def test_a_damaged_workbook_is_read_or_refused(here):
    whole = Path(write_book("a.xlsx", ROWS)).read_bytes()
    said = set()
    for at in range(0, len(whole), 61):
        Path("a.xlsx").write_bytes(whole[:at] + bytes([whole[at] ^ 0x06]) + whole[at + 1 :])
        try:
            list(read_records("a.xlsx", DataConfig()))
        except DataError as error:
            said.add(error.message)
    assert "not an Excel workbook, or damaged" in said


def read_rows(name="a.xlsx", **options):
    return [list(row.items()) for _, row in read_records(name, DataConfig(**options))]


def change_xml(name, member, change):
    """Rewrite a part of a workbook as another program might have written it."""
    with zipfile.ZipFile(name) as archive:
        parts = {part: archive.read(part) for part in archive.namelist()}
    parts[member] = change(parts[member].decode()).encode()
    with zipfile.ZipFile(name, "w") as archive:
        for part, content in parts.items():
            archive.writestr(part, content)


SHEET = "xl/worksheets/sheet1.xml"


def test_a_column_without_a_name_shifts_no_other(here):
    write_book("a.xlsx", [["text", None, "label"], ["a", "AB", "pos"], ["b", None, "neg"]])
    assert read_rows() == [[("text", "a"), ("", "AB"), ("label", "pos")], [("text", "b"), ("", ""), ("label", "neg")]]
    write_book("a.xlsx", [[None, "text", None, "label"], [0, "a", "x", "pos"]])
    assert read_rows() == [[("Unnamed: 0", 0), ("text", "a"), ("Unnamed: 2", "x"), ("label", "pos")]]


def test_a_column_with_a_text_has_only_texts(here):
    rows = [["text", "label", "stars"], [2012, True, 4.5], ["a", "unsure", 1], [0.1 + 0.2, False, None]]
    write_book("a.xlsx", [*rows, [datetime.date(2024, 1, 2), "x", 2]])
    assert [[value for _, value in row] for row in read_rows()] == [
        ["2012", "TRUE", 4.5],
        ["a", "unsure", 1],
        ["0.3", "FALSE", ""],
        ["2024-01-02 00:00:00", "x", 2],
    ]


def test_errors_and_formulas_without_a_value_are_blank_and_counted(here, caplog):
    write_book("a.xlsx", [["text", "label"], ["a", "#N/A"], ["b", '=IF(A3="b","x","y")'], ["c", "z"]])
    with caplog.at_level(logging.INFO, logger="bertkit"):
        assert [row[1] for row in read_rows()] == [("label", ""), ("label", ""), ("label", "z")]
    errors, formulas = caplog.messages
    assert "#N/A" in errors and "(1; the first is B2)" in errors
    assert "open it in Excel and save it" in formulas and "(1; the first is B3)" in formulas


def test_values_that_were_computed_are_read_and_a_zero_that_was_not_is_told(here, caplog):
    write_book("a.xlsx", [["text", "n"], ["a", "=1-1"], ["b", "=1+1"]])
    change_xml(
        "a.xlsx",
        SHEET,
        lambda xml: re.sub(r"<f>1(.)1</f><v ?/>", lambda f: "<f>1</f><v>{}</v>".format("02"[f[1] == "+"]), xml),
    )
    with caplog.at_level(logging.INFO, logger="bertkit"):
        assert [row[1][1] for row in read_rows()] == [0, 2]
    assert ["B2" in message for message in caplog.messages] == [True]


def test_the_size_that_a_sheet_declares_is_not_believed(here):
    write_book("a.xlsx", [["text", "label"], ["a", "x"], ["b", "y"]])
    whole = read_rows()
    for size in ("A1", "A1:A2", "B2:C9"):
        change_xml("a.xlsx", SHEET, lambda xml, size=size: re.sub(r'(<dimension ref=)"[^"]*"', rf'\1"{size}"', xml))
        assert read_rows() == whole
    change_xml("a.xlsx", SHEET, lambda xml: re.sub(r' r="[A-Z]+[0-9]+"', "", xml))
    assert read_rows() == whole


def test_what_is_hidden_or_merged_is_told(here, caplog):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["secret"])
    book.active.sheet_state = "hidden"
    book.create_sheet("Empty")
    sheet = book.create_sheet("Rows")
    for row in (["text", "label"], ["a", "x"], ["b", "y"], ["c", None]):
        sheet.append(row)
    sheet.merge_cells("B3:B4")
    sheet.merge_cells("D1:E1")
    sheet.row_dimensions[2].hidden = True
    sheet["A9000"].font = openpyxl.styles.Font(bold=True)
    book.save("a.xlsx")
    with caplog.at_level(logging.INFO, logger="bertkit"):
        assert [row[1][1] for row in read_rows()] == ["x", "y", ""]
    sheets, *notes = caplog.messages
    assert "the sheet 'Rows' is read, and not 'Sheet', 'Empty'" in sheets
    assert sorted(re.findall(r"\((.*)\)", note)[0] for note in notes) == ["1; the first is 2", "1; the first is B3:B4"]


def test_line_ends_that_excel_escapes(here):
    write_book("a.xlsx", [["text"], ["a_x000D_\nb"], ["snake_x"]])
    assert read_rows() == [[("text", "a\r\nb")], [("text", "snake_x")]]
