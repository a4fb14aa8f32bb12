"""The tokenizer without transformers, beside the one of transformers that it was made from."""

from __future__ import annotations

import pytest

from bertkit.errors import ModelError
from bertkit.runtime.tokenizer import open_tokenizer, tokenizer_settings
from bertkit.tokens.features import find_template, tokenize_texts
from tests.conftest import make_tokenizer

TEXTS = ["the good movie [SEP] was bad", "", "a very long sentence about nothing at all, again and again"]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("tokenizer"), make_tokenizer()
    tokenizer.model_max_length = 12
    tokenizer(TEXTS, padding=True, truncation=True)  # which the file then says, too
    tokenizer.save_pretrained(folder)
    return tokenizer, open_tokenizer(folder, tokenizer_settings(tokenizer))


@pytest.mark.parametrize("pairs", [None, TEXTS[::-1]], ids=["texts", "pairs"])
@pytest.mark.parametrize("options", [{}, {"truncation": True}, {"truncation": True, "max_length": 8}], ids=str)
@pytest.mark.parametrize("splits", [True, False])
def test_texts_and_pairs_are_encoded_alike(both, pairs, options, splits):
    theirs, ours = (tokenizer(TEXTS, pairs, split_special_tokens=splits, **options) for tokenizer in both)
    assert dict(ours) == dict(theirs)


def test_offsets_and_words_of_tokens_are_alike(both):
    theirs, ours = (one(TEXTS, add_special_tokens=False, return_offsets_mapping=True) for one in both)
    assert ours["offset_mapping"] == theirs["offset_mapping"]
    assert [ours.word_ids(number) for number in range(len(TEXTS))] == [theirs.word_ids(n) for n in range(len(TEXTS))]
    for pair in (False, True):
        theirs, ours = (one.num_special_tokens_to_add(pair) for one in both)
        assert ours == theirs


def test_words_and_single_texts_are_encoded_alike(both):
    words = [text.split() for text in TEXTS if text]
    theirs, ours = (tokenize_texts(tokenizer, words) for tokenizer in both)
    assert [(one.ids, one.word_ids, one.offsets) for one in ours] == [
        (one.ids, one.word_ids, one.offsets) for one in theirs
    ]
    for pair in (False, True):
        assert find_template(both[1], pair=pair) == find_template(both[0], pair=pair)
    assert both[1].get_vocab() == both[0].get_vocab()
    assert both[1].convert_ids_to_tokens([5, 6]) == both[0].convert_ids_to_tokens([5, 6])


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="the tokenizer does not load"):
        open_tokenizer(tmp_path, tokenizer_settings(make_tokenizer()))
