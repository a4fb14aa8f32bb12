"""Words, their tokens and windows, on text of any script and with tokenizers of three kinds."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertTokenizerFast,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    RobertaTokenizerFast,
)

from bertkit.errors import DataError, ModelError
from bertkit.tokens.features import find_template, tokenize_texts
from bertkit.tokens.words import read_list, read_target, split_text, split_windows, tokenize_words
from tests.conftest import make_tokenizer

TEXTS = ["The old man saw it again.", "hello world", "the old man's boat, seen again!", "don't say 3.5 or 42"] * 10
SPECIAL = ["<s>", "</s>", "<pad>", "<unk>", "<mask>"]
STRANGE = [
    *("good", "Film", "U.N.", "x", "été", "e\u0301te\u0301", "Страница", "Ελλάδα", "東京都", "한국어", "ไทย", "हिन्दी"),
    *("العربية", "עברית", "\u202eabc", "\u200fא", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "ｆｕｌｌ", "ﬁ", "İ", "ß", "½"),
    *("\u200b", "\u00ad", "so\u00adft", "\ufeff", "\u2060", "\ue000", "\U000f0000", "\ufffd", "\0", "\u0301"),
    *("[MASK]", "[SEP]", "<s>", "##ing", "Ġ", "▁", "New York", " ", "\u00a0", "\u2028", "a\tb", "\n", "..."),
]
VISIBLE = [word for word in STRANGE if not any(map(str.isspace, word))]
LETTERS = st.characters(exclude_categories=["Cs"])
one_word = st.sampled_from(STRANGE) | st.text(LETTERS, min_size=1, max_size=8)
some_words = st.lists(one_word, min_size=1, max_size=12)

tokens_of_words = st.lists(st.integers(0, 4), max_size=60).map(
    lambda sizes: [list(range(sum(sizes[:n]), sum(sizes[: n + 1]))) for n in range(len(sizes))]
)


def train_bytes(add_blank: bool = False) -> Tokenizer:
    """Train a byte-level BPE, and teach it to open a text as RoBERTa does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_blank)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([f" {text}" for text in TEXTS], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return tokenizer


def plain_bytes(add_blank: bool = False) -> PreTrainedTokenizerFast:
    """Wrap the tokenizer as ModernBERT's is."""
    names = dict(zip(("bos_token", "eos_token", "pad_token", "unk_token", "mask_token"), SPECIAL, strict=True))
    names |= {"cls_token": "<s>", "sep_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=train_bytes(add_blank), **names)


def roberta(kind: type = RobertaTokenizerFast, add_blank: bool = False):
    parts = json.loads(train_bytes().to_str())["model"]
    merges = [tuple(merge) for merge in parts["merges"]]
    return kind(vocab=parts["vocab"], merges=merges, add_prefix_space=add_blank)


@pytest.fixture(scope="module")
def bert():
    return make_tokenizer()


@pytest.fixture(scope="module")
def byte_level():
    return plain_bytes(add_blank=True)


def spelled(tokenizer, words):
    return [tokenizer.convert_ids_to_tokens(tokens) for tokens in tokenize_words(tokenizer, [words], max_tokens=50)[0]]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("EU rejects  call", ["EU", "rejects", "call"]),
        ('["EU", "New York"]', ["EU", "New York"]),
        (' ["EU"]', ["EU"]),
        ("[2, null, 0]", [2, None, 0]),
        ("2 0", ["2", "0"]),
        (["a b", ""], ["a b", ""]),
        ([3, None, 1.0], [3, None, 1.0]),
        (("a",), ["a"]),
        ("", []),
        ([], []),
        ("a\u00a0b\u2028c", ["a", "b", "c"]),
    ],
)
def test_lists_come_in_three_ways(value, found):
    assert read_list(value, "tokens") == found


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("['EU', 'rejects']", "a list that is not JSON"),
        ("[EU] rejects", "a list that is not JSON"),
        (7, "'7' is not a list"),
        (None, "'None' is not a list"),
        ({"a": 1}, "\"{'a': 1}\" is not a list"),
    ],
)
def test_what_is_no_list_is_refused(value, what):
    with pytest.raises(DataError) as caught:
        read_list(value, "tokens")
    assert str(caught.value) == f'{what} (column \'tokens\') - write ["EU", "rejects"]'


@pytest.mark.parametrize(
    ("value", "count", "found"),
    [(3, 1, [3]), ("3", 1, [3]), ([3], 1, [3]), ([4, 9], 2, [4, 9]), ("4:9", 2, [4, 9]), (("4", "9"), 2, [4, 9])],
)
def test_a_place_comes_in_many_ways(value, count, found):
    assert read_target(value, count) == found


@pytest.mark.parametrize("value", ["", "x", None, True, [True], [1, 2, 3], "1:2:3", {"a": 1}, ["1", None]])
def test_what_is_no_place_is_refused(value):
    for count, wanted in ((1, "the index of a word"), (2, "two character offsets, such as 4:9")):
        with pytest.raises(DataError) as caught:
            read_target(value, count)
        assert str(caught.value) == f"the target {value!r} is not {wanted} (column 'target') - give {wanted}"


@given(some_words.map("".join) | st.text(LETTERS, max_size=40))
@settings(deadline=None)
def test_a_cut_text_loses_no_visible_character(text):
    spans = split_text(text)
    places = [place for start, end in spans for place in range(start, end)]
    assert places == sorted(set(places))
    assert all(start < end for start, end in spans)
    assert {place for place, char in enumerate(text) if not char.isspace()} == set(places)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Rock-'n'-roll, e.g. AT&T's.", ["Rock", "-", "'", "n", "'", "-", "roll", ",", "e.g.", "AT&T's", "."]),
        ("$3.50 or 1,000/2?", ["$", "3.50", "or", "1,000/2", "?"]),
        ("me@x.org it’s", ["me@x.org", "it’s"]),
        ("e\u0301te\u0301 का", ["e\u0301te\u0301", "का"]),
        ("so\u00adft \u200b", ["so\u00adft", "\u200b"]),
        ("\u202eעברית\u202c!", ["\u202eעברית\u202c", "!"]),
        (" \u00a0\n", []),
    ],
)
def test_where_a_text_is_cut(text, words):
    assert [text[start:end] for start, end in split_text(text)] == words


@pytest.mark.parametrize("name", ["bert", "byte_level"])
@given(st.lists(st.lists(one_word, max_size=8), min_size=1, max_size=4), st.integers(1, 6))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_word_has_its_own_tokens(request, name, rows, longest):
    tokenizer = request.getfixturevalue(name)
    rows = [[word for word in words if word == word.strip()] for words in rows]
    found = tokenize_words(tokenizer, rows, longest)
    assert [len(row) for row in found] == [len(words) for words in rows]
    specials = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id}
    for words, row in zip(rows, found, strict=True):
        for word, tokens in zip(words, row, strict=True):
            whole = [token for each in tokenize_texts(tokenizer, [[word]]) for token in each.ids]
            assert tokens == whole[:longest]
            assert not specials & set(tokens)


@given(st.lists(st.tuples(st.sampled_from(VISIBLE), st.integers(1, 5000)), min_size=1, max_size=4), st.integers(1, 500))
@settings(max_examples=8, deadline=None)
def test_very_long_words_and_rows(byte_level, drawn, repeated):
    words = [(word * size)[:size] for word, size in drawn] * repeated
    words = words[: max(1, min(2000, 400_000 // max(map(len, words))))]
    found = tokenize_words(byte_level, [words], max_tokens=31)[0]
    assert len(found) == len(words)
    assert all(len(tokens) <= 31 for tokens in found)
    assert_windows_hold(found, budget=62, overlap=16)


def test_rows_without_words_or_tokens(bert):
    assert tokenize_words(bert, [[], []], max_tokens=9) == [[], []]
    assert tokenize_words(bert, [[], ["\u200b", "the", ""], []], max_tokens=9) == [
        [],
        [[], [bert.convert_tokens_to_ids("the")], []],
        [],
    ]


def assert_windows_hold(tokens, room, overlap):
    """Check what must hold of any windows."""
    windows = split_windows(tokens, room, overlap)
    read = [word for window in windows for word in window.words]
    assert sorted(read) == [word for word, own in enumerate(tokens) if own]
    for window in windows:
        assert 0 < len(window.tokens) <= room
        for word, place in zip(window.words, window.positions, strict=True):
            assert window.tokens[place : place + len(tokens[word])] == tokens[word]
    return windows


@given(tokens_of_words, st.integers(8, 24), st.data())
@settings(deadline=None)
def test_windows_hold_every_word_once(tokens, room, data):
    overlap = data.draw(st.integers(0, room // 2))
    windows = assert_windows_hold(tokens, room, overlap)
    every_token = [token for word in tokens for token in word]
    assert {token for window in windows for token in window.tokens} == set(every_token)
    if len(every_token) <= room:
        assert len(windows) == (1 if every_token else 0)
    for one, other in itertools.pairwise(windows):  # tokens are numbered in order, so an overlap is a range
        shared = one.tokens[-1] + 1 - other.tokens[0]
        assert other.tokens[-1] > one.tokens[-1]
        assert shared >= min(overlap, room - 2 * 4)


def context(window, word, tokens):
    """Give the tokens on the poorer side of a word in a window; None where it is not inside."""
    if tokens[word][0] not in window.tokens:
        return None
    place = window.tokens.index(tokens[word][0])
    return min(place, len(window.tokens) - place - len(tokens[word]))


@given(tokens_of_words, st.integers(8, 24))
@settings(deadline=None)
def test_a_word_is_read_where_it_has_most_context(tokens, room):
    windows = split_windows(tokens, room, room // 2)
    for number, window in enumerate(windows):
        for word in window.words:
            contexts = [context(each, word, tokens) for each in windows]
            best = max(each for each in contexts if each is not None)
            assert contexts.index(best) == number


LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def llama_3() -> PreTrainedTokenizerFast:
    """Give a tokenizer that cuts text by a pattern of its own before it goes over to bytes."""
    tokenizer = train_bytes()
    cut = pre_tokenizers.Split(Regex(LLAMA_3), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, to_bytes])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>")


WITHOUT_BLANK = {
    "plain": plain_bytes,
    "roberta": roberta,
    "slow roberta": lambda: roberta(RobertaTokenizer),
    "llama 3": llama_3,
}


@pytest.fixture(scope="module", params=WITHOUT_BLANK)
def without_blank(request):
    return WITHOUT_BLANK[request.param]()


def test_without_a_blank_of_its_own_a_word_has_the_tokens_of_running_text(without_blank):
    before = without_blank.backend_tokenizer.to_str()
    assert spelled(without_blank, ["hello", "world"]) == [["Ġhello"], ["Ġworld"]]
    assert [tokens[0][0] for tokens in spelled(without_blank, ["the", "boat", "or", "don't", "seen"])] == ["Ġ"] * 5
    assert without_blank.backend_tokenizer.to_str() == before


@given(rows=st.lists(st.lists(st.text(LETTERS, min_size=1, max_size=8), max_size=8), min_size=1, max_size=4))
@settings(deadline=None)
def test_tokens_of_words_are_those_of_the_running_text(without_blank, rows):
    blank = without_blank.convert_tokens_to_ids("Ġ")  # which speaks for no word where it is a token of its own
    rows = [[word for word in words if not any(map(str.isspace, word))] for words in rows]
    for words, found in zip(rows, tokenize_words(without_blank, rows, max_tokens=99), strict=True):
        (text,) = tokenize_texts(without_blank, [f" {' '.join(words)}"])
        assert [token for tokens in found for token in tokens if token != blank] == [
            token for token in text.ids if words and token != blank
        ]
        assert len(found) == len(words)
        assert all({*tokens} - {blank} for tokens in found)


@given(words=some_words)
@settings(deadline=None)
def test_strange_words_have_their_own_tokens_in_running_text(without_blank, words):
    found = tokenize_words(without_blank, [words], max_tokens=99)[0]
    decoded = [without_blank.backend_tokenizer.decode(tokens, skip_special_tokens=False) for tokens in found]
    assert ["".join(each.split()) for each in decoded] == ["".join(word.split()) for word in words]


@pytest.mark.parametrize("make", [make_tokenizer, lambda: plain_bytes(True), lambda: roberta(add_blank=True)])
def test_a_tokenizer_that_keeps_words_apart_is_given_words(make):
    tokenizer = make()
    assert tokenize_words(tokenizer, [["the", "film"], ["a b"]], 50) == [
        [tokenize_texts(tokenizer, [[word]])[0].ids for word in words] for words in (["the", "film"], ["a b"])
    ]


def sentencepiece(scheme):
    letters = sorted({*"".join(TEXTS)} - {" "})
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁", -1.0), *((letter, -2.0) for letter in letters)], 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("scheme", ["always", "first"])
def test_tokens_of_sentencepiece(scheme):
    assert spelled(sentencepiece(scheme), ["saw", "it"]) == [["▁", "s", "a", "w"], ["▁", "i", "t"]]


def test_a_tokenizer_whose_tokens_cross_words_is_refused():
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    with pytest.raises(ModelError) as caught:
        tokenize_words(PreTrainedTokenizerFast(tokenizer_object=tokenizer), [["saw", "it"]], max_tokens=9)
    assert str(caught.value) == (
        "the tokenizer gives a list of words other tokens than the same text"
        " - use a checkpoint whose tokenizer keeps words apart"
    )


def bert_tokenizer():
    """Give the tokenizer of the tiny model as the class of BERT, which numbers segments."""
    return BertTokenizerFast(vocab=make_tokenizer().get_vocab())


@pytest.mark.parametrize("make", [bert_tokenizer, make_tokenizer, plain_bytes, roberta])
@pytest.mark.parametrize(("first", "second"), [("the old man", None), ("the film", "so good and so on"), ("a", "b")])
def test_a_filled_frame_is_what_the_tokenizer_makes(make, first, second):
    tokenizer = make()
    encoded = dict(tokenizer(first, second))
    encoded.pop("attention_mask")
    frame = find_template(tokenizer, pair=second is not None)
    texts = [tokenize_texts(tokenizer, [text])[0].ids for text in (first, second) if text is not None]
    assert frame.fill(*texts) == encoded
    assert len(encoded["input_ids"]) == frame.size + sum(map(len, texts))


def test_frames_of_three_tokenizers():
    one, two = (find_template(bert_tokenizer(), pair=pair) for pair in (False, True))
    assert (one.before, one.between, one.after, one.segments) == ([2], [], [3], (0, 0))
    assert (two.before, two.between, two.after, two.segments) == ([2], [3], [3], (0, 1))
    assert find_template(plain_bytes(), pair=True).between == [1, 1]
    assert find_template(roberta(), pair=True).size == 4
