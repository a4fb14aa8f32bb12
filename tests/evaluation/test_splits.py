"""Digests of rows: what a model reads decides, and a run's folder has them and no text."""

from __future__ import annotations

import pytest

from bertkit.data.rows import Split
from bertkit.errors import ModelError
from bertkit.evaluation.splits import digest_training_rows, mark_training_rows, read_digests, write_training_rows
from bertkit.storage.runs import TRAINING_ROWS

ROWS = [{"text": "a fine film", "label": "good"}, {"text": "a dull film", "label": "bad", "id": 7}]


def test_what_a_model_reads_decides_and_neither_label_nor_id(tmp_path):
    write_training_rows(tmp_path, digest_training_rows(ROWS, "label"))
    assert b"film" not in (tmp_path / TRAINING_ROWS).read_bytes()
    rows = [{"text": "a dull film", "label": "good"}, {"text": "A dull movie", "label": "bad"}, {**ROWS[0], "id": 1}]
    paired = {"text": "a dull film", "text_pair": "yes", "label": "bad"}
    known = read_digests(tmp_path)
    marked = mark_training_rows(Split("test", "t.csv", [*rows, paired], [2, 3, 4, 5]), "label", known)
    assert marked.training_rows == {0, 2}


def test_rows_are_known_but_for_case_white_space_and_forms_of_unicode(tmp_path):
    trained = [{"text": "A fine\u00a0 film ", "label": "good"}, {"tokens": ["A", "dull", "film"]}]
    write_training_rows(tmp_path, digest_training_rows(trained, "label"))
    rows = [
        {"text": text} for text in ("A fine\u00a0 film ", "a FINE film", "Ａ fine film", "a fine film.", "afine film")
    ]
    rows += [{"tokens": ["a", "Dull", "film"]}, {"tokens": ["a", "Dull film"]}]
    marked = mark_training_rows(Split("test", "t.csv", rows, list(range(7))), "label", read_digests(tmp_path))
    assert (marked.training_rows, marked.normalized_overlap_count) == ({0, 1, 2, 5}, 3)
    assert marked.select([3, 4]).normalized_overlap_count == 0


def test_a_checkpoint_has_the_digests_of_its_run(tmp_path):
    (tmp_path / "checkpoint-3").mkdir()
    assert read_digests(tmp_path) is read_digests(tmp_path / "checkpoint-3") is None
    write_training_rows(tmp_path, digest_training_rows(ROWS * 2, "label"))
    assert len(read_digests(tmp_path / "checkpoint-3")) == 2


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs", b"\x93NUMPY", b"PK\x03\x04"])
def test_damaged_digests_are_no_digests(tmp_path, content):
    (tmp_path / TRAINING_ROWS).write_bytes(content)
    with pytest.raises(ModelError, match="the digests of the training rows are damaged"):
        read_digests(tmp_path)
