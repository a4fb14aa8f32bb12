"""Texts that do not fit: which tokens are read, by a plain loop and by the tokenizers library."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bertkit.recipe import load_recipe
from bertkit.tasks import TaskContext
from bertkit.tokens import truncation
from bertkit.tokens.features import encode_texts
from bertkit.tokens.truncation import describe_lost_gold, find_lost_answers, find_unread_words
from tests.conftest import WORDS, make_tokenizer

OTHERS = [way for way in truncation.STRATEGIES if way != "head"]


def setup_of(way: str, length: int = 16, **options) -> TaskContext:
    changes = {"training.max_length": length, "options.long_text": way}
    changes |= {f"options.{name}": value for name, value in options.items()}
    tokenizer = make_tokenizer()
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return TaskContext(load_recipe("classify", changes), tokenizer, ("bad", "good"))


def text(words: int, seed: int = 0) -> str:
    return " ".join(random.Random(seed).choices(WORDS["filler"], k=words))


def ids(words: str) -> list[int]:
    return make_tokenizer()(words, add_special_tokens=False)["input_ids"]


def flat(feature: dict) -> dict:
    """A feature of one window as one of a text."""
    return {name: value if name == "row" else value[0] for name, value in feature.items()}


@pytest.mark.parametrize("way", OTHERS)
@pytest.mark.parametrize("pair", [False, True])
def test_what_fits_is_encoded_as_ever(way, pair):
    rows = [{"text": text(n), **({"text_pair": text(12 - n, 1)} if pair else {})} for n in (0, 1, 5, 12)]
    context = setup_of(way)
    features = truncation.encode_long(rows, context)
    if way not in truncation.SHORTENED:
        features = [flat(feature) for feature in features]
    assert features == encode_texts(rows, context)


@pytest.mark.parametrize("budget", [4, 5, 13])
def test_pairs_are_shortened_to_the_sizes_of_the_tokenizers_library(budget):
    context = setup_of("head", budget + 3)
    sizes = [(first, second) for first in range(0, 20, 3) for second in range(0, 20, 2)]
    rows = [{"text": text(first), "text_pair": text(second, 1)} for first, second in sizes]
    whole = [(ids(row["text"]), ids(row["text_pair"])) for row in rows]
    kept = [truncation.shorten_texts(pair, budget, lambda tokens, size: tokens[:size]) for pair in whole]
    encoded = encode_texts(rows, context)
    assert [[2, *first, 3, *second, 3] for first, second in kept] == [feature["input_ids"] for feature in encoded]


def test_the_tail_is_the_last_tokens_and_head_tail_has_a_share_of_the_first():
    row = {"text": text(40)}
    tokens = ids(row["text"])
    (tail,) = truncation.encode_long([row], setup_of("tail"))
    assert tail["input_ids"] == [2, *tokens[-14:], 3]
    (both,) = truncation.encode_long([row], setup_of("head_tail"))  # 0.25 of 14 is 3.5, rounded to even
    assert both["input_ids"] == [2, *tokens[:4], *tokens[-10:], 3]
    (both,) = truncation.encode_long([row], setup_of("head_tail", head_fraction=0.5))
    assert both["input_ids"] == [2, *tokens[:7], *tokens[-7:], 3]


def test_head_tail_takes_128_of_510_tokens_as_in_its_paper():
    assert truncation._keep_ends(list(range(1000)), 510, fraction=0.25) == [*range(128), *range(618, 1000)]


def test_of_a_pair_only_the_longer_text_is_shortened_while_the_other_takes_no_more_than_half():
    row = {"text": text(40), "text_pair": text(5, 1)}
    first, second = ids(row["text"]), ids(row["text_pair"])
    (feature,) = truncation.encode_long([row], setup_of("tail"))
    assert feature["input_ids"] == [2, *first[-8:], 3, *second, 3]
    assert feature["token_type_ids"] == [0] * 10 + [1] * 6
    (feature,) = truncation.encode_long([{"text": row["text_pair"], "text_pair": row["text"]}], setup_of("tail"))
    assert feature["input_ids"] == [2, *second, 3, *first[-8:], 3]


@pytest.mark.parametrize("way", [*truncation.WINDOWS, "hierarchical"])
@pytest.mark.parametrize("overlap", [0, 4, 64])
def test_windows_read_every_token_of_the_text_and_overlap(way, overlap):
    for words in (15, 16, 41, 100):
        row = {"text": text(words)}
        (feature,) = truncation.encode_long([row], setup_of(way, overlap=overlap))
        windows = [window[1:-1] for window in feature["input_ids"]]
        shared, read = min(overlap, 7), windows[0]
        assert all(len(window) == 14 for window in windows[:-1]) and len(windows) > 1
        for window in windows[1:]:
            assert read[len(read) - shared :] == window[:shared]
            read = read + window[shared:]
        assert read == ids(row["text"])


@pytest.mark.parametrize("swapped", [False, True])
def test_windows_of_a_pair_have_the_shorter_text_beside_each(swapped):
    long, short = text(40), text(9, 1)
    row = {"text": short, "text_pair": long} if swapped else {"text": long, "text_pair": short}
    (feature,) = truncation.encode_long([row], setup_of("windows_mean", overlap=0))
    beside, read = ids(short)[:6], []  # half of 13 tokens
    for window in feature["input_ids"]:
        first, second = (part for part in (window[1 : window.index(3)], window[window.index(3) + 1 : -1]))
        assert (first if swapped else second) == beside
        read += second if swapped else first
    assert read == ids(long)
    assert all(
        len(types) == len(window) for types, window in zip(feature["token_type_ids"], feature["input_ids"], strict=True)
    )


def test_windows_are_combined_by_their_mean_or_the_highest():
    values = np.array([[0.9, 0.1], [0.2, 0.8]])
    assert truncation.combine_windows(values, "windows_mean").tolist() == pytest.approx([0.55, 0.45])
    assert truncation.combine_windows(values, "windows_vote").tolist() == pytest.approx([0.55, 0.45])
    assert truncation.combine_windows(values, "windows_max").tolist() == [0.9, 0.8]


def test_no_rows_have_no_features():
    assert truncation.encode_long([], setup_of("windows_mean")) == []


@pytest.mark.parametrize("pair", [False, True])
def test_the_shares_that_are_read_are_those_of_the_encoded_tokens(pair):
    rows = [
        {"text": text(30), **({"text_pair": text(9, 1)} if pair else {})},
        {"text": text(40), "text_pair": "a film"},
    ]
    rows = [row if pair else {"text": row["text"]} for row in rows]
    in_one, in_windows, windows = truncation.get_read_fractions(rows, setup_of("head", overlap=0))
    total = sum(len(ids(value)) for row in rows for value in row.values())
    template = 3 if pair else 2
    encoded = truncation.encode_long(rows, setup_of("head"))
    assert in_one == pytest.approx(sum(len(one["input_ids"]) - template for one in encoded) / total)
    split = truncation.encode_long(rows, setup_of("windows_mean", overlap=0))
    assert windows == np.mean([len(one["input_ids"]) for one in split])
    assert in_windows == (1 if not pair else pytest.approx((total - 3) / total, abs=3 / total))


# --- Gold values that no window of a text has ---


def test_an_answer_that_no_window_holds_is_lost():
    rows = [{"answers": {"text": texts, "answer_start": []}} for texts in (["a"], ["b"], [])]
    features = [{"row": 0, "end_positions": 0}, {"row": 0, "end_positions": 7}, {"row": 1, "end_positions": 0}]
    features = [{"start_positions": 5, **feature} for feature in features]
    assert find_lost_answers(features, rows, max_length=3) == [1]


def test_an_answer_that_is_longer_than_any_prediction_is_lost():
    rows, features = [{"answers": {"text": ["a b c"]}}], [{"row": 0, "start_positions": 5, "end_positions": 7}]
    assert [find_lost_answers(features, rows, max_length=length) for length in (3, 2)] == [[], [0]]
    sentence = describe_lost_gold(1, 4, {"max_answer_length": 30})
    assert "1 of 4 (25.0%)" in sentence and "options.max_answer_length" in sentence
    assert "max_answer_length" not in describe_lost_gold(1, 4, {})


def test_a_tagged_word_that_no_window_reads_is_lost():
    rows = [{"tags": ["O", "B-PER"]}, {"tags": ["O", None]}, {"tags": ["O", "O"]}]
    features = [{"row": 0, "words": [0]}, {"row": 0, "words": [1]}, {"row": 1, "words": [0]}, {"row": 2, "words": [1]}]
    assert find_unread_words(features, rows, None) == [2]
