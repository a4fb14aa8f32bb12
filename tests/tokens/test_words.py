"""Words, their tokens and windows, on text of any script and with tokenizers of three types."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, RobertaTokenizer, RobertaTokenizerFast

from bertkit.errors import DataError, ModelError
from bertkit.tokens.features import tokenize_texts
from bertkit.tokens.words import read_list, read_target, read_words, split_text, split_windows, tokenize_words
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


def train_byte_bpe(add_space: bool = False) -> Tokenizer:
    """Train a byte-level BPE with the special tokens of RoBERTa."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_space)
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


def byte_tokenizer(add_space: bool = False) -> PreTrainedTokenizerFast:
    """Wrap the tokenizer in the class that ModernBERT has."""
    names = dict(zip(("bos_token", "eos_token", "pad_token", "unk_token", "mask_token"), SPECIAL, strict=True))
    names |= {"cls_token": "<s>", "sep_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=train_byte_bpe(add_space), **names)


def roberta(tokenizer_class: type = RobertaTokenizerFast, add_space: bool = False):
    parts = json.loads(train_byte_bpe().to_str())["model"]
    merges = [tuple(merge) for merge in parts["merges"]]
    return tokenizer_class(vocab=parts["vocab"], merges=merges, add_prefix_space=add_space)


@pytest.fixture(scope="module")
def bert():
    return make_tokenizer()


@pytest.fixture(scope="module")
def byte_level():
    return byte_tokenizer(add_space=True)


def tokens_of(tokenizer, words):
    return [tokenizer.convert_ids_to_tokens(tokens) for tokens in tokenize_words(tokenizer, [words], max_tokens=50)[0]]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("EU rejects  call", ["EU", "rejects", "call"]),
        ('["EU", "New York"]', ["EU", "New York"]),
        (' ["EU"]', ["EU"]),
        ("[2, null, 0]", [2, None, 0]),
        ("['EU', \"don't\", None]", ["EU", "don't", None]),
        ("2 0", ["2", "0"]),
        (["a b", ""], ["a b", ""]),
        ([3, None, 1.0], [3, None, 1.0]),
        (("a",), ["a"]),
        ("", []),
        ([], []),
        ("a\u00a0b\u2028c", ["a", "b", "c"]),
    ],
)
def test_lists_are_read_in_three_forms(value, expected):
    assert read_list(value, "tokens") == expected


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("['EU' 'rejects']", "a list that is not JSON"),
        ("[0, 1", "a list that is not JSON"),
        (7, "'7' is not a list"),
        (None, "'None' is not a list"),
        ({"a": 1}, "\"{'a': 1}\" is not a list"),
    ],
)
def test_values_that_are_no_list_are_refused(value, what):
    with pytest.raises(DataError) as caught:
        read_list(value, "tokens")
    assert str(caught.value) == f'{what} (column \'tokens\') - write ["EU", "rejects"]'


@pytest.mark.parametrize("text", ["[EU] rejects", "[1] shows", "[laughs]", '[ " Yes " ]', " [...] he left", "[a, b] ]"])
def test_a_sentence_may_begin_with_a_bracket(text):
    assert read_words(text) == text.split()
    assert read_words('["[1]", "shows"]') == ["[1]", "shows"]
    assert read_words(" [ ] ") == []
    for broken in ('["EU", "rej', "['EU' 'rejects']", "[EU, rejects]"):
        with pytest.raises(DataError, match="a list that is not JSON"):
            read_words(broken)


@pytest.mark.parametrize(
    ("value", "count", "expected"),
    [(3, 1, [3]), ("3", 1, [3]), ([3], 1, [3]), ([4, 9], 2, [4, 9]), ("4:9", 2, [4, 9]), (("4", "9"), 2, [4, 9])],
)
def test_targets_are_read_in_many_forms(value, count, expected):
    assert read_target(value, count) == expected


@pytest.mark.parametrize("value", ["", "x", None, True, [True], [1, 2, 3], "1:2:3", {"a": 1}, ["1", None]])
def test_values_that_are_no_target_are_refused(value):
    for count, expected in ((1, "the index of a word"), (2, "two character offsets, such as 4:9")):
        with pytest.raises(DataError) as caught:
            read_target(value, count)
        assert str(caught.value) == f"the target {value!r} is not {expected} (column 'target') - give {expected}"


@pytest.mark.parametrize("name", ["bert", "byte_level"])
@given(st.lists(st.lists(one_word, max_size=8), min_size=1, max_size=4), st.integers(1, 6))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_word_has_its_own_tokens(request, name, rows, max_tokens):
    tokenizer = request.getfixturevalue(name)
    rows = [[word for word in words if word == word.strip()] for words in rows]
    tokenized = tokenize_words(tokenizer, rows, max_tokens)
    assert [len(row) for row in tokenized] == [len(words) for words in rows]
    specials = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id}
    for words, row in zip(rows, tokenized, strict=True):
        for word, tokens in zip(words, row, strict=True):
            (alone,) = tokenize_texts(tokenizer, [[word]])
            assert tokens == alone.ids[:max_tokens]
            assert not specials & set(tokens)


@given(st.lists(st.tuples(st.sampled_from(VISIBLE), st.integers(1, 3000)), min_size=1, max_size=4), st.integers(1, 500))
@settings(max_examples=4, deadline=None)
def test_very_long_words_and_rows(byte_level, drawn, repeated):
    words = [(word * size)[:size] for word, size in drawn] * repeated
    words = words[: max(1, min(2000, 30_000 // max(map(len, words))))]
    tokenized = tokenize_words(byte_level, [words], max_tokens=31)[0]
    assert len(tokenized) == len(words)
    assert all(len(tokens) <= 31 for tokens in tokenized)
    assert_windows_hold(tokenized, budget=62, overlap=16)


def test_rows_without_words_or_tokens(bert):
    assert tokenize_words(bert, [[], []], max_tokens=9) == [[], []]
    assert tokenize_words(bert, [[], ["\u200b", "the", ""], []], max_tokens=9) == [
        [],
        [[], [bert.convert_tokens_to_ids("the")], []],
        [],
    ]


def assert_windows_hold(tokens, budget, overlap):
    """Check what is true of any windows, and return them."""
    windows = split_windows(tokens, budget, overlap)
    read = [word for window in windows for word in window.words]
    assert sorted(read) == [word for word, own in enumerate(tokens) if own]
    for window in windows:
        assert 0 < len(window.tokens) <= budget
        for word, position in zip(window.words, window.positions, strict=True):
            assert window.tokens[position : position + len(tokens[word])] == tokens[word]
    return windows


@given(tokens_of_words, st.integers(8, 24), st.data())
@settings(deadline=None)
def test_windows_hold_every_word_once(tokens, budget, data):
    overlap = data.draw(st.integers(0, budget // 2))
    windows = assert_windows_hold(tokens, budget, overlap)
    every_token = [token for word in tokens for token in word]
    assert {token for window in windows for token in window.tokens} == set(every_token)
    if len(every_token) <= budget:
        assert len(windows) == (1 if every_token else 0)
    for window, following in itertools.pairwise(windows):  # tokens are numbered in order, so an overlap is a range
        shared = window.tokens[-1] + 1 - following.tokens[0]
        assert following.tokens[-1] > window.tokens[-1]
        assert shared >= min(overlap, budget - 2 * 4)


def context(window, word, tokens):
    """Count the tokens on the smaller side of a word in a window; None if the window does not hold it."""
    if tokens[word][0] not in window.tokens:
        return None
    position = window.tokens.index(tokens[word][0])
    return min(position, len(window.tokens) - position - len(tokens[word]))


@given(tokens_of_words, st.integers(8, 24))
@settings(deadline=None)
def test_a_word_is_read_where_it_has_most_context(tokens, budget):
    windows = split_windows(tokens, budget, budget // 2)
    for number, window in enumerate(windows):
        for word in window.words:
            contexts = [context(candidate, word, tokens) for candidate in windows]
            best = max(size for size in contexts if size is not None)
            assert contexts.index(best) == number


LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def llama_3() -> PreTrainedTokenizerFast:
    """Build a tokenizer that splits text by a pattern of its own before it turns to bytes."""
    tokenizer = train_byte_bpe()
    split = pre_tokenizers.Split(Regex(LLAMA_3), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>")


SPACELESS = {
    "plain": byte_tokenizer,
    "roberta": roberta,
    "slow roberta": lambda: roberta(RobertaTokenizer),
    "llama 3": llama_3,
}


@pytest.fixture(scope="module", params=SPACELESS)
def spaceless(request):
    return SPACELESS[request.param]()


def test_without_a_space_of_its_own_a_word_has_the_tokens_of_running_text(spaceless):
    before = spaceless.backend_tokenizer.to_str()
    assert tokens_of(spaceless, ["hello", "world"]) == [["Ġhello"], ["Ġworld"]]
    assert [tokens[0][0] for tokens in tokens_of(spaceless, ["the", "boat", "or", "don't", "seen"])] == ["Ġ"] * 5
    assert spaceless.backend_tokenizer.to_str() == before


@given(rows=st.lists(st.lists(st.text(LETTERS, min_size=1, max_size=8), max_size=8), min_size=1, max_size=4))
@settings(deadline=None)
def test_tokens_of_words_are_those_of_the_running_text(spaceless, rows):
    space = spaceless.convert_tokens_to_ids("Ġ")  # as a token of its own it belongs to no word
    rows = [[word for word in words if not any(map(str.isspace, word))] for words in rows]
    for words, tokenized in zip(rows, tokenize_words(spaceless, rows, max_tokens=99), strict=True):
        (text,) = tokenize_texts(spaceless, [f" {' '.join(words)}"])
        assert [token for tokens in tokenized for token in tokens if token != space] == [
            token for token in text.ids if words and token != space
        ]
        assert len(tokenized) == len(words)
        assert all({*tokens} - {space} for tokens in tokenized)


@given(words=some_words)
@settings(deadline=None)
def test_strange_words_have_their_own_tokens_in_running_text(spaceless, words):
    tokenized = tokenize_words(spaceless, [words], max_tokens=99)[0]
    decoded = [spaceless.backend_tokenizer.decode(tokens, skip_special_tokens=False) for tokens in tokenized]
    assert ["".join(text.split()) for text in decoded] == ["".join(word.split()) for word in words]


@pytest.mark.parametrize("make", [make_tokenizer, lambda: byte_tokenizer(True), lambda: roberta(add_space=True)])
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
    assert tokens_of(sentencepiece(scheme), ["saw", "it"]) == [["▁", "s", "a", "w"], ["▁", "i", "t"]]


def test_a_tokenizer_whose_tokens_cross_words_is_refused():
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    with pytest.raises(ModelError) as caught:
        tokenize_words(PreTrainedTokenizerFast(tokenizer_object=tokenizer), [["saw", "it"]], max_tokens=9)
    assert str(caught.value) == (
        "the tokenizer splits a list of words differently from the same text"
        " - use a checkpoint whose tokenizer keeps words apart"
    )


# --- Words of plain text ---


@given(
    st.text(st.sampled_from("a1 .-'/東ไทน้ำ\u0301\u200d👩") | st.characters(exclude_categories=["Cs"])), st.booleans()
)
def test_a_split_text_loses_no_visible_character(text, at_punctuation):
    spans = split_text(text, at_punctuation=at_punctuation)
    covered = [index for start, end in spans for index in range(start, end)]
    assert covered == sorted(set(covered))
    assert all(start < end for start, end in spans)
    assert {index for index, char in enumerate(text) if not char.isspace()} == set(covered)


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
def test_where_a_text_is_split(text, words):
    assert [text[start:end] for start, end in split_text(text)] == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("東京へ行く", ["東", "京", "へ", "行", "く"]),
        ("ภาษาน้ำ", ["ภ", "า", "ษ", "า", "น้ำ"]),
        ("iPhone東京-x", ["iPhone", "東", "京", "-", "x"]),
        ("မြန်မာ ខ្មែរ ລາວ", ["မြ", "န်", "မာ", "ខ្", "មែ", "រ", "ລ", "າ", "ວ"]),
        ("서울에서", ["서울에서"]),
    ],
)
def test_scripts_without_spaces_are_split_into_grapheme_clusters(text, words):
    assert [text[start:end] for start, end in split_text(text)] == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fever/chills-non", ["fever", "/", "chills", "-", "non"]),
        ("10mg B12 x2y", ["10", "mg", "B", "12", "x", "2", "y"]),
        ("3.5 1,000 don't U.N. e.g. it’s", ["3.5", "1,000", "don't", "U.N.", "e.g.", "it’s"]),
        ("no.Denies a_b AT&T", ["no", ".", "Denies", "a", "_", "b", "AT", "&", "T"]),
    ],
)
def test_marks_inside_words_are_words_if_a_recipe_asks_for_it(text, words):
    assert [text[start:end] for start, end in split_text(text, at_punctuation=True)] == words
