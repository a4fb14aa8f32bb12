"""Texts whose tokens are kept, and rows that have other tokens than before."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from bertkit.compression.vocabulary import TokenCorpus, check_files, count_changed_rows
from bertkit.data.columns import ColumnSpec
from bertkit.data.rows import Split
from bertkit.errors import DataError


def test_texts_are_those_of_rows_and_files_in_the_case_that_the_model_reads(tmp_path):
    (tmp_path / "corpus.txt").write_text("One text\n\nAnother", encoding="utf-8")
    task = SimpleNamespace(COLUMNS=ColumnSpec(("text", "tokens"), "label"))
    rows = [{"text": "A b", "tokens": ["c", ["d"]], "label": "left out", "id": "7"}]
    split = Split("train", "rows", rows, [1])
    corpus = TokenCorpus(tmp_path, SimpleNamespace(task=task), (split,), (str(tmp_path / "corpus.txt"),))
    assert list(corpus.read_texts()) == ["A b", "c", "d", "One text", "Another"]
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    assert list(corpus.read_texts())[:2] == ["A b", "a b"]


def test_a_missing_file_is_named():
    with pytest.raises(DataError, match="no such file"):
        check_files(["./nowhere.txt"])


def test_rows_with_other_tokens_are_counted_once():
    before = [{"row": 0, "input_ids": [2, 5]}, {"row": 1, "input_ids": [[5], [7]]}, {"row": 1, "input_ids": [[7], [7]]}]
    after = [{"row": 0, "input_ids": np.array([0, 1])}, {"row": 1, "input_ids": [[1], [1]]}]
    assert count_changed_rows(before, [*after, {"row": 1, "input_ids": [[2]]}], [2, 5, 7]) == 1
