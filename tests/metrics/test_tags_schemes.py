"""Schemes of tags, held against each other, and the most probable valid tags against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.errors import DataError
from bertkit.metrics import tags as entities
from tests.metrics.spans import TYPES, any_tags, rows_of_spans, write_iob1, write_iob2, write_tags

CORRECT = "correct the row"
BIOES = "add --set options.scheme=bioes if they are BIOES"
IOB1 = "add --set options.scheme=iob1"
NONE = "if these are not entity tags, --set options.scheme=none --set metrics=[accuracy,f1_macro]"
NUMBERS = "name the tags in the order of their numbers: --set 'labels=[O, B-PER, I-PER]'"
BROKEN = "correct it, or --set options.scheme=iob2 if the tags are IOB2"


@given(any_tags)
def test_repair_keeps_the_spans_and_breaks_no_rule(tags):
    repaired = entities.repair_tags(tags)
    assert entities.find_spans(repaired) == entities.find_spans(tags) == entities.find_strict_spans(repaired)
    assert entities.find_invalid_tag(repaired) is None
    assert len(repaired) == len(tags)
    assert entities.repair_tags(repaired) == repaired
    if entities.find_invalid_tag(tags) is None:
        assert repaired == tags


@given(any_tags)
def test_the_first_invalid_tag_is_where_repair_changes_something(tags):
    changed = [
        index for index, (one, other) in enumerate(zip(tags, entities.repair_tags(tags), strict=True)) if one != other
    ]
    index = entities.find_invalid_tag(tags)
    assert (index is None) == (not changed)
    assert index is None or index == changed[0]


@given(rows_of_spans())
def test_every_scheme_is_read_back(row):
    spans, count = row
    iob2 = write_iob2(spans, count)
    assert entities.find_spans(iob2) == entities.find_strict_spans(iob2) == spans
    assert entities.to_iob2(iob2, "iob2") == iob2
    assert entities.to_iob2(write_iob1(spans, count), "iob1") == iob2
    for last, single in ("ES", "LU"):
        assert entities.to_iob2(write_tags(spans, count, "B", "I", last, single), "bioes") == iob2


@given(rows_of_spans())
def test_tags_of_every_scheme_are_accepted_and_rewritten(row):
    spans, count = row
    words, iob2 = ["word"] * count, write_iob2(spans, count)
    assert entities.normalize_tags(iob2, words, "auto") == entities.normalize_tags(iob2, words, "iob2") == iob2
    assert entities.normalize_tags(write_iob1(spans, count), words, "iob1") == iob2
    assert entities.normalize_tags(write_tags(spans, count, "B", "I", "E", "S"), words, "bioes") == iob2


@pytest.mark.parametrize(
    ("scheme", "tags", "iob2"),
    [
        ("iob1", "I-PER I-PER O I-PER", "B-PER I-PER O B-PER"),
        ("iob1", "I-PER B-PER I-PER I-LOC", "B-PER B-PER I-PER B-LOC"),
        ("iob1", "B-PER I-LOC O O", "B-PER B-LOC O O"),
        ("bioes", "S-PER B-PER E-PER O", "B-PER B-PER I-PER O"),
        ("bioes", "B-X-Y I-X-Y I-X-Y E-X-Y", "B-X-Y I-X-Y I-X-Y I-X-Y"),
        ("bioes", "U-PER B-LOC L-LOC U-LOC", "B-PER B-LOC I-LOC B-LOC"),
        ("iob2", "B-PER I-PER B-PER O", "B-PER I-PER B-PER O"),
        ("none", "O I-PER B- E-X", "O I-PER B- E-X"),
        ("none", "O B I O", "O B I O"),
        ("auto", "O B I O", "O B I O"),
        ("iob2", "O B I B", "O B-ENTITY I-ENTITY B-ENTITY"),
        ("iob1", "I I B O", "B-ENTITY I-ENTITY B-ENTITY O"),
        ("bioes", "S B E O", "B-ENTITY B-ENTITY I-ENTITY O"),
        ("auto", "NOUN VERB PUNCT O", "NOUN VERB PUNCT O"),
        ("auto", "B-PER I-PER O O", "B-PER I-PER O O"),
    ],
)
def test_tags_as_they_are_read(scheme, tags, iob2):
    assert entities.normalize_tags(tags.split(), ["word"] * 4, scheme) == iob2.split()


@given(st.lists(st.sampled_from(["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in TYPES[:2])]), max_size=7))
def test_tags_are_bioes_just_where_their_entities_are_written_so(tags):
    spans = entities.find_spans(entities.to_iob2(tags, "bioes"))
    is_valid = write_tags(spans, len(tags), "B", "I", "E", "S") == tags
    index = entities.find_invalid_tag(tags, "bioes")
    assert (index is None) == is_valid
    if index is not None:  # what is before it can still become valid
        assert entities.find_invalid_tag([*tags[:index], None], "bioes") is None


@given(st.sampled_from(["iob2", "bioes"]), rows_of_spans(), st.data())
def test_beside_an_unlabelled_word_any_tag_is_allowed(scheme, row, data):
    spans, count = row
    tags = write_tags(spans, count, *("BIES" if scheme == "bioes" else "BIIB"))
    unlabelled = data.draw(st.sets(st.integers(0, count))) if count else set()
    tagged = [None if index in unlabelled else tag for index, tag in enumerate(tags)]
    assert entities.find_invalid_tag(tagged, scheme) is None
    expected = [None if index in unlabelled else tag for index, tag in enumerate(write_iob2(spans, count))]
    assert entities.normalize_tags(tagged, ["word"] * count, scheme) == expected


def test_an_unlabelled_word_stays_one():
    assert entities.normalize_tags([None, "B-PER", None], ["a", "b", "c"], "iob2") == [None, "B-PER", None]
    assert entities.normalize_tags([None, "I-PER", "I-PER"], ["a", "b", "c"], "iob1") == [None, "B-PER", "I-PER"]
    assert entities.normalize_tags([None, "NOUN"], ["a", "b"], "auto") == [None, "NOUN"]


def write(tag):
    return f"write {tag}: the prefix belongs before the type"


def fault(number, what, remedy):
    word = ["EU", "rejects", "calls"][number - 1]
    return f"word {number} {word!r}: {what} (column 'tags') - {remedy}"


@pytest.mark.parametrize(
    ("scheme", "tags", "message"),
    [
        ("iob2", "O X-PER O", fault(2, "the tag 'X-PER' is not an entity tag", NONE)),
        ("iob1", "O X-PER O", fault(2, "the tag 'X-PER' is not an entity tag", NONE)),
        ("bioes", "O PER O", fault(2, "the tag 'PER' is not an entity tag", NONE)),
        ("iob2", "O PER-B O", fault(2, "the tag 'PER-B' is not an entity tag", write("B-PER"))),
        ("iob1", "DRUG_I O O", fault(1, "the tag 'DRUG_I' is not an entity tag", write("I-DRUG"))),
        ("bioes", "S_PER O O", fault(1, "the tag 'S_PER' is not an entity tag", write("S-PER"))),
        ("iob2", "O 1 O", fault(2, "the tag '1' is a number", NUMBERS)),
        ("auto", "B- O O", fault(1, "the tag 'B-' has no type", CORRECT)),
        ("iob2", "O O I-", fault(3, "the tag 'I-' has no type", CORRECT)),
        ("bioes", "O S- O", fault(2, "the tag 'S-' has no type", CORRECT)),
        ("auto", "O I-PER O", fault(2, "I-PER after O is not IOB2", IOB1)),
        ("iob2", "B-PER I-LOC O", fault(2, "I-LOC after B-PER is not IOB2", IOB1)),
        ("auto", "I-PER O O", fault(1, "I-PER at the beginning is not IOB2", IOB1)),
        ("auto", "B-PER I-PER I-LOC", fault(3, "I-LOC after I-PER is not IOB2", IOB1)),
        ("auto", "B-PER O I-PER", fault(3, "I-PER after O is not IOB2", IOB1)),
        ("auto", "B-PER E-PER O", fault(2, "the tag 'E-PER' is not IOB2", BIOES)),
        ("iob2", "S-PER B-PER I-PER", fault(1, "the tag 'S-PER' is not IOB2", BIOES)),
        ("iob1", "I-PER O U-LOC", fault(3, "the tag 'U-LOC' is not IOB1", BIOES)),
        ("iob2", "O b-per O", fault(2, "the tag 'b-per' is not an entity tag", NONE)),
        ("iob2", "NOUN O O", fault(1, "the tag 'NOUN' is not an entity tag", NONE)),
        ("bioes", "O I-PER E-PER", fault(2, "I-PER after O is not BIOES", BROKEN)),
        ("bioes", "S-PER E-PER O", fault(2, "E-PER after S-PER is not BIOES", BROKEN)),
        ("bioes", "B-PER E-LOC O", fault(2, "E-LOC after B-PER is not BIOES", BROKEN)),
        ("bioes", "S-PER B-PER O", fault(3, "O after B-PER is not BIOES", BROKEN)),
        ("bioes", "B-PER I-PER I-PER", fault(3, "I-PER at the end is not BIOES", BROKEN)),
        ("bioes", "B-PER L-PER B-LOC", fault(3, "B-LOC at the end is not BIOES", BROKEN)),
    ],
)
def test_tags_that_are_refused(scheme, tags, message):
    with pytest.raises(DataError) as caught:
        entities.normalize_tags(tags.split(), ["EU", "rejects", "calls"], scheme)
    assert str(caught.value) == message


LABELS = ("O", "B-A", "B-B", "I-A", "I-B")


@st.composite
def label_probabilities(draw):
    """Draw labels in any order, ``O`` or a ``B-`` among them, and probabilities for up to five words."""
    labels = draw(st.lists(st.sampled_from(LABELS), min_size=1, max_size=5, unique=True))
    if all(label.startswith("I-") for label in labels):
        labels = [*labels, "O"][-5:]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return labels, rng.dirichlet(np.ones(len(labels)), draw(st.integers(1, 5)))


def log_probability(probabilities, path):
    return sum(math.log(row[number]) for row, number in zip(probabilities, path, strict=True))


@given(label_probabilities())
@settings(deadline=None)
def test_the_most_probable_valid_tags_are_those_of_brute_force(drawn):
    labels, probabilities = drawn
    path = entities.decode_viterbi(probabilities, labels)
    ways = itertools.product(range(len(labels)), repeat=len(probabilities))
    valid = [way for way in ways if entities.find_invalid_tag([labels[number] for number in way]) is None]
    assert tuple(path) in valid
    assert log_probability(probabilities, path) == pytest.approx(
        max(log_probability(probabilities, way) for way in valid)
    )


@given(st.data(), st.integers(0, 40))
@settings(deadline=None)
def test_the_most_probable_valid_tags_break_no_rule_even_where_a_probability_is_zero(data, count):
    rows = st.lists(st.sampled_from([0.0, 1e-30, 0.5, 1.0]), min_size=5, max_size=5)
    probabilities = np.array(data.draw(st.lists(rows, min_size=count, max_size=count))).reshape(count, 5)
    path = entities.decode_viterbi(probabilities, LABELS)
    assert len(path) == count
    assert entities.find_invalid_tag([LABELS[number] for number in path]) is None


def test_valid_tags_stay_what_is_most_probable():
    probabilities = np.array([[0.1, 0.9, 0, 0, 0], [0.2, 0.1, 0.1, 0.5, 0.1]])
    assert entities.decode_viterbi(probabilities, LABELS) == [1, 3]
    assert entities.decode_viterbi(np.zeros((0, 5)), LABELS) == []
    assert entities.decode_viterbi(np.array([[0.3, 0.7]]), ["I-A", "I-B"]) == [1]
