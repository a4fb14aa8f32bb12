"""Tokenizers trained on a few sentences: their tokens, their reproducibility, and settings that are refused."""

from __future__ import annotations

import random

import pytest

from bertkit.errors import DataError, UsageError
from bertkit.tokens.train import TOKENIZER_TYPES, TokenizerSpec, make_spec, train_from_texts

WORDS = ["The", "old", "Doctor", "doctors", "sleep", "sleeps", "slept", "house", "houses", "near", "water", "and"]


def texts(count: int = 200) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 12))) + f" {number}." for number in range(count)]


def make_small_spec(tokenizer_type: str, **changes: object) -> TokenizerSpec:
    settings = {"vocabulary_size": 300, "lowercase": True, "max_length": 64, **changes}
    return make_spec(tokenizer_type, **settings)


@pytest.mark.parametrize("tokenizer_type", TOKENIZER_TYPES)
def test_special_tokens_come_first_and_tokens_are_longer_than_letters(tokenizer_type):
    tokenizer = train_from_texts(make_small_spec(tokenizer_type, special=["[X]"]), texts)
    special = [*TOKENIZER_TYPES[tokenizer_type].special, "[X]"]
    assert tokenizer.convert_ids_to_tokens(range(len(special))) == special
    assert len(tokenizer) <= 300
    assert tokenizer.model_max_length == 64
    assert tokenizer.tokenize("the [X] sleeps").count("[X]") == 1
    trained = tokenizer.convert_ids_to_tokens(range(len(special), len(tokenizer)))
    assert any(len(token.strip("▁Ġ#")) > 1 for token in trained)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("tokenizer_type", TOKENIZER_TYPES)
def test_the_same_text_gives_the_same_tokenizer(tokenizer_type, lowercase):
    spec = make_small_spec(tokenizer_type, lowercase=lowercase)
    first, again = (train_from_texts(spec, texts).backend_tokenizer.to_str() for _ in range(2))
    assert first == again
    tokenizer = train_from_texts(spec, texts)
    assert (tokenizer.tokenize("Doctor") == tokenizer.tokenize("doctor")) == lowercase


@pytest.mark.parametrize("tokenizer_type", ["wordpiece", "unigram"])
def test_rare_letters_are_no_tokens(tokenizer_type):
    def read_texts():
        return [*texts(), "The Ω sleeps"]

    assert "ω" not in "".join(train_from_texts(make_small_spec(tokenizer_type), read_texts).get_vocab())
    with pytest.raises(DataError, match="no letter of the text is frequent enough"):
        train_from_texts(make_small_spec(tokenizer_type, min_frequency=10**6), texts)


def test_bytes_know_every_letter():
    tokenizer = train_from_texts(make_small_spec("bpe"), texts)
    assert tokenizer.unk_token_id not in tokenizer("Ω 東京")["input_ids"]


@pytest.mark.parametrize(
    ("tokenizer_type", "changes", "message"),
    [
        ("wordpiece", {"special": ["[MASK]"]}, r"--special '\[MASK\]' - give new tokens; there are: \[PAD\]"),
        ("bpe", {"special": ["[X]", "[X]"]}, r"--special '\[X\]'"),
        ("bpe", {"special": [" "]}, "--special ' '"),
        ("bpe", {"vocabulary_size": 260}, "--vocabulary-size 260 - special tokens and one per byte need at least 261"),
        ("unigram", {"vocabulary_size": 8}, "--vocabulary-size 8 - special tokens and letters need at least 9"),
    ],
)
def test_specs_that_cannot_be_are_refused(tokenizer_type, changes, message):
    with pytest.raises(UsageError, match=message):
        make_small_spec(tokenizer_type, **changes)
    assert make_small_spec(tokenizer_type).type == tokenizer_type
