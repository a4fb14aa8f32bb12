"""The table of formats: a line in it and a function are all that a format needs."""

from __future__ import annotations

import gzip
import io
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertkit.data.files import FORMATS, Format, find_files, find_format, guess_format, read_records
from bertkit.data.text import read_lines
from bertkit.errors import DataError, RecipeError
from bertkit.recipe.records import DataConfig
from tests.kills import HEAVY

PAGE = Path(__file__).parents[3] / "docs" / "own-data.md"


def read_stars(source, data, name):
    for row, line in enumerate(read_lines(source, data.encoding, name), 1):
        text, _, stars = line.strip().rpartition(" ")
        yield row, {"text": text, "label": len(stars)}


ROWS = [{"text": "fine", "label": 4}, {"text": "so dull", "label": 1}]


@pytest.fixture
def starred(monkeypatch):
    """The shipped formats and one more."""
    monkeypatch.setitem(sys.modules, "bertkit.data.formats.starred", SimpleNamespace(read=read_stars))
    monkeypatch.setitem(FORMATS, "starred", Format("starred", "starred.read", (".stars",), running_text=False))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_what_it_needs(name):
    file_format = FORMATS[name]
    assert file_format.reader.count(".") == 1
    assert all(re.fullmatch(r"\.[a-z0-9]+", ending) for ending in file_format.endings)
    assert file_format.endings or not file_format.magic


def test_no_two_formats_share_an_ending():
    endings = [ending for known in FORMATS.values() for ending in known.endings]
    assert len(endings) == len(set(endings))
    assert {guess_format(f"x{ending}")[0].name for ending in endings} == set(FORMATS) - {"lines"}


def test_a_new_line_is_a_new_format(starred, here, monkeypatch):
    content = "fine ****\nso dull *\n"
    Path("train.stars").write_text(content)
    Path("dev.STARS.gz").write_bytes(gzip.compress(content.encode()))
    Path("plain").write_text(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content.encode()))))
    for file, name in {"train.stars": "auto", "dev.STARS.gz": "auto", "plain": "starred", "-": "starred"}.items():
        assert [row for _, row in read_records(file, DataConfig(format=name))] == ROWS
    assert find_files(here, DataConfig()) == {"train": [here / "train.stars"], "validation": [here / "dev.STARS.gz"]}
    with pytest.raises(RecipeError, match=r"no file format is called 'stared' - did you mean starred\?"):
        find_format("stared")
    with pytest.raises(DataError, match=r"supported are .*\.stars"):
        read_records("plain", DataConfig())


def test_what_is_pretrained_on_follows_from_the_formats():
    from bertkit.pretraining.documents import _ENDINGS

    assert {".csv", ".json", ".jsonl", ".ndjson", ".parquet", ".tsv", ".txt"} <= set(_ENDINGS)
    assert not {".conll", ".conllu"} & set(_ENDINGS)


@pytest.mark.parametrize(
    ("file", "name", "ending"),
    [
        ("a.b.TSV", "tsv", ".tsv"),
        ("a.csv.gz", "csv", ".csv.gz"),
        ("a.parquet", "parquet", ".parquet"),
        ("a.parquet.gz", None, ""),
        ("a.gz", None, ""),
        ("csv", None, ""),
    ],
)
def test_the_format_of_a_name(file, name, ending):
    file_format, found_ending = guess_format(file)
    assert (file_format.name if file_format else None, found_ending) == (name, ending)


def test_the_table_of_endings_in_the_docs_is_the_folder():
    tables = re.findall(r"(?:^\|.*\n)+", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (table,) = [rows for rows in tables if re.match(r"\| *ending *\|", rows, flags=re.IGNORECASE)]
    first_column = " ".join(row.split("|")[1] for row in table.splitlines()[2:])
    endings = re.findall(r"`(\.\w+)`", first_column)
    assert sorted(endings) == sorted(ending for known in FORMATS.values() for ending in known.endings)


def test_an_unknown_format_is_answered_before_torch_is_imported(tmp_path, tiny_model, light_zygote):
    (tmp_path / "d.csv").write_text("text,label\nfine,1\nbad,0\n")
    arguments = ["finetune", "classify", "--model", tiny_model, "--set", "data.format=cvs", "--data", "d.csv"]
    assert HEAVY & light_zygote.imports(tmp_path, arguments) <= {"numpy"}


@pytest.mark.parametrize("source", ["d.csv", "demo"])
def test_an_unknown_format_is_an_error_of_the_recipe(run, source):
    Path("d.csv").write_text("text,label\nfine,1\nbad,0\n")
    ended = run("finetune", "classify", "--model", "demo", "--data", source, "--set", "data.format=cvs", "--dry-run")
    assert ended.code == 2
    assert ended.last == "error: data.format: no file format is called 'cvs' - did you mean csv?"


def test_csv_is_read_without_heavy_libraries(tmp_path):
    (tmp_path / "d.csv").write_text("text,label\nfine,1\n")
    script = (
        "import sys\nfrom bertkit.data.files import read_records\nfrom bertkit.recipe import DataConfig\n"
        "print(list(read_records('d.csv', DataConfig())))\nprint(*{name.partition('.')[0] for name in sys.modules})"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    rows, modules = ended.stdout.splitlines()
    assert rows == "[(2, {'text': 'fine', 'label': '1'})]"
    assert not HEAVY & set(modules.split())
