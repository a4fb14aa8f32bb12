"""Pairs of segments: true, random and swapped ones, and what is truncated."""

import numpy as np
import pytest
from sklearn.model_selection import cross_val_score
from sklearn.tree import DecisionTreeClassifier

from bertkit.errors import DataError
from bertkit.pretraining.sentence_pairs import build_pairs
from bertkit.pretraining.tokenized import TokenizedCorpus

SPECIAL = 3

SHORT_SHARE = "bertkit.pretraining.sentence_pairs._SHORT_SHARE"


def make_corpus(sizes, seed=0, least=3, most=12):
    """Build documents with these numbers of sentences; a token's id is its document."""
    lengths = np.random.default_rng(seed).integers(least, most, sum(sizes))
    sentences, documents = np.append(0, np.cumsum(lengths)), np.append(0, np.cumsum(sizes))
    owners = np.repeat(np.repeat(np.arange(len(sizes)), sizes), lengths)
    starts = np.ones(len(owners), bool)
    return TokenizedCorpus(owners.astype(np.uint16), starts, sentences, documents, {})


@pytest.fixture(scope="module")
def corpus():
    return make_corpus(np.random.default_rng(1).integers(1, 40, 400).tolist())


@pytest.mark.parametrize("pair_type", ["next", "order"])
def test_half_of_the_pairs_are_true_and_all_have_two_segments_that_fit(corpus, pair_type):
    pairs = build_pairs(corpus, 64, SPECIAL, pair_type, seed=3, epoch=0)
    bounds = pairs.bounds
    assert abs(bounds[:, 4].mean() - 0.5) < 4 * 0.5 / len(pairs) ** 0.5
    assert (bounds[:, 1] > bounds[:, 0]).all() and (bounds[:, 3] > bounds[:, 2]).all()
    assert pairs.lengths.max() <= 64
    first = [pairs[number] for number in range(9)]
    assert [len(pair.first) + len(pair.second) + SPECIAL for pair in first] == pairs.lengths[:9].tolist()


def test_a_random_segment_is_of_another_document_and_no_segment_is_of_two(corpus):
    pairs = build_pairs(corpus, 64, SPECIAL, "next", seed=3, epoch=0)
    for pair in pairs:
        assert len(set(pair.first)) == len(set(pair.second)) == 1
        assert (pair.first[0] != pair.second[0]) == pair.label


def test_random_segments_of_two_documents_are_the_other_one():
    pairs = build_pairs(make_corpus([9, 3]), 32, SPECIAL, "next", seed=0, epoch=0)
    assert all((pair.first[0] != pair.second[0]) == pair.label for pair in pairs)


@pytest.mark.parametrize("pair_type", ["next", "order"])
def test_segments_that_belong_together_follow_each_other(corpus, pair_type, monkeypatch):
    monkeypatch.setattr(SHORT_SHARE, 0)
    pairs = build_pairs(corpus, 400, SPECIAL, pair_type, seed=3, epoch=0)  # so long that hardly any is truncated
    edges = set(corpus.sentences.tolist())
    whole = apart = 0
    for first, first_end, second, second_end, label in pairs.bounds.tolist():
        if pair_type == "next" and label:
            continue
        before, after = (second_end, first) if label else (first_end, second)
        assert corpus.tokens[first] == corpus.tokens[second]
        if {first, first_end, second, second_end} <= edges:
            whole += 1
            apart += before < after  # one of the two was shortened, and it happened to be by whole sentences
            assert before <= after
    assert whole > 20 and apart <= (0.05 * whole if pair_type == "order" else 0)


def test_segments_of_truncated_pairs_keep_their_order(corpus):
    for first, first_end, second, second_end, label in build_pairs(corpus, 24, 3, "order", 3, 0).bounds.tolist():
        assert second_end <= first if label else first_end <= second


def test_the_longer_segment_is_truncated_at_either_end():
    corpus = make_corpus([2] * 2000, least=30, most=31)
    bounds = build_pairs(corpus, 43, SPECIAL, "order", seed=0, epoch=0).bounds
    assert set(np.unique(bounds[:, 1] - bounds[:, 0])) == set(np.unique(bounds[:, 3] - bounds[:, 2])) == {20}
    front = bounds[:, 0] % 30
    assert front.min() >= 0 and front.max() <= 10 and abs(front.mean() - 5) < 0.3
    corpus.sentences[1::2] = corpus.sentences[:-1:2] + 5  # a short sentence beside a long one stays whole
    bounds = build_pairs(corpus, 43, SPECIAL, "next", seed=0, epoch=0).bounds
    true = bounds[bounds[:, 4] == 0]
    assert (true[:, 1] - true[:, 0] == 5).all() and (true[:, 3] - true[:, 2] == 35).all()


@pytest.mark.parametrize("pair_type", ["next", "order"])
def test_every_sentence_of_a_longer_document_is_read(pair_type, monkeypatch):
    monkeypatch.setattr(SHORT_SHARE, 0)
    corpus = make_corpus([5, 2, 3, 7, 4, 11], least=4, most=5)
    read = set()
    for epoch in range(20):
        for first, first_end, second, second_end, label in build_pairs(corpus, 90, 3, pair_type, 0, epoch).bounds:
            read |= {*range(first, first_end)} | (
                {*range(second, second_end)} if pair_type == "order" or not label else set()
            )
    assert read == set(range(len(corpus.tokens)))


@pytest.mark.parametrize("pair_type", ["next", "order"])
def test_a_document_of_one_sentence_is_in_no_pair(pair_type):
    corpus = make_corpus([1, 6, 1, 8] * 50)
    alone = set(np.flatnonzero(np.diff(corpus.documents) == 1))
    pairs = build_pairs(corpus, 40, SPECIAL, pair_type, seed=0, epoch=0)
    assert not alone & {pair.first[0] for pair in pairs} and not alone & {pair.second[0] for pair in pairs}
    assert abs(pairs.bounds[:, 4].mean() - 0.5) < 0.15


@pytest.mark.parametrize("length", [48, 256])
def test_lengths_and_position_in_the_document_do_not_tell_a_random_segment(length):
    corpus = make_corpus(np.random.default_rng(2).geometric(0.12, 1500).tolist(), most=40)
    bounds = build_pairs(corpus, length, SPECIAL, "next", seed=0, epoch=0).bounds
    document = np.searchsorted(corpus.sentences[corpus.documents], bounds[:, 2], side="right") - 1
    begin, end = (corpus.sentences[corpus.documents[document + more]] for more in (0, 1))
    segments = np.diff(bounds[:, :4])[:, ::2]
    position = np.column_stack([bounds[:, 2] - begin, end - bounds[:, 3]])
    chance = max(bounds[:, 4].mean(), 1 - bounds[:, 4].mean())
    for blind in (segments, position):
        tree = DecisionTreeClassifier(max_depth=6, random_state=0)
        accuracy = cross_val_score(tree, blind, bounds[:, 4], cv=5).mean()
        assert accuracy < chance + 3 * 0.5 / len(bounds) ** 0.5


@pytest.mark.parametrize("longest", [0, 1])
def test_lengths_do_not_tell_whether_segments_are_swapped(longest):
    corpus = make_corpus([2] * 6000, least=5, most=40)
    lengths = np.diff(corpus.sentences).reshape(-1, 2)
    lengths[::4] = np.sort(lengths[::4], axis=1)[:, :: 2 * longest - 1]  # a hint, in five of eight documents
    corpus.sentences[1:] = lengths.ravel().cumsum()
    epochs = []
    for epoch in range(2):
        bounds = build_pairs(corpus, 90, SPECIAL, "order", seed=0, epoch=epoch).bounds
        segments = np.diff(bounds[:, :4])[:, ::2]
        epochs.append((np.column_stack([segments, segments @ [1, -1]]), bounds[:, 4]))
    tree = DecisionTreeClassifier(max_depth=6, random_state=0).fit(*epochs[0])
    assert tree.score(*epochs[1]) < 0.5 + 4 * 0.5 / 6000**0.5
    assert epochs[0][0][:, :2].sum() > 0.9 * lengths.sum()


def test_random_segments_come_from_anywhere_where_one_document_is_nearly_the_whole_text():
    pairs = build_pairs(make_corpus([2, 3000, 2]), 32, SPECIAL, "next", seed=0, epoch=0)
    assert all((pair.first[0] != pair.second[0]) == pair.label for pair in pairs)
    assert {pair.second[0] for pair in pairs if pair.label and pair.first[0] == 1} == {0, 2}


@pytest.mark.parametrize("pair_type", ["next", "order"])
def test_the_same_key_makes_the_same_pairs_and_another_others(corpus, pair_type):
    one, same, epoch, seed = (
        build_pairs(corpus, 64, SPECIAL, pair_type, *key).bounds.tolist() for key in [(3, 0), (3, 0), (3, 1), (4, 0)]
    )
    assert one == same
    assert one != epoch and one != seed and epoch != seed


def test_a_tenth_of_the_pairs_is_shorter(monkeypatch):
    corpus = make_corpus([800] * 20, least=2, most=4)
    lengths = build_pairs(corpus, 64, SPECIAL, "next", seed=0, epoch=0).lengths
    monkeypatch.setattr(SHORT_SHARE, 0)
    full = build_pairs(corpus, 64, SPECIAL, "next", seed=0, epoch=0).lengths
    assert 0.05 < (lengths < 60).mean() - (full < 60).mean() < 0.12


def test_large_corpora_are_split_in_batches(corpus, monkeypatch):
    monkeypatch.setattr("bertkit.pretraining.sentence_pairs._AT_ONCE", 100)
    pairs = build_pairs(corpus, 64, SPECIAL, "next", seed=3, epoch=0)
    firsts = {pair.first[0] for pair in pairs}
    assert firsts == set(np.flatnonzero(np.diff(corpus.documents) > 1))
    assert (pairs.bounds[:-1, 0] <= pairs.bounds[1:, 1]).all()
    assert all((pair.first[0] != pair.second[0]) == pair.label for pair in pairs)


@pytest.mark.parametrize(
    ("sizes", "pair_type", "words"),
    [([1, 1, 1], "next", "two sentences"), ([1, 1], "order", "two sentences"), ([9, 1], "next", "random segments")],
)
def test_texts_that_have_no_pairs_are_refused(sizes, pair_type, words):
    with pytest.raises(DataError, match=words):
        build_pairs(make_corpus(sizes), 64, SPECIAL, pair_type, seed=0, epoch=0)
