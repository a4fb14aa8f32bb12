"""Documents from every type of source, and the messages for sources that cannot be read."""

from __future__ import annotations

import csv
import gzip
import json
import logging
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertkit.data.files import FORMATS
from bertkit.errors import BertkitError, DataError, RecipeError, UsageError
from bertkit.pretraining import documents
from bertkit.pretraining.documents import find_corpus, has_validation, read_documents
from bertkit.recipe.records import CorpusConfig

TEXTS = ["one fine day.", "two\nlines", "three"]


def texts(split: str = "train", **settings: object) -> list[str]:
    return [document.text for document in read_documents(find_corpus(CorpusConfig(**settings)), split)]


def write(name: str, content: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(content, encoding="utf-8")
    return name


def write_rows(name: str, column: str = "text") -> str:
    rows = [{"id": str(number), column: text} for number, text in enumerate(TEXTS)]
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), name)
    elif name.endswith(("csv", "tsv")):
        with Path(name).open("w", newline="") as stream:
            writer = csv.DictWriter(stream, ["id", column], delimiter="\t" if name.endswith("tsv") else ",")
            writer.writeheader()
            writer.writerows(rows)
    else:
        lines = [json.dumps(row) for row in rows]
        write(name, f"[{','.join(lines)}]" if name.endswith(".json") else "\n".join(lines))
    return name


# --- files


@pytest.mark.parametrize(
    "content", ["\n\none\ntwo\n\n \t\n\nthree\n", "one\r\ntwo\r\n\r\nthree", "one\ntwo\n\n\nthree"]
)
def test_a_blank_line_ends_a_document_of_a_text_file(here, content):
    read = list(read_documents(find_corpus(CorpusConfig(source=write("a.txt", content))), "train"))
    assert [document.text for document in read] == ["one\ntwo", "three"]
    lines = [line.strip() for line in content.splitlines()]
    assert [document.line for document in read] == [lines.index("one") + 1, lines.index("three") + 1]
    assert {document.source for document in read} == {"a.txt"}


def test_each_line_of_a_text_file_may_be_a_document(here):
    write("a.txt", "one\ntwo\n\nthree\n")
    assert texts(source="a.txt", documents="lines") == ["one", "two", "three"]


def test_conll_columns_in_a_text_file_are_text(here):
    assert texts(source=write("a.txt", "EU B-ORG\nsays O\n\nno O\n")) == ["EU B-ORG\nsays O", "no O"]


@pytest.mark.parametrize("ending", ["jsonl", "ndjson", "json", "csv", "tsv", "parquet"])
def test_each_row_is_a_document(here, ending):
    name = write_rows(f"a.{ending}")
    assert texts(source=name) == TEXTS
    assert texts(source=write_rows(f"b.{ending}", "body"), column="body") == TEXTS


@pytest.mark.parametrize("ending", ["jsonl", "csv", "txt"])
def test_files_may_be_packed(here, ending):
    name = write("a.txt", "\n\n".join(TEXTS)) if ending == "txt" else write_rows(f"a.{ending}")
    Path(f"{name}.gz").write_bytes(gzip.compress(Path(name).read_bytes()))
    assert texts(source=f"{name}.gz") == TEXTS


def test_rows_may_be_lines_of_documents(here):
    rows = [" = Title = \n", "a line\n", "", "another\nand more", None, "the end"]
    write("a.jsonl", "\n".join(json.dumps({"text": row}) for row in rows))
    assert texts(source="a.jsonl") == [" = Title = \n", "a line\n", "another\nand more", "the end"]
    assert texts(source="a.jsonl", documents="blank_lines") == [" = Title = \na line", "another\nand more", "the end"]
    assert texts(source="a.jsonl", documents="lines") == [" = Title = ", "a line", "another", "and more", "the end"]


WIKITEXT = [
    *("", " = Owls = \n", "", " An owl hoots . \n", " It has two eyes . \n", "", " = = At night = = \n", ""),
    *(" = 3 <unk> / s and k = \n", " That was a formula . \n", "", " = Bats ( animals ) = \n", "", " A bat flies . \n"),
]


@pytest.mark.parametrize("ending", ["jsonl", "txt"])
def test_an_article_begins_at_its_title_and_headings_are_left_out(here, ending):
    lines = WIKITEXT if ending == "txt" else [json.dumps({"text": row}) for row in WIKITEXT]
    name = write(f"wiki.{ending}", "\n".join(line.rstrip("\n") for line in lines))
    read = list(read_documents(find_corpus(CorpusConfig(source=name, documents="articles")), "train"))
    owls = " An owl hoots . \n It has two eyes . \n = 3 <unk> / s and k = \n That was a formula . "
    assert [(document.text, document.line) for document in read] == [(owls, 4), (" A bat flies . ", 14)]


def test_titles_that_are_documents_are_pointed_out_where_nobody_said_what_a_document_is(here, caplog):
    caplog.set_level(logging.INFO, logger="bertkit")
    write("wiki.txt", "\n".join(WIKITEXT))
    texts(source="wiki.txt", documents="blank_lines")
    assert caplog.messages == []
    texts(source="wiki.txt")
    assert caplog.messages == ["wiki.txt: a title is a separate document; --set data.documents=articles joins articles"]


def test_a_limit_takes_the_first_documents(here):
    assert texts(source=write("a.txt", "one\n\ntwo\n\nthree"), limit=2) == ["one", "two"]


def test_another_encoding(here):
    Path("a.txt").write_bytes("caffè\n\ntè".encode("cp1252"))
    assert texts(source="a.txt", encoding="cp1252") == ["caffè", "tè"]


# --- folders and splits


def test_files_of_a_folder_are_read_in_order_whatever_is_in_the_folders_of_it(here):
    for name in ("c/b.txt", "c/a.txt", "b.txt", ".hidden/x.txt", ".y.txt", "notes.rst", "d.md", "e.html"):
        write(f"books/{name}", f"text of {name}")
    assert texts(source="books") == [f"text of {name}" for name in ("b.txt", "c/a.txt", "c/b.txt", "d.md", "e.html")]
    assert not has_validation(find_corpus(CorpusConfig(source="books")))


@pytest.mark.parametrize(
    ("train", "validation"),
    [
        ("train.txt", "validation.txt"),
        ("train-00000-of-00002.txt", "dev.txt"),
        ("train_1.txt", "valid_1.txt"),
        ("train/any.txt", "val/any.txt"),
        ("training/deep/any.txt", "validation/any.txt"),
        ("any.txt", "validation.txt"),
    ],
)
def test_files_and_folders_named_after_splits_are_these(here, train, validation):
    write(f"d/{train}", "t")
    write(f"d/{validation}", "v")
    write("d/test.txt", "not this")
    assert texts(source="d") == ["t"]
    assert texts("validation", source="d") == ["v"]
    assert has_validation(find_corpus(CorpusConfig(source="d")))


def test_what_is_left_out_is_told(here, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    for name in ("train.txt", "validation.txt", "readme.txt"):
        write(f"d/{name}", name)
    assert texts(source="d") == ["train.txt"]
    assert [record.message for record in caplog.records] == [
        "train: 1 file of d",
        "validation: 1 file of d",
        "1 file of d left out: named after neither split",
    ]


def test_names_that_only_begin_like_a_split_are_none(here):
    for name in ("trainspotting.txt", "validation of truth.txt", "test-driven.txt"):
        write(f"d/{name}", name)
    assert sorted(texts(source="d")) == ["test-driven.txt", "trainspotting.txt", "validation of truth.txt"]


def test_splits_may_go_by_other_names(here):
    write("d/lern.txt", "t")
    write("d/pruef.txt", "v")
    data = CorpusConfig(source="d", splits={"train": "lern", "validation": "pruef"})
    assert find_corpus(data).files == {"train": [Path("d/lern.txt")], "validation": [Path("d/pruef.txt")]}


def test_files_may_be_named_one_by_one_and_be_folders(here):
    write("a.txt", "t")
    write("d/x.txt", "v")
    files = {"train": "a.txt", "dev": "d"}
    assert texts(files=files) == ["t"]
    assert texts("validation", files=files) == ["v"]
    assert texts("validation", source="a.txt", files={"validation": "d"}) == ["v"]


# --- the hub and the demo


@pytest.mark.parametrize("streaming", [False, True])
def test_a_data_set_of_the_hub_is_requested_for_its_splits(monkeypatch, streaming):
    requested = []

    def read(data, split, *, streaming):
        requested.append((data.source, data.config, data.revision, streaming, split))
        if split != "train":
            raise DataError(f"x/y: Unknown split {split!r}", "see data.config and data.splits")
        yield 1, {"text": "one"}
        yield 2, {"text": ""}
        yield 3, {"text": "two"}

    monkeypatch.setattr(documents, "read_hub_split", read)
    data = CorpusConfig(source="x/y", config="raw", revision="abc", streaming=streaming)
    assert not has_validation(find_corpus(data))
    assert [document[:] for document in read_documents(find_corpus(data), "train")] == [
        ("one", "x/y:train", 1),
        ("two", "x/y:train", 3),
    ]
    assert requested == [("x/y", "raw", "abc", streaming, split) for split in ("validation", "train")]
    named = data.model_copy(update={"splits": {"validation": "held"}})
    assert has_validation(find_corpus(named))
    with pytest.raises(DataError, match="Unknown split 'held'"):
        list(read_documents(find_corpus(named), "validation"))


def test_patterns_name_files(here):
    for name in ("d/a.txt", "d/b.txt", "d/e/c.txt", "d/e/notes.md"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(f"from {Path(name).stem}\n")
    assert texts(source="d/[ab].txt") == ["from a", "from b"]
    assert texts(source="d/**/*.txt") == ["from a", "from b", "from c"]
    assert texts(source=str(Path("d/*.txt").absolute())) == ["from a", "from b"]
    assert texts("validation", files={"train": "d/a.txt", "validation": "d/e/*.txt"}) == ["from c"]
    Path("d/[a].txt").write_text("its name has brackets\n")
    assert texts(source="d/[a].txt") == ["its name has brackets"]


def test_a_pattern_has_splits_as_a_folder(here):
    Path("named").mkdir()
    for name in ("train-00000", "train-00001", "validation-00000", "other"):
        Path(f"named/{name}.txt").write_text(f"{name}\n")
    assert texts(source="named/*.txt") == ["train-00000", "train-00001"]
    assert texts("validation", source="named/*.txt") == ["validation-00000"]


def test_what_datatrove_writes_is_read(here):
    """One file per rank, with the values that are not empty."""
    rows = [
        [{"text": "one", "id": "a/0", "metadata": {"url": "u", "score": 0.5}}, {"text": "two", "id": "a/1"}],
        [{"text": "three", "id": "b/0", "metadata": {"url": "v", "language": "en"}}],
    ]
    Path("out").mkdir(exist_ok=True)
    for rank, of_rank in enumerate(rows):
        with gzip.open(f"out/{rank:05}.jsonl.gz", "wt") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in of_rank)
    assert texts(source="out") == ["one", "two", "three"]


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".csv"])
def test_zstd_files_are_read(ending, here):
    content = {".txt": "one\n\ntwo\n", ".jsonl": '{"text": "one"}\n{"text": "two"}\n', ".csv": "text\none\ntwo\n"}
    whole = content[ending].encode()
    frames = [pa.compress(part, codec="zstd", asbytes=True) for part in (whole[:5], whole[5:])]
    Path(f"a{ending}.zst").write_bytes(b"".join(frames))
    assert texts(source=f"a{ending}.zst") == ["one", "two"]
    for damage in (frames[0] + frames[1][:-3], whole):
        Path(f"b{ending}.zst").write_bytes(damage)
        with pytest.raises(DataError, match=r"damaged zstd file.*download it again"):
            texts(source=f"b{ending}.zst")


def test_the_demo_text():
    paragraphs = texts(source="demo")
    assert len(paragraphs) == 10_000
    assert texts(source="demo", limit=20, column="review", documents="articles") == paragraphs[:20]
    assert not has_validation(find_corpus(CorpusConfig(source="demo")))


# --- mistakes

KNOWN = ", ".join(ending for known in FORMATS.values() if known.running_text for ending in known.endings)


@pytest.mark.parametrize(
    ("files", "settings", "line"),
    [
        ({}, {}, "the recipe names no data - add --data FILE, a directory, or a dataset on the Hub"),
        ({"news.txt": "a"}, {"source": "nwes.txt"}, "no such file or folder (nwes.txt) - did you mean news.txt?"),
        ({"a.txt": "a"}, {"files": {"train": "b.txt"}}, "no such file or folder (b.txt) - did you mean a.txt?"),
        (
            {"a.txt": "a"},
            {"files": {"dev": "a.txt"}},
            "no train split (found: validation) - add --set data.files.train=FILE",
        ),
        (
            {"a.txt": "a"},
            {"source": "b*.txt"},
            "no file matches (b*.txt) - * matches part of a name, and ** matches folders",
        ),
        (
            {"a.pdf": "a"},
            {"source": "*.pdf"},
            f"files of this type are not read (a.pdf) - known are {KNOWN}; text files may also end in .gz or .zst",
        ),
        (
            {"a.pdf": "a"},
            {"source": "a.pdf"},
            f"files of this type are not read (a.pdf) - known are {KNOWN}; text files may also end in .gz or .zst",
        ),
        ({"d/a.pdf": "a"}, {"source": "d"}, f"no text in the folder; it holds a.pdf (d) - known are {KNOWN}"),
        (
            {"d/dev.txt": "a"},
            {"source": "d"},
            "the folder has a validation split, but none to train on (d) - name its files: --set data.files.train=...",
        ),
        (
            {"a.csv": "id,body\n1,x\n"},
            {"source": "a.csv"},
            "no column 'text' (a.csv) - there are id, body: --set data.column=NAME",
        ),
        (
            {"a.jsonl": '{"text": null}\n{"text": 3}\n'},
            {"source": "a.jsonl"},
            "int instead of text (a.jsonl:2, column 'text') - name the column of the text: --set data.column=NAME",
        ),
        (
            {"a.txt": b"a\n\nb\n" + b"caf\xe9\n"},
            {"source": "a.txt"},
            "byte 0xe9 at offset 8 is not valid utf-8 (a.txt:4) - if the file is cp1252: --set data.encoding=cp1252",
        ),
        ({"a.txt": ""}, {"source": "a.txt"}, "the file is empty (a.txt) - add rows"),
        ({"a.txt": " \n\n"}, {"source": "a.txt"}, "the file is empty (a.txt) - add rows"),
        (
            {"a.csv": "text\n'x\n\"y\n"},
            {"source": "a.csv"},
            "a quote is never closed: '\"y' (a.csv:3) - repair the file, or save it as .jsonl",
        ),
        ({"a.txt": b"PAR1 ..."}, {"source": "a.txt"}, "a Parquet file (a.txt) - rename it to end in .parquet"),
    ],
)
def test_mistakes_in_data_are_told_in_one_line(here, files, settings, line):
    for name, content in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BertkitError) as caught:
        texts(**settings)
    assert (str(caught.value), caught.value.exit_code) == (line, 3)


def test_a_text_file_has_no_rows(here):
    write("a.txt", "a")
    with pytest.raises(RecipeError) as caught:
        texts(source="a.txt", documents="rows")
    expected = "data.documents: a text file has lines, not rows - add --set data.documents=blank_lines, or lines"
    assert (str(caught.value), caught.value.exit_code) == (expected, 2)


def test_text_without_titles_has_no_articles(here):
    write("a.txt", "= not between blank lines =\ntext\n\n= = Section = =\n\nmore")
    with pytest.raises(DataError) as caught:
        texts(source="a.txt", documents="articles")
    assert str(caught.value) == (
        "no title of an article, such as ' = Title = ' between blank lines (a.txt) - "
        "--set data.documents=auto, or another value"
    )


def test_a_document_is_no_library(here, monkeypatch):
    monkeypatch.setattr(documents, "MAX_CHARS", 20)
    write("a.txt", "one\n\n" + "ten letter\n" * 3)
    with pytest.raises(DataError) as caught:
        texts(source="a.txt")
    assert str(caught.value) == (
        "a document of more than 20 characters (a.txt:3) - put a blank line after each, or --set data.documents=lines"
    )
    assert len(texts(source="a.txt", documents="lines")) == 4


def test_a_pipe_is_refused_and_never_waited_for(here):
    os.mkfifo("a.txt")
    for settings in ({"source": "a.txt"}, {"files": {"train": "a.txt"}}):
        with pytest.raises(UsageError, match="a pipe or device, not a file"):
            find_corpus(CorpusConfig(**settings))
