"""Gold values that no window of a text has."""

from __future__ import annotations

from bertkit.tokens.lost import find_lost_answers, find_unread_words


def test_an_answer_that_no_window_holds_is_lost():
    rows = [{"answers": {"text": texts, "answer_start": []}} for texts in (["a"], ["b"], [])]
    features = [{"row": 0, "end_positions": 0}, {"row": 0, "end_positions": 7}, {"row": 1, "end_positions": 0}]
    assert find_lost_answers(features, rows) == [1]


def test_a_tagged_word_that_no_window_reads_is_lost():
    rows = [{"tags": ["O", "B-PER"]}, {"tags": ["O", None]}, {"tags": ["O", "O"]}]
    features = [{"row": 0, "words": [0]}, {"row": 0, "words": [1]}, {"row": 1, "words": [0]}, {"row": 2, "words": [1]}]
    assert find_unread_words(features, rows) == [2]
