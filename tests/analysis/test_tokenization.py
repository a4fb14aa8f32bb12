"""Tokens of texts and pairs, and figures of files."""

from __future__ import annotations

import pytest

from bertkit.analysis.tokenization import (
    TextTokenizer,
    TokenizerInfo,
    load_text_tokenizer,
    measure_texts,
    tokenize_text,
)
from bertkit.storage import hub


def make(**words) -> TextTokenizer:
    """A WordPiece tokenizer of BERT's kind with few words."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, **words}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 102), ("[CLS]", 101))
    return TextTokenizer(TokenizerInfo("tiny", "WordPiece", len(vocabulary), 6), tokenizer, 100, True)


BANK = {"bank": 2924, "is": 2003, "located": 2284, "in": 1999, "the": 1996, "city": 2103, "of": 1997, "london": 2414}


def test_the_sentence_of_the_bank_has_the_ids_of_bert():
    tokenized = tokenize_text(make(**BANK), "Bank is located in the city of London")
    ids = [token.id for token in tokenized.tokens]
    assert ids == [101, 2924, 2003, 2284, 1999, 1996, 2103, 1997, 2414, 102]
    assert (tokenized.words, tokenized.unknown) == (8, 0)
    london = tokenized.tokens[-2]
    assert (london.token, london.start, london.end, london.word, london.text) == ("london", 31, 37, 7, "London")
    assert tokenized.tokens[0].is_special and tokenized.tokens[0].start is None


def test_a_pair_has_two_segments_and_offsets_in_each_text():
    tokenized = tokenize_text(make(**BANK), "the bank", "is in ж")
    assert [token.segment for token in tokenized.tokens] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [token.text for token in tokenized.tokens] == ["", "the", "bank", "", "is", "in", "ж", ""]
    assert tokenized.unknown == 1


def test_figures_of_texts_are_those_by_hand():
    tokenizer = make(**BANK, **{"##s": 6})
    figures = measure_texts([tokenizer, make(bank=5)], ["banks in the city", "bank", "ж bank, bank"])
    first = figures[0]
    assert (first.texts, first.words, first.tokens) == (3, 8, 10)
    assert first.fertility == 9 / 8  # "," is no word
    assert first.unknown_rate == 2 / 10  # ж and the comma
    assert (first.longest, first.median_length, first.mean_length) == (7, 6, pytest.approx(16 / 3))
    assert first.truncated[6] == pytest.approx(1 / 3)
    assert first.lost[6] == pytest.approx(1 / 16)
    assert first.truncated[128] == 0
    assert figures[1].unknown_rate > first.unknown_rate


def test_the_maximal_length_is_the_least_of_those_that_are_named():
    assert load_text_tokenizer(hub.find_model("demo"), "demo").info.max_tokens == 128
