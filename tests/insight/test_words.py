"""Words of an input, put together from its tokens."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from bertkit.insight.words import find_words
from bertkit.tokens.features import special_ids
from tests.conftest import make_tokenizer


def words_of(tokenizer, *texts):
    ids = tokenizer(*texts)["input_ids"]
    found = find_words([ids], tokenizer)
    positions = [position for word in found for _, position in word.positions]
    # each token that stands for text belongs to one word
    assert positions == [n for n, token in enumerate(ids) if token not in special_ids(tokenizer)]
    return [(word.text, word.segment, len(word.positions)) for word in found]


def test_word_pieces_are_joined_in_each_text():
    assert words_of(make_tokenizer(), "The song plays", "A film.") == [
        ("the", 0, 1),
        ("song", 0, 1),
        ("plays", 0, 5),
        ("a", 1, 1),
        ("film", 1, 1),
        (".", 1, 1),
    ]


def test_an_unknown_token_is_a_word():
    assert words_of(make_tokenizer(), "film 語") == [("film", 0, 1), ("[UNK]", 0, 1)]


def make_bytes_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(["film film"], trainers.BpeTrainer(vocab_size=262, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_bytes_are_parts_of_words():
    found = words_of(make_bytes_tokenizer(), "A filmé 語 song")
    assert [word for word, _, _ in found] == ["A", "filmé", "語", "song"]
    assert [count for _, _, count in found][2:] == [4, 5]  # a space and three bytes; a space and four letters


def make_unigram_tokenizer():
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁", -2.0), ("▁fil", -3.0), ("m", -3.0), ("語", -3.0)], 0))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def test_sentencepiece_marks_the_beginning_of_words():
    assert words_of(make_unigram_tokenizer(), "film 語") == [("film", 0, 2), ("語", 0, 2)]
