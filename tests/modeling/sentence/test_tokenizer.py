"""What the tokenizer of a sentence encoder does beside that of any model."""

from __future__ import annotations

import pytest

from bertkit.modeling.sentence.folder import SentenceModules
from bertkit.modeling.sentence.tokenizer import load_sentence_tokenizer


@pytest.mark.parametrize(("asked", "length"), [(None, 64), (16, 16), (1000, 64)])
def test_texts_are_as_long_as_the_modules_say_and_the_model_reads(tiny_model, asked, length):
    tokenizer = load_sentence_tokenizer(tiny_model, SentenceModules(max_length=asked), decoders=False)
    assert tokenizer.model_max_length == length


def test_texts_may_be_put_in_lower_case(tiny_model):
    tokenizer = load_sentence_tokenizer(tiny_model, SentenceModules(lowercase=True), decoders=False)
    assert tokenizer.backend_tokenizer.normalizer.normalize_str("The FILM") == "the film"
