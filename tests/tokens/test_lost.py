"""Gold values that no window of a text has."""

from __future__ import annotations

from bertkit.tokens.lost import describe_lost_gold, find_lost_answers, find_unread_words


def test_an_answer_that_no_window_holds_is_lost():
    rows = [{"answers": {"text": texts, "answer_start": []}} for texts in (["a"], ["b"], [])]
    features = [{"row": 0, "end_positions": 0}, {"row": 0, "end_positions": 7}, {"row": 1, "end_positions": 0}]
    features = [{"start_positions": 5, **feature} for feature in features]
    assert find_lost_answers(features, rows, max_length=3) == [1]


def test_an_answer_that_is_longer_than_any_prediction_is_lost():
    rows, features = [{"answers": {"text": ["a b c"]}}], [{"row": 0, "start_positions": 5, "end_positions": 7}]
    assert [find_lost_answers(features, rows, max_length=length) for length in (3, 2)] == [[], [0]]
    sentence = describe_lost_gold(1, 4, {"max_answer_length": 30})
    assert "1 of 4 (25.0%)" in sentence and "options.max_answer_length" in sentence
    assert "max_answer_length" not in describe_lost_gold(1, 4, {})


def test_a_tagged_word_that_no_window_reads_is_lost():
    rows = [{"tags": ["O", "B-PER"]}, {"tags": ["O", None]}, {"tags": ["O", "O"]}]
    features = [{"row": 0, "words": [0]}, {"row": 0, "words": [1]}, {"row": 1, "words": [0]}, {"row": 2, "words": [1]}]
    assert find_unread_words(features, rows, None) == [2]
