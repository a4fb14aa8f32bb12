"""Masking: how many tokens are chosen, which ones, and what replaces them."""

import numpy as np
import pytest
from scipy.stats import chisquare

from bertkit.pretraining.masking import choose_spans, choose_tokens, choose_words, corrupt, ordinary_tokens
from tests.conftest import make_tokenizer

MASK = 4


def make_text(words=60, seed=0, special=(0, 25, -1)):
    """Build what is maskable, and where words of one to four tokens begin; special tokens lie between texts."""
    random = np.random.default_rng(seed)
    starts = np.zeros(0, bool)
    for length in random.integers(1, 5, words):
        starts = np.append(starts, [True, *[False] * (length - 1)])
    maskable = np.ones(len(starts), bool)
    for position in special:
        maskable[position] = False
    return maskable, starts


def choosers(maskable, starts, rate):
    return {
        "tokens": lambda random: choose_tokens(maskable, rate, random),
        "words": lambda random: choose_words(maskable, starts, rate, random),
        "spans": lambda random: choose_spans(maskable, starts, rate, random)[0],
    }


WAYS = ["tokens", "words", "spans"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rate", [0.05, 0.15, 0.4])
def test_the_rate_is_kept_and_special_tokens_are_never_chosen(way, rate):
    for seed in range(30):
        maskable, starts = make_text(seed=seed)
        is_chosen = choosers(maskable, starts, rate)[way](np.random.default_rng(seed))
        expected = round(rate * maskable.sum())
        assert is_chosen.sum() == expected if way == "tokens" else expected - 4 < is_chosen.sum() <= expected
        assert not (is_chosen & ~maskable).any()


@pytest.mark.parametrize("way", WAYS)
def test_every_token_is_masked_equally_often(way):
    maskable, starts = np.ones(40, bool), np.ones(40, bool)
    choose = choosers(maskable, starts, 0.15)[way]
    counts = sum(choose(np.random.default_rng(seed)).astype(int) for seed in range(2000))
    if way == "spans":  # which end with the text: its first tokens are in fewer of them
        assert counts[10:].min() > 0.8 * counts[10:].mean()
    else:
        # without replacement: a token's variance is smaller than of independent draws, so the test is conservative
        assert chisquare(counts).pvalue > 0.001


@pytest.mark.parametrize("way", WAYS)
def test_the_same_key_masks_the_same_tokens_and_another_key_others(way):
    maskable, starts = make_text()
    choose = choosers(maskable, starts, 0.15)[way]
    one, same, epoch, row = (choose(np.random.default_rng(key)) for key in [(1, 0, 7), (1, 0, 7), (1, 1, 7), (1, 0, 8)])
    assert (one == same).all()
    assert (one != epoch).any() and (one != row).any()


@pytest.mark.parametrize("way", WAYS)
def test_one_token_is_masked_if_there_is_any(way):
    random = np.random.default_rng(0)
    nothing, one_word = np.zeros(4, bool), np.array([True, False, False, False])
    assert not choosers(nothing, one_word, 0.15)[way](random).any()
    assert choosers(np.array([False, True, False]), np.ones(3, bool), 0.15)[way](random).tolist() == [
        False,
        True,
        False,
    ]
    assert choosers(np.ones(4, bool), one_word, 0.15)[way](random).sum() == (1 if way == "tokens" else 4)


@pytest.mark.parametrize("way", ["words", "spans"])
def test_whole_words_are_whole(way):
    for seed in range(30):
        maskable, starts = make_text(seed=seed)
        is_chosen = choosers(maskable, starts, 0.2)[way](np.random.default_rng(seed))
        words = np.cumsum(starts | np.append(False, ~maskable[:-1]))
        for word in set(words[is_chosen]):
            assert is_chosen[(words == word) & maskable].all()


def test_a_word_that_would_exceed_the_number_is_passed_over_for_a_shorter_one():
    starts = np.array([True, *[False] * 9, True, True, *[True] * 8])  # a word of 10 tokens, then words of one
    counts = [choose_words(np.ones(20, bool), starts, 0.15, np.random.default_rng(seed)) for seed in range(20)]
    assert all(is_chosen.sum() == 3 and not is_chosen[:10].any() for is_chosen in counts)


def test_lengths_of_spans_are_geometric_and_drawn_again_above_the_longest():
    lengths = []
    for seed in range(2):
        maskable, starts = make_text(20_000, seed, special=())
        _, spans = choose_spans(maskable, starts, 0.15, np.random.default_rng(seed))
        number = np.append(np.cumsum(starts) - 1, starts.sum())
        lengths += (number[spans[:, 1]] - number[spans[:, 0]]).tolist()[:-1]
    weights = 0.8 ** np.arange(10)
    counts = np.bincount(lengths, minlength=11)[1:]
    assert len(counts) == 10
    assert chisquare(counts, weights / weights.sum() * counts.sum()).pvalue > 0.001
    assert np.mean(lengths) == pytest.approx(3.8, abs=0.15)  # as the paper says


def expected_lengths(left: int) -> np.ndarray:
    """Count the spans of each length, 0 to 10, that a text with so many tokens to mask has on average, written out.

    A span has k words with probability 0.2 * 0.8 ** (k - 1), drawn again above 10; the last has those that are left.
    """
    probability = 0.8 ** np.arange(10) / sum(0.8**power for power in range(10))
    counts = np.zeros((left + 1, 11))
    for tokens in range(1, left + 1):
        for drawn in range(1, 11):
            length = min(drawn, tokens)
            rest = counts[tokens - length] + np.eye(11)[length]
            counts[tokens] += probability[drawn - 1] * rest
    return counts[left]


@pytest.mark.parametrize(("left", "mean"), [(19, 3.39), (77, 3.69)])  # 15 % of 128 and of 512 tokens
def test_the_last_span_of_a_block_is_shortened_as_the_docs_say(left, mean):
    words, blocks = np.ones(4000, bool), 12_000 // left  # long texts, so that none of their spans is cut off at the end
    spans = [choose_spans(words, words, left / 4000, np.random.default_rng(seed))[1] for seed in range(blocks)]
    counts = np.bincount(np.diff(np.concatenate(spans)).ravel(), minlength=11)[1:]
    expected = expected_lengths(left)[1:]
    assert chisquare(counts, expected / expected.sum() * counts.sum()).pvalue > 0.001
    assert (expected @ np.arange(1, 11)) / expected.sum() == pytest.approx(mean, abs=0.005)


def test_spans_begin_at_words_and_can_be_told_apart():
    for seed in range(50):
        maskable, starts = make_text(seed=seed)
        is_chosen, spans = choose_spans(maskable, starts, 0.3, np.random.default_rng(seed))
        again = np.zeros_like(is_chosen)
        for start, end in spans:
            assert starts[start] or not maskable[start - 1]
            assert not is_chosen[start - 1] and not is_chosen[end]
            again[start:end] = True
        assert (again == is_chosen).all()


def test_of_the_chosen_tokens_eighty_percent_are_masked_ten_random_and_ten_stay():
    random = np.random.default_rng(0)
    tokens, ordinary = np.full(100_000, 10), np.arange(20, 50)
    is_chosen = random.random(len(tokens)) < 0.3
    corrupted = corrupt(tokens, is_chosen, random, MASK, ordinary)
    assert (corrupted[~is_chosen] == 10).all()
    after = corrupted[is_chosen]
    random_tokens = after[(after != MASK) & (after != 10)]
    counts = [(after == MASK).sum(), len(random_tokens), (after == 10).sum()]
    assert chisquare(counts, np.array([0.8, 0.1, 0.1]) * len(after)).pvalue > 0.001
    assert chisquare(np.bincount(random_tokens, minlength=50)[20:]).pvalue > 0.001
    assert random_tokens.min() >= 20
    assert (tokens == 10).all()


def test_a_span_is_replaced_as_a_whole():
    maskable, starts = make_text(20_000, special=())
    random = np.random.default_rng(0)
    is_chosen, spans = choose_spans(maskable, starts, 0.15, random)
    corrupted = corrupt(np.full(len(maskable), 10), is_chosen, random, MASK, np.arange(20, 50), spans)
    ways = [
        {"masked" if token == MASK else "kept" if token == 10 else "random" for token in corrupted[start:end]}
        for start, end in spans
    ]
    assert all(len(way) == 1 for way in ways)
    counts = [sum(way == {name} for way in ways) for name in ("masked", "random", "kept")]
    assert chisquare(counts, np.array([0.8, 0.1, 0.1]) * len(spans)).pvalue > 0.001
    assert (corrupted[~is_chosen] == 10).all()


def test_replacement_is_keyed():
    maskable, _ = make_text()
    draws = [
        corrupt(np.arange(100, 100 + len(maskable)), maskable, np.random.default_rng(key), MASK, np.arange(9)).tolist()
        for key in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]


def test_no_special_added_or_unused_token_is_ordinary():
    tokenizer = make_tokenizer()
    everything = len(tokenizer)
    tokenizer.add_tokens(["[unused3]", "brandnew"])
    ordinary = ordinary_tokens(tokenizer)
    assert ordinary.tolist() == sorted(set(range(everything)) - set(tokenizer.all_special_ids))
    assert "[unused" in tokenizer.convert_ids_to_tokens(everything)
