"""What `bertkit tokenize` prints."""

from __future__ import annotations

import json
import shutil

from bertkit.storage.hub import find_model


def test_a_text_is_a_table_of_tokens(run):
    ended = run("tokenize", "An apple [SEP] ж", "--pair", "No.", "--model", "demo")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("demo: WordPiece, 684 tokens, up to 128 per input\n  tokens\n    token")
    lines = [line.split() for line in ended.out.splitlines()]
    assert ["[UNK]", "1", "0", "5", "15-16", "ж"] in lines
    assert ["[SEP]", "3", "1", "special"] in lines
    assert "3 special" in ended.out and "unknown: 1\n" in ended.out
    found = json.loads(run("tokenize", "An apple", "--model", "demo", "--json").out)["tokenizers"][0]
    assert [token["is_special"] for token in found["tokens"]][:2] == [True, False]
    assert (found["words"], found["unknown"], found["tokens"][1]["text"]) == (2, 0, "An")


def test_a_file_is_a_table_of_figures(run, tmp_path):
    (tmp_path / "work").mkdir(exist_ok=True)
    (tmp_path / "work" / "texts.csv").write_text("review\nA good film\nan unforgettable ж\n")
    other = tmp_path / "work" / "other"  # a tokenizer by itself
    other.mkdir()
    shutil.copy(find_model("demo") / "tokenizer.json", other)
    ended = run("tokenize", "texts.csv", "--column", "review", "--model", "demo", "--compare-with", "other")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("texts.csv: 2 texts of 6 words\n")
    assert "texts over 128 tokens" in ended.out
    found = json.loads(run("tokenize", "texts.csv", "--column", "review", "--model", "demo", "--json").out)
    assert found["tokenizers"][0]["words"] == 6


def test_mistakes_are_answered_in_one_line(run, tmp_path):
    (tmp_path / "work").mkdir(exist_ok=True)
    (tmp_path / "work" / "texts.csv").write_text("text\none\n")
    for arguments, code, message in (
        (("none.csv", "--model", "demo"), 3, "no such file or folder (none.csv)"),
        (("texts.csv", "--model", "demo", "--pair", "b"), 2, "--pair is for a text, not for a file - leave it out"),
        (("a text", "--model", "demo", "--compare-with", "demo"), 2, "a model is named twice - name different models"),
        (("a text", "--model", "./none"), 4, "no such directory: ./none"),
        (("texts.csv", "--model", "demo", "--column", "b"), 3, "no column 'b'"),
    ):
        ended = run("tokenize", *arguments)
        assert (ended.code, ended.last[: len(message) + 7]) == (code, f"error: {message}")
