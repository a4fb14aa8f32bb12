"""CSV and TSV: values stay as written, and every fault names its line."""

from __future__ import annotations

import csv
import io
import logging

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bertkit.data import text as text_files
from bertkit.data.formats import csv as csv_files
from bertkit.data.formats.csv import looks_like_data
from bertkit.data.text import read_lines
from bertkit.errors import BertkitError, DataError, RecipeError
from bertkit.recipe.records import DataConfig


def read(content, name="train.csv", **options):
    raw = content.encode() if isinstance(content, str) else content
    return list(csv_files.read(io.BytesIO(raw), DataConfig(**options), name))


def values(content, name="train.csv", **options):
    return [list(row.values()) for _, row in read(content, name, **options)]


def test_values_stay_as_written():
    rows = read("id,text,label\n007,NA,null\n1,  a b ,None\n2,nan,\n")
    assert rows == [
        (2, {"id": "007", "text": "NA", "label": "null"}),
        (3, {"id": "1", "text": "  a b ", "label": "None"}),
        (4, {"id": "2", "text": "nan", "label": ""}),
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_in_any_of_three_ways(end):
    text = end.join(["a,b", "1,2", "", "3,4", '"5', '6",7', "8,9"])
    assert read(text) == read(text + end) == read(text + 2 * end)
    assert read(text) == [
        (2, {"a": "1", "b": "2"}),
        (4, {"a": "3", "b": "4"}),
        (5, {"a": f"5{end}6", "b": "7"}),
        (7, {"a": "8", "b": "9"}),
    ]


@pytest.mark.parametrize("block", [1, 2, 3, 5, 7])
def test_blocks_leave_no_trace(monkeypatch, block):
    text = 'été,b\r\n"ž\r\n",€\r\n\r\n𝄞,2\r\n'
    whole = read(text.encode("utf-8-sig"))
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", block)
    assert read(text.encode("utf-8-sig")) == whole == [(2, {"été": "ž\r\n", "b": "€"}), (5, {"été": "𝄞", "b": "2"})]
    assert read(text.encode("utf-16"), encoding="utf-16") == whole
    assert read(text.replace("𝄞", "ß").encode("cp1250"), encoding="cp1250")[0] == whole[0]
    with pytest.raises(DataError, match=r"byte 0xff at offset 18 is not valid utf-8 \(train.csv:4\)"):
        read(text[:11].encode() + b"\r\n1,\xff")


def test_a_byte_order_mark_is_no_part_of_the_first_name():
    assert read("text\nx\n".encode("utf-8-sig")) == [(2, {"text": "x"})]
    assert read("text\nx\n".encode("utf-16"), encoding="utf-16") == [(2, {"text": "x"})]
    assert read(b"\xff\xfe" + "text\nx\n".encode("utf-16-le"), encoding="utf-16-le") == [(2, {"text": "x"})]


def test_blank_lines_count_only_in_a_single_column():
    assert read("\na,b\n\n1,2\n\n") == [(4, {"a": "1", "b": "2"})]
    assert read("\ntext\nx\n\n\ny\n\n\n") == [
        (3, {"text": "x"}),
        (4, {"text": ""}),
        (5, {"text": ""}),
        (6, {"text": "y"}),
    ]


def test_header_names_keep_their_spaces():
    assert read("text, label\nx, 1\n") == [(2, {"text": "x", " label": " 1"})]


def test_names_can_come_from_the_recipe():
    assert read("x,1\ny,0\n", header=["text", "label"]) == [
        (1, {"text": "x", "label": "1"}),
        (2, {"text": "y", "label": "0"}),
    ]
    assert values("x, y;1\n", header=["text", "label"]) == [["x", " y;1"]]
    assert values("x, y; z;1\n", header=["a", "b", "c"]) == [["x, y", " z", "1"]]
    assert values("x; y\n", header=["text"]) == [["x; y"]]


def test_quotes_are_text_on_request():
    tsv = 'text\tlabel\n"He said\t1\n5" disk\t0\n'
    assert values(tsv, "train.tsv", quoting="none") == [['"He said', "1"], ['5" disk', "0"]]
    assert values('a,b\n5" disk,"x, ""y"""\n') == [['5" disk', 'x, "y"']]


@pytest.mark.parametrize(
    ("content", "row"),
    [
        ("a;b\n1,5;2\n", ["1,5", "2"]),
        ("a\tb\n1,5\t2\n", ["1,5", "2"]),
        ("a|b|c;d\n1|2|3\n", ["1", "2", "3"]),
        ('"a,b";c\n1;2\n', ["1", "2"]),
        ("a,b;c\n1,2\n", ["1", "2"]),
        ("text\nx;y\n", ["x;y"]),
    ],
)
def test_the_delimiter_is_read_off_the_header(content, row):
    assert values(content) == [row]


def test_the_delimiter_is_named():
    content = "a,b\tc\n1,5\t2\n"
    assert values(content, "a.tsv") == values(content, "a.TSV.gz") == [["1,5", "2"]]
    assert values(content, delimiter="tab") == values(content, delimiter="\\t") == [["1,5", "2"]]
    assert values("a b\n1 2\n", delimiter=" ") == [["1", "2"]]


def test_another_delimiter_than_the_comma_is_logged(caplog):
    with caplog.at_level(logging.INFO, "bertkit"):
        read("a;b\n1;2\n")
        read("a,b\n1,2\n")
        read("a;b\n1;2\n", delimiter=";")
    assert caplog.messages == ["the columns of train.csv are separated by ';'"]


EMPTY = "the file is empty (train.csv) - give it a header line and rows"
NO_ROWS = "the file has a header but no rows (train.csv) - "
TWICE = "two columns have the same name (train.csv, column 'a') - rename one of them"
UTF16 = " - the file looks like utf-16-le: --set data.encoding=utf-16-le"
QUOTES = " - close or double its quotes, or read them as text: --set data.quoting=none"
UNCLOSED = "a quote is never closed: "


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", EMPTY),
        ("\n\r\n\r", EMPTY),
        ("a,b\n", NO_ROWS + "add rows"),
        ("x,1\n", NO_ROWS + "if the header is a row: --set data.header=[...]"),
        ("a,b,a\n1,2,3\n", TWICE),
        ("a,b\n1,x\0y\n", "a NUL character (train.csv:2, column 'b') - remove it"),
        ('a,b,c\n1,2,3\n"x,\ny",z\0,3\n', "a NUL character (train.csv:3, column 'b') - remove it"),
        ('a,b\n"x""\ny\0', "a NUL character (train.csv:2, column 'a') - remove it"),
        ("a,b\n\0", "a NUL character (train.csv:2, column 'a') - remove it"),
        ("a,\0b\n1,2\n", "a NUL character (train.csv:1) - remove it"),
        ("text,label\nx,1\n".encode("utf-16-le"), "a NUL character (train.csv:1)" + UTF16),
        (
            "a,b\nx, y,1\n",
            "3 fields instead of 2: 'x, y,1' (train.csv:2)"
            " - put text that holds ',' in double quotes, or --set data.delimiter=...",
        ),
        ("a,b\n1,2\nx\n", "1 field instead of 2: 'x' (train.csv:3) - complete the row or delete it"),
        (
            'a,b\n1,"x\n2,y\n3,z",4\n',
            "3 fields instead of 2: '1,\"x\\n2,y\\n3,z\",4' (train.csv:2)"
            " - if the quotes are text: --set data.quoting=none",
        ),
        ('a,b\n1,2\n3,"x\n4,y\n', UNCLOSED + "'3,\"x\\n4,y' (train.csv:3)" + QUOTES),
        ('a,b\n1,"x"y\n', "text after a closing quote: '1,\"x\"y' (train.csv:2)" + QUOTES),
    ],
)
def test_faults(content, line):
    with pytest.raises(DataError) as caught:
        read(content)
    assert str(caught.value) == line
    assert caught.value.file == "train.csv"


def test_a_name_in_the_recipe_twice():
    with pytest.raises(DataError) as caught:
        read("1,2\n", header=["a", "a"])
    assert str(caught.value) == TWICE


@pytest.mark.parametrize(
    ("content", "encoding", "byte", "remedy"),
    [
        ("text\nx\n".encode("utf-16"), "utf-8", (0xFF, 0, 1), "if the file is utf-16"),
        ("a,b\nnaïve,1\ncafé,0\n".encode("cp1252"), "utf-8", (0xEF, 6, 2), "if the file is cp1252"),
        (b"a\rb\rc\xe9\r", "utf-8", (0xE9, 5, 3), "if the file is cp1252"),
        ("a,b\n1,é\n".encode(), "ascii", (0xC3, 6, 2), "if the file is cp1252"),
        (b"a,b\n1,\x81\n", "cp1252", (0x81, 6, 2), "repair the file"),
    ],
)
def test_bytes_in_another_encoding(content, encoding, byte, remedy):
    value, offset, row = byte
    with pytest.raises(DataError) as caught:
        read(content, encoding=encoding)
    if remedy.startswith("if"):
        remedy += f": --set data.encoding={remedy.split()[-1]}"
    place = f"byte 0x{value:x} at offset {offset} is not valid {encoding} (train.csv:{row})"
    assert str(caught.value) == f"{place} - {remedy}"


def test_a_line_or_field_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(csv_files, "MAX_CHARS", 1000)
    monkeypatch.setattr(text_files, "MAX_CHARS", 1000)
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 100)
    assert len(read("a,b\n" + 2 * "1,2\n" + "x" * 990 + ",1\n")) == 3
    with pytest.raises(DataError) as caught:
        read("a,b\n1,2\n" + "x" * 1000 + ",1\n")
    assert str(caught.value) == "a line of more than 1,000 characters (train.csv:3) - split it"
    with pytest.raises(DataError) as caught:
        read('a,b\n1,"' + "many words" + 300 * "\nand more" + '"\n')
    assert str(caught.value) == (
        "a field of more than 1,000 characters: '1,\"many words\\nand more\\nand more\\nand more\\nand more"
        f"\\nand more\\na...' (train.csv:2){QUOTES}"
    )
    csv.field_size_limit(131072)


@pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n", "\0"])
def test_a_delimiter_of_another_length(delimiter):
    with pytest.raises(RecipeError) as caught:
        read("a,b\n1,2\n", delimiter=delimiter)
    remedy = "write tab for a tab; for | put it in quotes: --set 'data.delimiter=\"|\"'"
    assert str(caught.value) == f"data.delimiter must be one character, not {delimiter!r} - {remedy}"


@pytest.mark.parametrize("encoding", ["utf-9", "hex", "undefined", ""])
def test_an_unknown_encoding(encoding):
    with pytest.raises(RecipeError) as caught:
        read("a,b\n1,2\n", encoding=encoding)
    place = f"data.encoding: unknown text encoding {encoding!r}"
    assert str(caught.value) == f"{place} - use a name that Python knows, such as utf-8, utf-16 or cp1252"


def test_rows_come_before_the_end_is_read():
    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def read(self, size=-1):
            return b"a,b\n" * (size // 4)

    rows = csv_files.read(Endless(), DataConfig(header=["x", "y"]), "endless.csv")
    assert [next(rows)[0] for _ in range(1000)] == list(range(1, 1001))


def test_looks_like_data():
    for header in (["sentence", "label"], ["question 1", "a b c d e"], ["v1.0", "-"]):
        assert not looks_like_data(header)
    for cell in ("1", "-0.5", " ", "one two three four five six", "A fine film.", "x" * 81):
        assert looks_like_data(["text", cell])


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(
    st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1)),
    st.sampled_from(",;\t|"),
    st.sampled_from([("\r\n", csv.QUOTE_MINIMAL), ("\n", csv.QUOTE_ALL), ("\r", csv.QUOTE_ALL)]),
)
def test_what_csv_writes_is_read_back(rows, delimiter, style):
    end, quoting = style
    names = [f"c{column}" for column, _ in enumerate(rows[0])]
    stream = io.StringIO(newline="")
    csv.writer(stream, delimiter=delimiter, lineterminator=end, quoting=quoting).writerows([names, *rows])
    assert values(stream.getvalue(), delimiter=delimiter) == rows
    if len(names) > 1 or delimiter == ",":
        assert values(stream.getvalue()) == rows


@given(
    st.binary(),
    st.sampled_from(["double", "none"]),
    st.sampled_from(["utf-8", "utf-16", "cp1252", "shift_jis"]),
)
@example(b"a,b\n\xef\xbb\xbf", "double", "utf-8")
def test_random_bytes_end_in_rows_or_one_line(content, quoting, encoding):
    for name in ("a.csv", "a.tsv"):
        try:
            rows = read(content, name, quoting=quoting, encoding=encoding)
        except BertkitError as error:
            assert "\n" not in str(error)
        else:
            assert rows and all(set(row) == set(rows[0][1]) for _, row in rows)


@given(st.text(st.sampled_from('a,";\n\r\0é'), max_size=40))
def test_random_csv_ends_in_rows_or_one_line(content):
    try:
        rows = read(content)
    except BertkitError as error:
        assert "\n" not in str(error)
    else:
        lines = list(read_lines(io.BytesIO(content.encode()), "utf-8", "a.csv"))
        assert all(1 < row <= len(lines) for row, _ in rows)


@pytest.mark.parametrize("header", ["x" * 140_000 + ",label", '"' + "x" * 140_000 + '",label', "x" * 140_000 + "\tb"])
def test_a_first_line_longer_than_pythons_limit_of_a_field(monkeypatch, header):
    csv.field_size_limit(131_072)
    names = list(read(f"{header}\n1,2\n".replace(",", "\t" if "\t" in header else ","))[0][1])
    assert len(names) == 2


@pytest.mark.parametrize(
    ("content", "is_joined"),
    [
        ('id\ttext\tlabel\n1\t"The good\tpos\n2\tother\tneg\n3\tend"\tneg\n', True),
        ('text,label\n"The start,pos\nother,neg\nend",pos\n', True),
        ('text,label\n"Dear Anna,\nI am, as ever, fine.\nBye",pos\n', False),
        ('text,label\n"one line, quoted",pos\n', False),
    ],
)
def test_quotes_that_join_rows_are_told(caplog, content, is_joined):
    name = "a.tsv" if "\t" in content else "a.csv"
    with caplog.at_level(logging.INFO, "bertkit"):
        assert len(read(content, name)) == 1
        read(content, name, quoting="none") if is_joined else None
    warnings = [message for message in caplog.messages if message.startswith(f"warning: {name}:2: quotes join")]
    assert len(warnings) == is_joined and all("--set data.quoting=none" in warning for warning in warnings)


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', "sep=;\r"])
def test_excel_names_the_delimiter_in_the_first_line(first, tmp_path):
    assert read(f"{first}\ntext;label\na, b;x\n") == [(3, {"text": "a, b", "label": "x"})]
    (tmp_path / "a.csv").write_text(f"{first}\ntext;label\na;x\n")
    assert csv_files.find_dialect(tmp_path / "a.csv", DataConfig()) == (";", "utf-8")


def test_several_columns_without_a_name():
    assert read("text,label,,\na,x,,1\n") == [
        (2, {"text": "a", "label": "x", "Unnamed: 2": "", "Unnamed: 3": "1"}),
    ]
    assert read(",text\n0,a\n") == [(2, {"": "0", "text": "a"})]
