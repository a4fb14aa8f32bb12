"""Which words of a row the tokens of its features stand for."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from bertkit.insight.words import find_words
from bertkit.tokens.features import special_ids
from tests.conftest import make_tokenizer


def words_of(tokenizer, row, *texts):
    ids = tokenizer(*texts)["input_ids"]
    found = find_words([ids], tokenizer, row)
    positions = [position for word in found for _, position in word.positions]
    # each token that stands for text belongs to one word
    assert positions == [n for n, token in enumerate(ids) if token not in special_ids(tokenizer)]
    return [(word.text, word.segment, len(word.positions)) for word in found]


def test_words_have_the_spelling_of_the_row():
    row = {"text": "Théy isn't DULL!", "text_pair": "A film."}
    assert words_of(make_tokenizer(), row, row["text"], row["text_pair"]) == [
        ("Théy", 0, 2),
        ("isn't", 0, 4),
        ("DULL", 0, 1),
        ("!", 0, 1),
        ("A", 1, 1),
        ("film", 1, 1),
        (".", 1, 1),
    ]


def test_words_of_a_row_stay_as_they_are_split():
    row = {"tokens": ["a.b", "film", "film"]}
    assert words_of(make_tokenizer(), row, "a.b film film") == [("a.b", 0, 3), ("film", 0, 1), ("film", 0, 1)]


def test_unknown_tokens_stand_for_what_is_between():
    row = {"text": "the 語語 film"}
    assert words_of(make_tokenizer(), row, row["text"])[0] == ("the", 0, 1)
    assert words_of(make_tokenizer(), row, row["text"])[-1] == ("film", 0, 1)
    assert words_of(make_tokenizer(), {"text": "film 語"}, "film 語") == [("film", 0, 1), ("語", 0, 1)]


def test_what_is_not_in_the_row_is_put_together_from_tokens():
    assert words_of(make_tokenizer(), {"text": "the film"}, "the song plays") == [
        ("the", 0, 1),
        ("song", 0, 1),
        ("plays", 0, 5),
    ]


def test_a_repeated_text_is_found_after_the_one_before():
    row = {"text": "a b", "text_pair": "ab"}
    assert words_of(make_tokenizer(), row, "a b", "ab") == [("a", 0, 1), ("b", 0, 1), ("ab", 1, 2)]


def make_bytes_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(["film film"], trainers.BpeTrainer(vocab_size=262, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("row", [{"text": "A filmé 語 song"}, {}])
def test_bytes_are_parts_of_words(row):
    found = words_of(make_bytes_tokenizer(), row, "A filmé 語 song")
    assert [word for word, _, _ in found] == ["A", "filmé", "語", "song"]
    assert [count for _, _, count in found][2:] == [4, 5]  # a space and three bytes; a space and four letters
