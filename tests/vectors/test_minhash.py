"""Texts with nearly the same words, compared with the shares of their shingles counted by a plain loop."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bertkit.data.text import normalize
from bertkit.vectors.minhash import LONG, cut_shingles, digest_text, find_near, find_repeated, sign

WORDS = [f"{a}{b}{c}" for a in "bdfgklm" for b in "aeiou" for c in ("", "n", "st")]


def write(seed, words=60):
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def change(text, words, seed=0):
    """Replace some words of a text."""
    parts, draw = text.split(), random.Random(seed)
    for place in draw.sample(range(len(parts)), words):
        parts[place] = draw.choice(WORDS).upper()
    return normalize(" ".join(parts))


def share(one, other):
    shingles = [{text[n : n + 5] for n in range(len(text) - 4)} for text in (one, other)]
    return len(shingles[0] & shingles[1]) / len(shingles[0] | shingles[1])


def near_of(texts, threshold, fixed=0):
    signatures = {row: sign(text) for row, text in enumerate(texts)}
    return find_near(signatures, threshold, lambda rows: {row: cut_shingles(texts[row]) for row in rows}, fixed)


@pytest.mark.parametrize("words", [0, 1, 3, 10, 30])
def test_equal_numbers_estimate_the_share_of_shingles(words):
    """The mean over ten texts is within four standard errors."""
    texts = [write(seed) for seed in range(10)]
    changed = [change(text, words) for text in texts]
    estimates = [(sign(one) == sign(other)).mean() for one, other in zip(texts, changed, strict=True)]
    shares = [share(one, other) for one, other in zip(texts, changed, strict=True)]
    assert np.mean(estimates) == pytest.approx(np.mean(shares), abs=4 * 0.5 / np.sqrt(128 * 10))


def test_near_texts_are_found_and_others_are_not():
    texts = [write(seed) for seed in range(200)]
    near = [change(text, 1, seed) for seed, text in enumerate(texts[:50])]
    far = [change(text, 30, seed) for seed, text in enumerate(texts[:50])]
    found = near_of([*texts, *near, *far], 0.8)
    assert {row: kept for row, (kept, _) in found.items()} == {200 + number: number for number in range(50)}


def test_fixed_rows_stay_and_a_row_is_compared_with_kept_ones_alone():
    first = write(0)
    second = change(first, 4)
    third = change(second, 4, seed=1)
    assert share(second, third) > 0.75 > share(first, third)
    assert near_of([first, second, third], 0.75).keys() == {1}
    assert near_of([first, second, third], 0.75, fixed=2).keys() == {2}
    assert near_of([], 0.75) == {}


def test_the_true_share_decides_and_is_told():
    """Estimates of 128 numbers err by 0.03, so some pairs on either side of the threshold would be wrong."""
    texts = [write(seed) for seed in range(60)]
    changed = [change(text, 3, seed) for seed, text in enumerate(texts)]
    shares = {60 + seed: share(*pair) for seed, pair in enumerate(zip(texts, changed, strict=True))}
    threshold = float(np.median(list(shares.values())))
    found = near_of([*texts, *changed], threshold)
    estimated = {60 + seed for seed in range(60) if (sign(texts[seed]) == sign(changed[seed])).mean() >= threshold}
    assert found.keys() == {row for row, of_pair in shares.items() if of_pair >= threshold} != estimated
    assert all(of_pair == pytest.approx(shares[row]) for row, (_, of_pair) in found.items())


def test_short_texts_are_not_signed():
    assert sign("a" * (LONG - 1)) is None
    assert sign("a" * LONG) is not None


def test_the_preferred_of_equal_texts_is_kept():
    digests = np.array([digest_text(normalize(text)) for text in ("A cat", "a  cat ", "dog", "a CAT")], dtype=np.uint64)
    assert find_repeated(digests, np.array([3, 0, 1, 2])) == {0: (3, 1.0), 1: (3, 1.0)}
