"""`python -m NAME` of a package: lines in, lines of JSON out, and one line for a mistake."""

from __future__ import annotations

import io
import json
import sys

import pytest

from bertkit.errors import DataError
from bertkit.runtime.program import main, read_row
from bertkit.storage.exports import Export, write_export


class Echo:
    """Predicts the length of a text, and refuses numbers."""

    def __init__(self, check: bool) -> None:
        self.checked = check

    def predict(self, rows):
        texts = [row["text"] if isinstance(row, dict) else row for row in rows]
        for number, text in enumerate(texts, 1):
            if not isinstance(text, str):
                raise DataError(f"{text!r} is not text", "texts must be strings", file="row", row=number)
        return [{"prediction": len(text)} for text in texts]


def answer(monkeypatch, *arguments, stdin=b"", load=Echo):
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    monkeypatch.setattr(sys, "argv", ["made", *arguments])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    code = main(load, "made", "made 1.0, bertkit 0.1.0")
    return code, [json.loads(line) for line in out.buffer.getvalue().decode().splitlines()], err.getvalue()


def test_texts_and_rows_are_answered_in_order(monkeypatch):
    code, lines, _ = answer(monkeypatch, "--batch", "2", stdin='abc\n\n{"text": "é", "id": 9}\r\n{"text": ""}'.encode())
    assert (code, lines) == (
        0,
        [
            {"text": "abc", "prediction": 3},
            {"text": "é", "id": 9, "prediction": 1},
            {"text": "", "prediction": 0},
        ],
    )
    assert answer(monkeypatch, "a", '{"text": "bc"}')[1] == [
        {"text": "a", "prediction": 1},
        {"text": "bc", "prediction": 2},
    ]
    assert answer(monkeypatch, "--texts", "{a")[1] == [{"text": "{a", "prediction": 2}]
    assert answer(monkeypatch) == (0, [], "")


def test_a_mistake_is_one_line_with_the_number_of_its_row(monkeypatch):
    code, lines, err = answer(monkeypatch, "--batch", "1", stdin=b'a\n\n{"text": 5}\n')
    assert (code, len(lines), err) == (3, 1, "error: 5 is not text (row:3) - texts must be strings\n")
    code, _, err = answer(monkeypatch, stdin=b"a\n\xff\n")
    assert (code, err) == (3, "error: the line is not UTF-8 (stdin:2) - convert it\n")
    code, _, err = answer(monkeypatch, "--embed", "a")
    assert (code, err) == (2, "error: the model makes no vectors - leave out --embed\n")


def test_the_lines_of_a_file_are_rows(here, monkeypatch):
    (here / "rows.txt").write_text('\ufeffabc\n\n{"text": "é"}\n', encoding="utf-8")
    lines = [{"text": "abc", "prediction": 3}, {"text": "é", "prediction": 1}]
    assert answer(monkeypatch, "--file", "rows.txt") == (0, lines, "")
    code, _, err = answer(monkeypatch, "rows.txt")  # not the length of its name
    remedy = "--file rows.txt for its lines; --texts if it is a text"
    assert (code, err) == (2, f"error: rows.txt is a file, and not a text - {remedy}\n")
    assert answer(monkeypatch, "--texts", "rows.txt")[1] == [{"text": "rows.txt", "prediction": 8}]
    assert answer(monkeypatch, "a" * 5000)[1][0]["prediction"] == 5000  # too long for a name
    (here / "wrong.jsonl").write_text('{"text": "a"}\n{"text": 5}\n')
    code, _, err = answer(monkeypatch, "--file", "wrong.jsonl")
    assert (code, err) == (3, "error: 5 is not text (wrong.jsonl:2) - texts must be strings\n")
    (here / "wrong.jsonl").write_text('{"text": "a"}\n{"text"\n')
    assert "is none (wrong.jsonl:2) - " in answer(monkeypatch, "--file", "wrong.jsonl")[2]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--file", "nowhere.txt"), 3, "cannot be read: No such file or directory (nowhere.txt)"),
        (("--file", "a.csv"), 2, "--file a.csv has no row per line - convert it to JSON lines (.jsonl)"),
        (("--file", "a.txt", "text"), 2, "--file and a ROW - give one or the other"),
    ],
)
def test_a_file_that_cannot_be_read_by_lines_is_refused(here, monkeypatch, arguments, code, message):
    assert answer(monkeypatch, *arguments) == (code, [], f"error: {message}\n")


def test_the_version_names_the_model(here, monkeypatch):
    monkeypatch.setattr("bertkit.runtime.program.MODEL", here)
    export = Export("onnx", "model.onnx", "text_classification", "texts", (), (), {})
    checksums = []
    for size in (1, 1, 2):
        write_export(here, export, {"model.onnx": {"size": size}})
        monkeypatch.setattr(sys, "argv", ["made", "--version"])
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        assert main(Echo, "made", "made 1.0, bertkit 0.1.0") == 0
        version, _, checksum = sys.stdout.getvalue().rpartition(", model ")
        assert version == "made 1.0, bertkit 0.1.0"
        checksums.append(checksum)
    assert checksums[0] == checksums[1] != checksums[2]


def test_an_interrupt_ends_it_without_a_traceback(monkeypatch):
    def interrupt(check):
        raise KeyboardInterrupt

    assert answer(monkeypatch, "a", load=interrupt) == (130, [], "")


def test_wrong_options_are_refused(monkeypatch):
    with pytest.raises(SystemExit) as ended:
        answer(monkeypatch, "--batch", "0")
    assert ended.value.code == 2


@pytest.mark.parametrize(
    "line", ["{", '{"a": 1', "{" * 100_000, '{"a": 1, "a": 2}'], ids=["brace", "open", "deep", "twice"]
)
def test_what_looks_like_json_and_is_none_is_refused(line):
    with pytest.raises(DataError):
        read_row(line, is_text=False)
    assert read_row(line, is_text=True) == line
