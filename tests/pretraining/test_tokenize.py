"""Documents as sentences and tokens: what a sentence's tokens are, and where words begin."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bertkit.pretraining import tokenize
from bertkit.pretraining.tokenize import DocumentTokenizer
from tests.conftest import make_tokenizer

TOKENIZER = make_tokenizer()


def byte_tokenizer() -> PreTrainedTokenizerFast:
    letters = {letter: 5 + number for number, letter in enumerate("theoldmn")}
    inner = Tokenizer(models.BPE({"a": 0, "Ġ": 1, "b": 2, "Ġb": 3, ".": 4, **letters}, [("Ġ", "b")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def test_a_later_sentence_is_tokenized_as_in_its_document():
    tokenizer = byte_tokenizer()
    documents = DocumentTokenizer(tokenizer).tokenize(["b. b.", "b."])
    assert tokenizer.convert_ids_to_tokens(documents.tokens.tolist()) == ["b", ".", "Ġb", ".", "b", "."]
    assert documents.word_starts.tolist() == [True] * 6
    assert DocumentTokenizer(TOKENIZER)._space == ""


@pytest.mark.parametrize("batch_chars", [1, 12, 1 << 20])
def test_batches_leave_no_seam(batch_chars, monkeypatch):
    monkeypatch.setattr(tokenize, "_BATCH_CHARS", batch_chars)
    documents = DocumentTokenizer(TOKENIZER).tokenize(["good film\nso-so zoo", "the book"])
    tokens = TOKENIZER.convert_ids_to_tokens(documents.tokens.tolist())
    assert tokens == ["good", "film", "so", *TOKENIZER.tokenize("-"), "so", *TOKENIZER.tokenize("zoo"), "the", "book"]
    assert documents.word_starts.tolist() == [not token.startswith("##") for token in tokens]
    assert documents.sentences.tolist() == [2, len(tokens) - 4, 2]
    assert documents.documents.tolist() == [2, 1]
    assert documents.bytes == len("good film\nso-so zoothe book")


def test_sentences_and_documents_without_tokens_are_left_out():
    documents = DocumentTokenizer(TOKENIZER).tokenize(["good\n\u0007\nso", "\u0007", ""])
    assert (documents.sentences.tolist(), documents.documents.tolist()) == ([1, 1], [2])
    assert documents.bytes == len("good\n\u0007\nso")
    nothing = DocumentTokenizer(TOKENIZER).tokenize([])
    assert [len(values) for values in nothing[:4]] == [0, 0, 0, 0]


def test_special_tokens_are_text_and_the_tokenizer_stays_as_it_was():
    tokenizer = make_tokenizer()
    tokenizer(["good film"], truncation=True, max_length=4)
    before = tokenizer.backend_tokenizer.to_str()
    documents = DocumentTokenizer(tokenizer).tokenize(["[SEP] " + "good " * 20])
    assert tokenizer.sep_token_id not in documents.tokens
    assert documents.sentences[0] > 20
    assert tokenizer.backend_tokenizer.to_str() == before
