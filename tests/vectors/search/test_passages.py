"""Passages of documents: what they hold, how long they are for the model, and what reaches it."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from bertkit.errors import UsageError
from bertkit.vectors.search.passages import Coverage, PassageSplitter, count_tokens, find_truncated, measure_coverage
from tests.conftest import make_tokenizer

SENTENCES = "The film was good. A book is so dull! This song, very lovely... and that was weak?"


def byte_level() -> PreTrainedTokenizerFast:
    """A tokenizer like RoBERTa's: a word's tokens depend on the space before it, and a letter may have several."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([SENTENCES] * 5, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="</s>", model_max_length=40)


def unigram() -> PreTrainedTokenizerFast:
    """A tokenizer like that of XLM-R: a letter may become several, and words have a mark before them."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=["<s>", "</s>", "<unk>"], unk_token="<unk>")
    trainer.show_progress = False
    tokenizer.train_from_iterator([SENTENCES] * 5, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="</s>", model_max_length=40)


TOKENIZERS = {"wordpiece": make_tokenizer(), "byte-level": byte_level(), "unigram": unigram()}


def embedder(name="wordpiece", prompt="", lowercase=False):
    """What a splitter asks of an embedder, without a model."""
    return SimpleNamespace(tokenizer=TOKENIZERS[name], prompt_text=prompt, modules=SimpleNamespace(lowercase=lowercase))


def texts_of(passages, text):
    return [text[passage.start : passage.end] for passage in passages]


def test_sentences_stay_whole():
    text = "A good film.  It was so good!\nThe book is dull. A weak song."
    passages, _ = PassageSplitter(embedder(), 11).split(text)
    assert texts_of(passages, text) == ["A good film.", "It was so good!", "The book is dull. A weak song."]
    assert [passage.tokens for passage in passages] == count_tokens(texts_of(passages, text), embedder())


def test_a_passage_may_repeat_the_last_sentences_of_the_one_before():
    text = "A film. A book. A song. A film. A book."  # each of three tokens
    passages, _ = PassageSplitter(embedder(), 11, overlap=4).split(text)
    assert texts_of(passages, text) == ["A film. A book. A song.", "A song. A film. A book."]


def test_a_sentence_that_is_too_long_is_split_between_words_and_a_word_between_tokens():
    text = "the film was very good and so lovely that xyzxyzxyzxyz was dull"
    passages, _ = PassageSplitter(embedder(), 10).split(text)
    assert texts_of(passages, text) == ["the film was very good and so lovely", "that xyzxyzx", "yzxyz was dull"]


def test_the_prompt_counts():
    text = "A film. A book. A song."
    assert len(PassageSplitter(embedder(), 11).split(text)[0]) == 1
    passages, _ = PassageSplitter(embedder(prompt="a "), 11).split(text)
    assert texts_of(passages, text) == ["A film. A book.", "A song."]
    assert [passage.tokens for passage in passages] == [9, 6]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(
    text=st.text(
        st.sampled_from([*"abcxyz.!?\n  ,é中。ﷺ🙂\u0301\u2028\x00İ"]) | st.characters(codec="utf-8"), max_size=150
    ),
    size=st.integers(14, 40),
    overlap=st.integers(0, 5),
    lowercase=st.booleans(),
)
@example(text=SENTENCES * 3, size=15, overlap=5, lowercase=True)
@example(text="x" * 120, size=14, overlap=0, lowercase=False)
def test_every_token_is_in_a_passage_that_the_model_reads_whole(name, text, size, overlap, lowercase):
    of_model = embedder(name, prompt="a ", lowercase=lowercase)
    passages, coverage = PassageSplitter(of_model, size, overlap).split(text)
    too_long = [passage for passage in passages if passage.tokens > size]
    assert [p.tokens for p in passages] == count_tokens(texts_of(passages, text), of_model)
    covered = {position for passage in passages for position in range(passage.start, passage.end)}
    offsets = of_model.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    for start, end in offsets:
        assert all(position in covered or text[position].isspace() for position in range(start, end))
    # only what one character becomes can be too long
    assert all(passage.end - passage.start == 1 for passage in too_long)
    assert (coverage.share == 1) == (not too_long)
    assert all(first.start < second.start and first.end < second.end for first, second in pairwise(passages))


@pytest.mark.parametrize(
    ("size", "overlap", "message"),
    [(65, 0, "reads at most 64"), (9, 0, "at least 10"), (20, 11, "half a passage, 10"), (20, -1, "at most half")],
)
def test_impossible_sizes_are_refused(size, overlap, message):
    with pytest.raises(UsageError, match=message):
        PassageSplitter(embedder(), size, overlap).split("A film.")


TEXTS = ["the film", "the film was very good and so lovely", "", "THE book is so dull, dull"]


def read_up_to(limit, prompt="", lowercase=False):
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = limit
    return SimpleNamespace(tokenizer=tokenizer, prompt_text=prompt, modules=SimpleNamespace(lowercase=lowercase))


@pytest.mark.parametrize(
    ("limit", "prompt", "read"),
    [
        (64, "", {}),
        (7, "", {1: "the film was very good", 3: "THE book is so dull"}),
        (7, "a ", {1: "the film was very", 3: "THE book is so"}),
        (4, "so so so ", {0: "", 1: "", 2: "", 3: ""}),
    ],
)
def test_what_truncation_leaves(limit, prompt, read):
    model = read_up_to(limit, prompt)
    expected = {position: len(text) for position, text in read.items()}
    assert find_truncated(TEXTS, model) == expected
    lost = sum(len(TEXTS[position]) - len(text) for position, text in read.items())
    total = sum(map(len, TEXTS))
    assert measure_coverage(TEXTS, model) == Coverage(4, len(read), total - lost, total)


def test_tokens_are_counted_with_special_ones_and_prompt():
    assert count_tokens(TEXTS, read_up_to(4)) == [4, 10, 2, 9]
    assert count_tokens(TEXTS[:1], read_up_to(4, "a book ")) == [6]
    assert count_tokens([], read_up_to(4)) == []


def test_coverages_add_up():
    both = Coverage(1, 0, 6, 6) + Coverage(1, 1, 6, 18)
    assert (both, both.share) == (Coverage(2, 1, 12, 24), 0.5)
    assert Coverage().share == 1
