"""Files are found by their names and read by their endings; what is not read says so in one line."""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import os
import pickle
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertkit.data.files import find_files, read_records, take_first
from bertkit.errors import BertkitError, DataError, RecipeError, ResourceError, UsageError
from bertkit.recipe.records import DataConfig
from bertkit.storage.fingerprints import file_fingerprint

ROWS = [{"text": "x", "label": "1"}, {"text": "y", "label": "0"}]


def rows(file, **options):
    return [row for _, row in read_records(file, DataConfig(**options))]


def touch(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("text\nx\n")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "text,label\nx,1\ny,0\n"),
        ("a.CSV", "text,label\nx,1\ny,0\n"),
        ("a.b.tsv", "text\tlabel\nx\t1\ny\t0\n"),
        ("a.jsonl", '{"text": "x", "label": "1"}\n{"text": "y", "label": "0"}\n'),
        ("a.ndjson", '{"text": "x", "label": "1"}\n{"text": "y", "label": "0"}\n'),
        ("a.json", '[{"text": "x", "label": "1"}, {"text": "y", "label": "0"}]'),
    ],
)
def test_the_ending_names_the_format(here, name, content):
    Path(name).write_text(content)
    Path(f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    assert rows(name) == rows(Path(name)) == rows(f"{name}.gz") == ROWS


NER = [{"tokens": ["EU", "says"], "tags": ["B-ORG", "O"]}, {"tokens": ["no"], "tags": ["O"]}]
COLUMNS = "EU B-ORG\nsays O\n\nno O\n"
FIELDS = {name: ["_"] for name in ("lemmas", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")}
UD = "1\tno" + "\t_" * 8 + "\n"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        *((f"a.{suffix}", COLUMNS, NER) for suffix in ("conll", "BIO", "iob", "iob2", "txt")),
        *((f"a.{suffix}", UD, [{"id": "1", "text": "no", "tokens": ["no"], **FIELDS}]) for suffix in ("conllu", "txt")),
        ("a.txt", "one\n\ntwo", [{"text": "one"}, {"text": ""}, {"text": "two"}]),
    ],
)
def test_files_of_lines(here, name, content, expected):
    Path(name).write_text(content)
    Path(f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    assert rows(name) == rows(f"{name}.gz") == expected


@pytest.mark.parametrize("name", ["eng.train", "a", "a.csv", "a.jsonl", "a.parquet", "a.txt"])
@pytest.mark.parametrize(
    ("format", "content", "expected"),
    [
        ("csv", "text,label\nx,1\ny,0\n", ROWS),
        ("csv", "text\tlabel\nx\t1\ny\t0\n", ROWS),
        ("jsonl", '{"text": "x", "label": "1"}\n{"text": "y", "label": "0"}\n', ROWS),
        ("json", '[{"text": "x", "label": "1"}, {"text": "y", "label": "0"}]', ROWS),
        ("conll", COLUMNS, NER),
        ("conllu", UD, [{"id": "1", "text": "no", "tokens": ["no"], **FIELDS}]),
        ("lines", "say O\n", [{"text": "say O"}]),
    ],
)
def test_the_format_of_the_recipe_wins(here, monkeypatch, name, format, content, expected):
    Path(name).write_text(content)
    Path(f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content.encode()))))
    assert rows(name, format=format) == rows(f"{name}.gz", format=format) == rows("-", format=format) == expected


def test_parquet_by_another_name(here):
    pq.write_table(pa.Table.from_pylist(ROWS), "a.train")
    assert rows("a.train", format="parquet") == ROWS
    Path("a.train").rename("a.parquet")
    for file, error, line in [
        ("a.parquet", DataError, "a Parquet file (a.parquet) - add --set data.format=auto"),
        ("-", UsageError, "parquet cannot be read from standard input - name the file"),
    ]:
        with pytest.raises(error) as caught:
            rows(file, format="parquet" if file == "-" else "conll")
        assert str(caught.value) == line


def test_parquet(here):
    pq.write_table(pa.Table.from_pylist(ROWS), "a.parquet")
    assert rows("a.parquet") == ROWS


@pytest.mark.parametrize(
    "content",
    [
        "text,label\nx,1\ny,0\n",
        "text;label\nx;1\ny;0\n",
        '\n {"text": "x", "label": "1"}\n{"text": "y", "label": "0"}\n',
        '\ufeff{"text": "x", "label": "1"}\n{"text": "y", "label": "0"}\n',
    ],
)
def test_standard_input(monkeypatch, content):
    for encoding in ("utf-8", "utf-16"):
        raw = io.BufferedReader(io.BytesIO(content.encode(encoding)))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(raw))
        assert rows("-", encoding=encoding) == ROWS


def test_a_fault_in_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"a,b\n1\n"))))
    with pytest.raises(DataError) as caught:
        rows("-")
    assert str(caught.value) == "1 field instead of 2: '1' (standard input:2) - complete the row or delete it"


def workbook():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(zipfile.ZipInfo("xl/workbook.xml"), "")  # without the time, which would name the test anew
    return stream.getvalue()


def arrow():
    sink = pa.BufferOutputStream()
    table = pa.table({"a": [1]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


AS_PARQUET = "save the data with Dataset.to_parquet"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (workbook(), "an Excel workbook or another zip archive (train.csv) - rename a workbook to end in .xlsx"),
        (b"\xd0\xcf\x11\xe0\xa1", "an old Excel workbook (train.csv) - save it as CSV (UTF-8)"),
        (pickle.dumps([1]), f"a Python pickle, which could run code (train.csv) - {AS_PARQUET}"),
        (arrow(), "an Arrow file (train.csv) - rename it to end in .arrow"),
        (b"ARROW1\0\0", f"an Arrow file (train.csv) - {AS_PARQUET}"),
        (b"PAR1\x15\x04", "a Parquet file (train.csv) - rename it to end in .parquet"),
        (gzip.compress(b"a\n1\n", mtime=0), "a gzip file (train.csv) - rename it to end in .gz"),
        (b"\x28\xb5\x2f\xfd\0", "a zstd file (train.csv) - rename it to end in .zst"),
        (b"BZh91AY", "a compressed file (train.csv) - unpack it"),
        (b"\n<!DOCTYPE html>\n<html>", "a web page, not a data file (train.csv) - download the file itself"),
        (b'<html lang="en">', "a web page, not a data file (train.csv) - download the file itself"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n",
            "a Git LFS pointer, not the file itself (train.csv) - run git lfs pull",
        ),
    ],
)
def test_files_of_other_formats_are_recognized(here, content, line):
    Path("train.csv").write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_records("train.csv", DataConfig())
    assert str(caught.value) == line


def test_an_unknown_ending(here):
    touch("eng.train")
    with pytest.raises(DataError) as caught:
        read_records("eng.train", DataConfig())
    what, remedy = str(caught.value).split(" - ")
    assert what == "unknown file ending (eng.train)"
    assert remedy.startswith("supported are .ann, .conll, ")
    assert remedy.endswith(
        " (and these with .gz or .zst) and .arrow, .parquet, .spacy, .xlsx; or name its format: --set data.format=conll"
    )


def test_an_unknown_format_is_an_error_of_the_recipe(here):
    touch("set/train.csv")
    for look in (
        lambda: read_records("set/train.csv", DataConfig(format="cvs")),
        lambda: find_files(here, DataConfig(format="cvs")),
    ):
        with pytest.raises(RecipeError) as caught:
            look()
        assert str(caught.value) == "data.format: no file format is called 'cvs' - did you mean csv?"
        assert caught.value.exit_code == 2


def test_a_gzip_file_of_an_unknown_format(here):
    Path("eng.train.gz").write_bytes(gzip.compress(COLUMNS.encode()))
    assert rows("eng.train.gz", format="conll") == NER
    with pytest.raises(DataError, match="unknown file ending"):
        rows("eng.train.gz")
    with pytest.raises(DataError, match=r"a gzip file .* --set data.format=auto"):
        rows("eng.train.gz", format="parquet")


def test_damaged_gzip(here):
    truncated = "Compressed file ended before the end-of-stream marker was reached"
    for content, fault in {
        b"text\nx\n": "Not a gzipped file (b'te')",
        gzip.compress(b"text\nx\n", mtime=0)[:-9]: truncated,
    }.items():
        Path("train.csv.gz").write_bytes(content)
        with pytest.raises(DataError) as caught:
            rows("train.csv.gz")
        assert str(caught.value) == f"damaged gzip file: {fault} (train.csv.gz) - download it again"


def test_a_missing_file(here):
    touch("data/train.csv", "data/notes.txt")
    for file, line in {
        "data/trian.csv": "no such file or folder (data/trian.csv) - did you mean data/train.csv?",
        "data/x": "no such file or folder (data/x) - there are: notes.txt, train.csv",
        "nowhere/train.csv": "no such file or folder (nowhere/train.csv) - the folder nowhere is empty or missing",
        "data/train.csv/x": "no such file or folder (data/train.csv/x) - the folder data/train.csv is empty or missing",
        "data/" + "x" * 300: f"no such file or folder (data/{'x' * 300}) - there are: notes.txt, train.csv",
    }.items():
        with pytest.raises(DataError) as caught:
            read_records(file, DataConfig())
        assert str(caught.value) == line
        assert caught.value.exit_code == 3


def test_what_is_no_file(here):
    touch("data/train.csv")
    os.mkfifo("train.csv")
    for file, line in {
        "data": "a folder, not a file (data) - name one of its files; "
        "only folders of documents (.txt, .md, .html, .htm) can be read",
        "train.csv": "a pipe or device, not a file (train.csv) - to read standard input, write -",
        "/dev/zero": "a pipe or device, not a file (/dev/zero) - to read standard input, write -",
    }.items():
        with pytest.raises(UsageError) as caught:
            read_records(file, DataConfig())
        assert str(caught.value) == line
    with pytest.raises(UsageError) as caught:
        find_files(Path("data/train.csv"), DataConfig())
    assert str(caught.value) == "a file, not a folder (data/train.csv) - name its folder"


def test_folders_that_are_sources_are_splits_by_their_names(here):
    touch(
        "set/dataset_dict.json", "set/train/state.json", "set/Dev/state.json", "set/extra/state.json", "set/test/x.csv"
    )
    assert find_files(Path("set"), DataConfig()) == {"train": [Path("set/train")], "validation": [Path("set/Dev")]}
    assert find_files(Path("set"), DataConfig(splits={"test": "extra"}))["test"] == [Path("set/extra")]


def test_a_file_that_may_not_be_read(here, monkeypatch):
    touch("train.csv")

    def refuse(*_, **__):
        raise PermissionError

    for method, remedy in {"open": "check its permissions", "stat": "check the permissions of its folder"}.items():
        monkeypatch.setattr(Path, method, refuse)
        with pytest.raises(ResourceError) as caught:
            read_records("train.csv", DataConfig())
        assert str(caught.value) == f"no permission to read (train.csv) - {remedy}"
        monkeypatch.undo()
        monkeypatch.chdir(here)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["train.csv", "validation.csv", "test.csv"], {"train": 1, "validation": 1, "test": 1}),
        (["training.tsv", "dev.tsv"], {"train": 1, "validation": 1}),
        (["Train.jsonl.gz", "VAL.jsonl.gz", "README.md"], {"train": 1, "validation": 1}),
        (["data/train.json", "valid.json"], {"train": 1, "validation": 1}),
        (
            ["train-00001-of-00002.parquet", "train-00000-of-00002.parquet", "test-00000-of-00001.parquet"],
            {"train": 2, "test": 1},
        ),
        (["data/train-00000-of-00001-0a1b2c3d.parquet"], {"train": 1}),
        (["train.txt", "testa.txt", "testb.txt"], {"train": 1, "validation": 1, "test": 1}),
        (["train-v1.1.json", "dev-v1.1.json"], {"train": 1, "validation": 1}),
        *((["train.csv", f"{name}.csv"], {"train": 1, "validation": 1}) for name in ("devel", "Development", "EVAL")),
        (["Training Data.csv", "validation set.csv", "test .csv"], {"train": 1, "validation": 1, "test": 1}),
        (
            ["en_ewt-ud-train.conllu", "en_ewt-ud-dev.conllu", "en_ewt-ud-test.conllu", "LICENSE.md"],
            {"train": 1, "validation": 1, "test": 1},
        ),
        (["NER.Train.bio.gz", "test_2020.bio"], {"train": 1, "test": 1}),
        (["squad_train-00000-of-00002.parquet", "squad_train-00001-of-00002.parquet"], {"train": 2}),
    ],
)
def test_find_files(here, names, found):
    touch(*names)
    files = find_files(here, DataConfig())
    assert {split: len(paths) for split, paths in files.items()} == found
    assert all(paths == sorted(paths) for paths in files.values())
    there = {here / name for name in names if not name.endswith(".md")}
    assert {path for paths in files.values() for path in paths} == there


def test_find_files_by_the_names_of_the_recipe(here):
    touch("train.csv", "dev.csv", "dev_matched.csv", "dev_mismatched.csv")
    splits = {"validation": "dev_matched", "mismatched": "dev_mismatched", "other": "absent"}
    assert find_files(here, DataConfig(splits=splits)) == {
        "train": [here / "train.csv"],
        "validation": [here / "dev_matched.csv"],
        "mismatched": [here / "dev_mismatched.csv"],
    }


def test_find_files_of_any_name_where_the_format_is_given(here):
    touch("eng.train", "eng.testa.gz", "testb", "README", ".eng.test")
    assert find_files(here, DataConfig(format="conll")) == {
        "train": [here / "eng.train"],
        "validation": [here / "eng.testa.gz"],
        "test": [here / "testb"],
    }


def test_a_name_alike_counts_only_for_want_of_the_very_name(here, caplog):
    touch("train.csv", "train_old.csv", "dev_matched.csv", "dev_mismatched.csv", "train_test.csv", ".dev.csv")
    with caplog.at_level(logging.INFO, logger="bertkit"):
        assert find_files(here, DataConfig(splits={"mismatched": "dev_mismatched", "test": "absent"})) == {
            "train": [here / "train.csv"],
            "validation": [here / "dev_matched.csv"],
            "mismatched": [here / "dev_mismatched.csv"],
        }
        find_files(here, DataConfig(splits={"mismatched": "dev_mismatched", "test": "absent"}))
    unread = f"files of {here} that are not read (2): train_old.csv, train_test.csv"
    assert caplog.messages == ["using dev_matched.csv as the validation split", unread]


def test_a_split_may_have_the_name_of_another_file(here):
    touch("train.csv", "hard.csv", "part_2.csv")
    assert find_files(here, DataConfig(splits={"hard": "part_2"}))["hard"] == [here / "part_2.csv"]


def test_a_file_called_eval_validates_only_for_want_of_another(here, caplog):
    touch("train.tsv", "devel.tsv", "eval.tsv", "train_dev.tsv", "README.md")
    with caplog.at_level(logging.INFO, logger="bertkit"):
        assert find_files(here, DataConfig()) == {"train": [here / "train.tsv"], "validation": [here / "devel.tsv"]}
    assert caplog.messages == [f"files of {here} that are not read (2): eval.tsv, train_dev.tsv"]


def test_a_split_whose_file_is_named_is_looked_for_no_more(here, caplog):
    touch("wnut17train.conll", "emerging.dev.conll", "restrain.conll")
    with caplog.at_level(logging.INFO, logger="bertkit"):
        assert find_files(here, DataConfig(), given_splits=["validation"]) == {"train": [here / "wnut17train.conll"]}
    assert caplog.messages == ["using wnut17train.conll as the train split"]


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (
            ["train.csv", "train.jsonl"],
            "two files could be the train split: train.csv and train.jsonl (set)"
            " - choose one: --set data.files.train=set/train.csv",
        ),
        (
            ["train.csv", "dev.csv", "valid.csv"],
            "two files could be the validation split: dev.csv and valid.csv (set)"
            " - choose one: --set data.files.validation=set/dev.csv",
        ),
        (
            ["train.csv", "data/train.csv"],
            "two files could be the train split: data/train.csv and train.csv (set)"
            " - choose one: --set data.files.train=set/data/train.csv",
        ),
        (
            ["train.csv", "dev-v1.csv", "v2-dev.csv"],
            "two files could be the validation split: dev-v1.csv and v2-dev.csv (set)"
            " - choose one: --set data.files.validation=set/dev-v1.csv",
        ),
        (
            ["train_test.csv", "retrain.csv", "trains.csv"],
            "no train, validation or test file; the folder contains retrain.csv, train_test.csv, trains.csv (set)"
            " - name the files: --set data.files.train=...",
        ),
        (
            ["train-00000-of-00003.parquet", "train-00002-of-00003.parquet"],
            "the train split has 2 of its 3 shards (set) - add the missing shards",
        ),
        (
            ["reviews.csv", "notes/x.txt"],
            "no train, validation or test file; the folder contains notes, reviews.csv (set)"
            " - name the files: --set data.files.train=...",
        ),
    ],
)
def test_faults_of_folders(here, names, line):
    touch(*(f"set/{name}" for name in names))
    with pytest.raises(DataError) as caught:
        find_files(Path("set"), DataConfig())
    assert str(caught.value) == line


def test_an_empty_and_a_missing_folder(here):
    Path("set").mkdir()
    with pytest.raises(DataError) as caught:
        find_files(Path("set"), DataConfig())
    assert str(caught.value) == (
        "no train, validation or test file; the folder contains nothing (set) - "
        "name the files: --set data.files.train=..."
    )
    with pytest.raises(BertkitError) as caught:
        find_files(Path("sett"), DataConfig())
    assert str(caught.value) == "no such file or folder (sett) - did you mean set?"


def test_file_fingerprint(here):
    content = bytes(range(256)) * 10_000
    Path("x.bin").write_bytes(content)
    assert file_fingerprint(Path("x.bin")) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("limit", [0, -1, 2**63, 2**80])
def test_a_limit_is_a_number_of_rows(limit):
    assert list(take_first("abc", 2)) == ["a", "b"] and list(take_first("abc", None)) == [*"abc"]
    with pytest.raises(UsageError, match=rf"--limit must be at least 1, got {limit} - give a number of rows"):
        take_first("abc", limit)
