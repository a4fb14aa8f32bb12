"""Texts say what their label says, which neither their lengths nor, in pairs, their words alone tell."""

from __future__ import annotations

import re
from collections import Counter
from operator import eq
from random import Random
from statistics import fmean

import pytest

from bertkit.data.demo import texts
from bertkit.data.demo.grammar import CATEGORY_OF
from bertkit.data.demo.sets import DEMO_SETS
from tests.data.demo.common import PAIRS_OR_TEXTS, one_per_writer, rows_of
from tests.kills import slow_unless


@pytest.mark.parametrize("write", [texts.write_paraphrase, texts.write_duplicate])
def test_an_equal_pair_has_the_same_nouns(write):
    for seed in range(50):
        first, second = (
            {word.rstrip(".?s").lower() for word in text.split()} & set(CATEGORY_OF)
            for text in write(Random(seed), "equivalent")
        )
        assert first == second


def test_a_review_has_words_of_its_own_polarity():
    praise = [texts.write_review(Random(seed), "positive")[0] for seed in range(50)]
    blame = [texts.write_review(Random(seed), "negative")[0] for seed in range(50)]
    assert not set(praise) & set(blame)


def test_the_subject_tells_the_topic():
    subjects = {"alive": set(), "not alive": set()}
    for label, nouns in subjects.items():
        for seed in range(100):
            first, second = texts.write_topic(Random(seed), label, ("alive", "not alive"))
            assert first.endswith(".") and second.endswith(".")
            nouns.update({word.rstrip(".") for word in first.lower().split()[:3]} & set(CATEGORY_OF))
    assert {"king", "queen", "nurse"} <= subjects["alive"]
    assert {"piano", "kite"} <= subjects["not alive"]
    assert not subjects["not alive"] & {"king", "queen", "nurse"}


def learned(features, name):
    """Train a linear model on features of the rows; return its score on validation, and the most frequent label's."""
    from scipy.stats import spearmanr
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler

    train, held_out = rows_of(name, "train"), rows_of(name, "validation")
    gold, held_out_gold = ([row["label"] for row in rows] for rows in (train, held_out))
    is_graded = isinstance(gold[0], float)
    linear = Ridge() if is_graded else LogisticRegression(max_iter=1000)
    model = make_pipeline(DictVectorizer(), MaxAbsScaler(), linear).fit(list(map(features, train)), gold)
    predicted = model.predict(list(map(features, held_out)))
    if is_graded:
        return spearmanr(predicted, held_out_gold).statistic, 0.0
    most_frequent = Counter(gold).most_common(1)[0][0]
    return tuple(fmean(map(eq, guess, held_out_gold)) for guess in (predicted, [most_frequent] * len(held_out)))


def lengths(row):
    first, second = row["text"], row.get("text_pair", "")
    return {
        "first": len(first),
        "second": len(second),
        "words of first": len(first.split()),
        "words of second": len(second.split()),
        "difference": len(second) - len(first),
        "distance": abs(len(second) - len(first)),
    }


def words(row):
    texts = {"first": row["text"], "second": row.get("text_pair", "")}
    return {f"{which} {word}": 1 for which, text in texts.items() for word in re.findall(r"\w+", text.lower())}


@pytest.mark.parametrize("name", slow_unless(["cola", "rte"], one_per_writer(PAIRS_OR_TEXTS)))
def test_lengths_do_not_tell_the_label(name):
    score, most_frequent = learned(lengths, name)
    assert score < most_frequent + (0.3 if DEMO_SETS[name].task == "text_regression" else 0.12)


PAIRS = one_per_writer([name for name in PAIRS_OR_TEXTS if "text_pair" in DEMO_SETS[name].columns])


@pytest.mark.parametrize("name", slow_unless(["rte", "mrpc"], PAIRS))
def test_the_words_of_a_pair_do_not_tell_how_its_texts_are_related(name):
    score, most_frequent = learned(words, name)
    assert score < most_frequent + 0.25
