"""Predictions are written whole or not at all, in the format of the file's ending, and no value is lost."""

from __future__ import annotations

import csv
import datetime
import json
import math
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from bertkit.data import output
from bertkit.data.files import read_records
from bertkit.data.output import FileLayout, find_writer, flatten_prediction, write_records
from bertkit.errors import DataError, ResourceError, UsageError
from bertkit.recipe import DataConfig

PREDICTION = {"prediction": "good", "probabilities": {"bad": 0.25, "good": 0.75}}
RECORDS = [{"id": 1, "prediction": "good", "tokens": ["a", "é"]}, {"id": 2, "prediction": "bad", "tokens": []}]
FLAT = [{"id": 1, "prediction": "good", "tokens": '["a", "é"]'}, {"id": 2, "prediction": "bad", "tokens": "[]"}]


def parquet_of(tmp_path, *records):
    """Write records in chunks of two, and return the columns of the file with its types."""
    from pyarrow import parquet

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(output, "_CHUNK_ROWS", 2)
        assert write_records(iter(records), tmp_path / "a.parquet") == len(records)
    table = parquet.read_table(tmp_path / "a.parquet")
    return {name: (str(table.schema.field(name).type), table[name].to_pylist()) for name in table.column_names}


def test_jsonl_keeps_nested_values(tmp_path):
    file = tmp_path / "a.jsonl"
    assert write_records(iter(RECORDS), file) == 2
    assert [json.loads(line) for line in file.read_text().splitlines()] == RECORDS


def test_jsonl_is_strict_json(tmp_path):
    values = {"nan": math.nan, "nested": [{"a": math.inf}], "date": datetime.date(2020, 1, 2)}
    write_records(iter([values]), tmp_path / "a.jsonl")
    (line,) = (tmp_path / "a.jsonl").read_text().splitlines()
    assert line == '{"nan": null, "nested": [{"a": null}], "date": "2020-01-02"}'


@pytest.mark.parametrize(("ending", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_csv_and_tsv_are_flat(tmp_path, ending, delimiter):
    file = tmp_path / f"a{ending}"
    assert write_records(iter(RECORDS), file) == 2
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter=delimiter))
    assert rows == [{name: str(value) for name, value in row.items()} for row in FLAT]


def test_parquet_is_flat(tmp_path):
    from pyarrow import parquet

    assert write_records(iter(RECORDS), tmp_path / "a.parquet") == 2
    assert parquet.read_table(tmp_path / "a.parquet").to_pylist() == FLAT


def test_probabilities_become_columns():
    of_labels = {"probability_bad": 0.25, "probability_good": 0.75}
    assert flatten_prediction(PREDICTION, None) == {"prediction": "good", "confidence": 0.75, **of_labels}
    several = {**PREDICTION, "prediction": ["good"]}  # each label has a probability of its own
    assert flatten_prediction(several, None) == {"prediction": ["good"], **of_labels}
    own = {"prediction": 1, "probabilities": [0.5]}
    assert flatten_prediction(own, None) == own


def test_numbers_are_rounded_wherever_they_are():
    prediction = {
        "prediction": 0.123456,
        "rank": 7,
        "entities": [{"type": "PER", "probability": 0.98765}],
        "text": None,
    }
    rounded = {"prediction": 0.12, "rank": 7, "entities": [{"type": "PER", "probability": 0.99}], "text": None}
    assert flatten_prediction(prediction, 2) == rounded


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_columns_are_chosen_in_their_order(tmp_path, ending):
    write_records(iter(FLAT), tmp_path / f"a{ending}", FileLayout(columns=["tokens", "id"]))
    rows = [values for _, values in read_records(tmp_path / f"a{ending}", DataConfig())]
    assert [list(row) for row in rows] == [["tokens", "id"]] * 2
    assert [row["tokens"] for row in rows] == [row["tokens"] for row in FLAT]


def test_csv_has_the_delimiter_and_the_encoding_of_its_layout(tmp_path):
    write_records(iter(FLAT), tmp_path / "a.csv", FileLayout(delimiter=";", encoding="utf-8-sig"))
    first, second, _ = (tmp_path / "a.csv").read_bytes().split(b"\r\n")[:3]
    assert first == b"\xef\xbb\xbfid;prediction;tokens"
    assert second.decode() == '1;good;"[""a"", ""é""]"'


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ([1, 2, 3, 1.5], ("double", [1, 2, 3, 1.5])),
        ([1.5, 2, 2**53], ("double", [1.5, 2, 2**53])),
        ([1.5, None, 2**53 + 1], ("string", ["1.5", None, str(2**53 + 1)])),
        ([2**53 + 1, 1, -(2**63)], ("int64", [2**53 + 1, 1, -(2**63)])),
        ([1, 2, 2**64], ("string", ["1", "2", str(2**64)])),
        ([None, None, "text"], ("string", [None, None, "text"])),
        ([None, None, None], ("null", [None, None, None])),
        ([True, False, 1], ("string", ["true", "false", "1"])),
        (["a", "b", 1], ("string", ["a", "b", "1"])),
        ([[1], None, [[2.5, "é"]]], ("string", ["[1]", None, '[[2.5, "é"]]'])),
        ([{"a": 1}, {"b": [None]}, "{}"], ("string", ['{"a": 1}', '{"b": [null]}', "{}"])),
        ([b"\xff", None, b""], ("binary", [b"\xff", None, b""])),
        ([Decimal("1.50"), None, Decimal(10) ** 40], ("string", ["1.50", None, str(Decimal(10) ** 40)])),
        ([datetime.date(2020, 1, 2)], ("date32[day]", [datetime.date(2020, 1, 2)])),
        (
            [datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3)],
            ("string", ["2020-01-02", "2020-01-02 03:00:00"]),
        ),
    ],
    ids=str,
)
def test_parquet_finds_a_type_that_holds_every_value_of_a_column(tmp_path, values, column):
    assert parquet_of(tmp_path, *({"x": value} for value in values)) == {"x": column}


def test_parquet_keeps_times_to_the_nanosecond_and_with_their_zone(tmp_path):
    import pandas

    moment = pandas.Timestamp("2020-01-02 03:04:05.000000006", tz="Europe/Berlin")
    (name, values) = parquet_of(tmp_path, {"x": moment})["x"]
    assert (name, values) == ("timestamp[ns, tz=Europe/Berlin]", [moment])
    mixed = [datetime.datetime(2020, 1, 2), datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)]
    texts = ["2020-01-02 00:00:00", "2020-01-02 00:00:00+00:00"]
    assert parquet_of(tmp_path, *({"x": value} for value in mixed)) == {"x": ("string", texts)}


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_field_that_only_a_late_record_has_is_a_column_too(tmp_path, ending, monkeypatch):
    monkeypatch.setattr(output, "_CHUNK_ROWS", 2)
    write_records(iter([{"a": "1"}, {"a": "2"}, {"b": "3", "a": "4"}]), tmp_path / f"a{ending}")
    rows = [values for _, values in read_records(tmp_path / f"a{ending}", DataConfig())]
    empty = "" if ending == ".csv" else None
    assert rows == [{"a": "1", "b": empty}, {"a": "2", "b": empty}, {"a": "4", "b": "3"}]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(texts=some.lists(some.text(some.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1))
@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_every_format_has_one_record_a_row_in_order(tmp_path, monkeypatch, ending, texts):
    monkeypatch.setattr(output, "_CHUNK_ROWS", 3)
    records = [{"id": str(number), "text": text} for number, text in enumerate(texts)]
    assert write_records(iter(records), tmp_path / f"a{ending}") == len(records)
    assert [values for _, values in read_records(tmp_path / f"a{ending}", DataConfig())] == records


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_formulas_are_escaped_where_asked(tmp_path, ending):
    formulas = ["=1+1", "+49 30 1", "-a", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1"]
    harmless = ["-1.5", "+2", "-1e-05", "a=b", " =1", "", "'=1"]
    records = [{"=id": value, "number": -1.5} for value in formulas + harmless]
    file = tmp_path / f"a{ending}"
    for escape in (False, True):
        write_records(iter(records), file, FileLayout(escape_formulas=escape))
        mark = "'" if escape else ""
        rows = [values for _, values in read_records(file, DataConfig())]
        assert [row[f"{mark}=id"] for row in rows] == [*(mark + value for value in formulas), *harmless]
        assert {row["number"] for row in rows} == {"-1.5"}


def test_two_writers_of_one_file_do_not_mix(tmp_path):
    """Even where no lock keeps them apart."""
    file = tmp_path / "a.jsonl"

    def records():
        yield {"writer": 1, "record": 1}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(output, "delete_leftover_files", lambda _: None)
            write_records(iter([{"writer": 2}] * 3), file)
        assert file.read_text() == '{"writer": 2}\n' * 3
        yield {"writer": 1, "record": 2}

    write_records(records(), file)
    assert file.read_text() == '{"writer": 1, "record": 1}\n{"writer": 1, "record": 2}\n'


def test_what_a_killed_process_left_is_swept(tmp_path):
    left = [".a.jsonl.12.0123abcd.tmp", ".a.jsonl.345.ffffffff.tmp"]
    others = [".a.jsonl.tmp", ".b.jsonl.12.0123abcd.tmp", ".a.jsonl.12.0123abcd.tmp.bak", "a.jsonl.1.01234567.tmp"]
    for name in left + others:
        (tmp_path / name).write_text("")
    write_records(iter(RECORDS), tmp_path / "a.jsonl")
    assert {entry.name for entry in tmp_path.iterdir()} == {*others, "a.jsonl"}


def test_a_symbolic_link_stays_one(tmp_path):
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    write_records(iter(RECORDS), tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink() and (tmp_path / "real.csv").is_file()


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_a_fault_among_the_records_leaves_the_old_file(tmp_path, ending):
    def broken():
        yield RECORDS[0]
        raise KeyboardInterrupt

    file = tmp_path / f"a{ending}"
    file.write_text("before")
    with pytest.raises(KeyboardInterrupt):
        write_records(broken(), file)
    assert file.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match=r"unknown ending '\.xlsx' - use \.jsonl, \.csv, \.tsv, \.parquet"):
        find_writer(tmp_path / "a.xlsx")
    with pytest.raises(DataError, match=r"'é' cannot be written in ascii \(\S+a.csv\) - add --encoding utf-8"):
        write_records(iter(RECORDS), tmp_path / "a.csv", FileLayout(encoding="ascii"))
    with pytest.raises(UsageError, match=r"--columns: there is no column 'label' - there are: id, prediction, tokens"):
        write_records(iter(RECORDS), tmp_path / "a.csv", FileLayout(columns=["id", "label"]))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ResourceError, match="cannot be written"):
        write_records(iter(RECORDS), tmp_path / "nowhere" / "a.csv")


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_a_disk_that_refuses_a_write_is_told_in_one_line_whatever_library_meets_it(tmp_path, ending):
    resource = pytest.importorskip("resource", reason="Windows limits no sizes of files")
    rows = [{"text": f"{number * 2**0.5}"} for number in range(9000)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(ResourceError) as raised:
            write_records(rows, tmp_path / f"a{ending}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.message == "File too large"
    assert raised.value.remedy.startswith("raise the limit of file sizes (`ulimit -f`), or use another file system")
    assert list(tmp_path.iterdir()) == []
