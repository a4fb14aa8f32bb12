"""Entities as tags, held against seqeval, against conlleval's counting written out, and against brute force."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB2, Entities

from bertkit.errors import DataError
from bertkit.metrics import entities

TYPES = ["PER", "LOC", "X-Y"]
TAGS = ["O", *(prefix + kind for prefix in ("B-", "I-") for kind in TYPES)]
CORRECT = "correct the row"
BIOES = "--set options.scheme=bioes if they are BIOES"
IOB1 = "--set options.scheme=iob1 reads such tags"
NONE = "for tags that are no entities --set options.scheme=none --set metrics=[accuracy,f1_macro]"
BROKEN = "correct it, or --set options.scheme=iob2 if that is what the tags are"

any_tags = st.lists(st.sampled_from(TAGS), max_size=12)
pairs_of_tags = st.lists(st.sampled_from(TAGS) | st.just("O"), max_size=12).flatmap(
    lambda gold: st.tuples(st.just(gold), st.lists(st.sampled_from(TAGS), min_size=len(gold), max_size=len(gold)))
)


def seqeval_spans(tags):
    return [(kind, start, end + 1) for kind, start, end in get_entities(tags)]


@given(any_tags)
def test_spans_are_those_of_seqeval(tags):
    assert entities.find_spans(tags) == seqeval_spans(tags)


@given(any_tags)
@settings(deadline=None)
def test_strict_spans_are_those_of_seqeval_in_strict_mode(tags):
    found = Entities([tags], IOB2).entities[0]
    assert entities.find_strict_spans(tags) == [(each.tag, each.start, each.end) for each in found]


def chunk_begins(before, tag):
    """Tell whether a chunk begins at `tag`, as conlleval reads tags of any quality."""
    return tag != "O" and (tag[0] == "B" or before == "O" or before[2:] != tag[2:])


def chunk_ends(before, tag):
    """Tell whether a chunk ended just before `tag`."""
    return before != "O" and (tag == "O" or tag[0] == "B" or before[2:] != tag[2:])


def count_chunks(gold, predicted):
    """Count (right, gold, predicted) chunks in one walk, as conlleval.pl does: both must begin and end together."""
    right = wanted = named = 0
    both_open = False
    before_gold = before_found = "O"
    for gold_tag, found_tag in zip([*gold, "O"], [*predicted, "O"], strict=True):
        gold_ends, found_ends = chunk_ends(before_gold, gold_tag), chunk_ends(before_found, found_tag)
        if both_open and (gold_ends or found_ends):
            right += gold_ends and found_ends
            both_open = False
        gold_begins, found_begins = chunk_begins(before_gold, gold_tag), chunk_begins(before_found, found_tag)
        wanted, named = wanted + gold_begins, named + found_begins
        if gold_begins and found_begins and gold_tag[2:] == found_tag[2:]:
            both_open = True
        before_gold, before_found = gold_tag, found_tag
    return right, wanted, named


@given(st.lists(pairs_of_tags, min_size=1, max_size=4))
@settings(deadline=None)
def test_scores_are_those_of_conlleval(rows):
    right, gold, named = np.sum([count_chunks(*row) for row in rows], axis=0)
    spans = [(entities.find_spans(one), entities.find_spans(other)) for one, other in rows]
    counts = entities.count_spans(spans, TYPES)
    assert counts.sum(axis=(0, 1)).tolist() == [right, gold, named]
    found = entities.ratios(counts.sum(axis=(0, 1)))
    precision, recall = right / named if named else 0.0, right / gold if gold else 0.0
    assert found["precision"] == pytest.approx(precision)
    assert found["recall"] == pytest.approx(recall)
    assert found["f1"] == pytest.approx(2 * precision * recall / (precision + recall) if right else 0.0)


def test_scores_of_an_example_counted_by_hand():
    gold = ["B-PER", "I-PER", "O", "B-LOC", "I-LOC", "O", "B-PER"]
    predicted = ["B-PER", "I-PER", "O", "B-LOC", "O", "B-LOC", "B-PER"]
    assert count_chunks(gold, predicted) == (2, 3, 4)
    counts = entities.count_spans([(entities.find_spans(gold), entities.find_spans(predicted))], ["PER", "LOC"])
    assert counts.tolist() == [[[2, 2, 2], [0, 1, 2]]]
    table = entities.score_table("type", ["PER", "LOC", "ORG"], np.pad(counts, ((0, 0), (0, 1), (0, 0))))
    assert [(each["type"], each["f1"], each["gold"]) for each in table] == [("PER", 1.0, 2), ("LOC", 0.0, 1)]


@given(any_tags)
def test_repair_keeps_the_spans_and_breaks_no_rule(tags):
    repaired = entities.repair(tags)
    assert entities.find_spans(repaired) == entities.find_spans(tags) == entities.find_strict_spans(repaired)
    assert entities.first_fault(repaired) is None
    assert len(repaired) == len(tags)
    assert entities.repair(repaired) == repaired
    if entities.first_fault(tags) is None:
        assert repaired == tags


@given(any_tags)
def test_the_first_fault_is_where_repair_changes_something(tags):
    changed = [
        place for place, (one, other) in enumerate(zip(tags, entities.repair(tags), strict=True)) if one != other
    ]
    place = entities.first_fault(tags)
    assert (place is None) == (not changed)
    assert place is None or place == changed[0]


def write_tags(spans, count, first, inside, last, single):
    """Write spans with the prefixes of a scheme."""
    tags = ["O"] * count
    for kind, start, end in spans:
        prefixes = [single] if end - start == 1 else [first, *[inside] * (end - start - 2), last]
        tags[start:end] = [f"{prefix}-{kind}" for prefix in prefixes]
    return tags


def write_iob2(spans, count):
    return write_tags(spans, count, "B", "I", "I", "B")


def write_iob1(spans, count):
    """Write ``B-`` only where an entity touches one of its own type."""
    tags = write_tags(spans, count, "I", "I", "I", "I")
    ends = {(kind, end) for kind, _, end in spans}
    for kind, start, _ in spans:
        if (kind, start) in ends:
            tags[start] = f"B-{kind}"
    return tags


@st.composite
def rows_of_spans(draw):
    spans, place = [], 0
    for kind, gap, size in draw(st.lists(st.tuples(st.sampled_from(TYPES), st.integers(0, 2), st.integers(1, 4)))):
        spans.append((kind, place + gap, place + gap + size))
        place += gap + size
    return spans, place + draw(st.integers(0, 2))


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
    assert entities.read_tags(iob2, words, "auto") == entities.read_tags(iob2, words, "iob2") == iob2
    assert entities.read_tags(write_iob1(spans, count), words, "iob1") == iob2
    assert entities.read_tags(write_tags(spans, count, "B", "I", "E", "S"), words, "bioes") == iob2


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
        ("auto", "NOUN VERB PUNCT O", "NOUN VERB PUNCT O"),
        ("auto", "B-PER I-PER O O", "B-PER I-PER O O"),
    ],
)
def test_tags_as_they_are_read(scheme, tags, iob2):
    assert entities.read_tags(tags.split(), ["word"] * 4, scheme) == iob2.split()


@given(st.lists(st.sampled_from(["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in TYPES[:2])]), max_size=7))
def test_tags_are_bioes_just_where_their_entities_are_written_so(tags):
    spans = entities.find_spans(entities.to_iob2(tags, "bioes"))
    is_valid = write_tags(spans, len(tags), "B", "I", "E", "S") == tags
    place = entities.first_fault(tags, "bioes")
    assert (place is None) == is_valid
    if place is not None:  # what is before it can still become valid
        assert entities.first_fault([*tags[:place], None], "bioes") is None


@given(st.sampled_from(["iob2", "bioes"]), rows_of_spans(), st.data())
def test_beside_an_unknown_tag_all_may_stand(scheme, row, data):
    spans, count = row
    tags = write_tags(spans, count, *("BIES" if scheme == "bioes" else "BIIB"))
    unknown = data.draw(st.sets(st.integers(0, count))) if count else set()
    some = [None if place in unknown else tag for place, tag in enumerate(tags)]
    assert entities.first_fault(some, scheme) is None
    expected = [None if place in unknown else tag for place, tag in enumerate(write_iob2(spans, count))]
    assert entities.read_tags(some, ["word"] * count, scheme) == expected


def test_a_tag_that_nobody_knows_stays_one():
    assert entities.read_tags([None, "B-PER", None], ["a", "b", "c"], "iob2") == [None, "B-PER", None]
    assert entities.read_tags([None, "I-PER", "I-PER"], ["a", "b", "c"], "iob1") == [None, "B-PER", "I-PER"]
    assert entities.read_tags([None, "NOUN"], ["a", "b"], "auto") == [None, "NOUN"]


def fault(place, what, remedy):
    word = ["EU", "rejects", "calls"][place - 1]
    return f"word {place} {word!r}: {what} (column 'tags') - {remedy}"


@pytest.mark.parametrize(
    ("scheme", "tags", "message"),
    [
        ("iob2", "O X-PER O", fault(2, "the tag 'X-PER' is no entity tag", NONE)),
        ("iob1", "O X-PER O", fault(2, "the tag 'X-PER' is no entity tag", NONE)),
        ("bioes", "O PER O", fault(2, "the tag 'PER' is no entity tag", NONE)),
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
        ("iob2", "O b-per O", fault(2, "the tag 'b-per' is no entity tag", NONE)),
        ("iob2", "NOUN O O", fault(1, "the tag 'NOUN' is no entity tag", NONE)),
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
        entities.read_tags(tags.split(), ["EU", "rejects", "calls"], scheme)
    assert str(caught.value) == message


LABELS = ("O", "B-A", "B-B", "I-A", "I-B")


@st.composite
def chances_of_labels(draw):
    """Give labels in any order, ``O`` or a ``B-`` among them, and chances for up to five words."""
    labels = draw(st.lists(st.sampled_from(LABELS), min_size=1, max_size=5, unique=True))
    if all(label.startswith("I-") for label in labels):
        labels = [*labels, "O"][-5:]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return labels, rng.dirichlet(np.ones(len(labels)), draw(st.integers(1, 5)))


def log_chance(chances, path):
    return sum(math.log(row[number]) for row, number in zip(chances, path, strict=True))


@given(chances_of_labels())
@settings(deadline=None)
def test_the_most_probable_valid_tags_are_those_of_brute_force(drawn):
    labels, chances = drawn
    path = entities.most_probable_valid(chances, labels)
    ways = itertools.product(range(len(labels)), repeat=len(chances))
    valid = [way for way in ways if entities.first_fault([labels[number] for number in way]) is None]
    assert tuple(path) in valid
    assert log_chance(chances, path) == pytest.approx(max(log_chance(chances, way) for way in valid))


@given(st.data(), st.integers(0, 40))
@settings(deadline=None)
def test_the_most_probable_valid_tags_break_no_rule_even_where_a_chance_is_zero(data, count):
    rows = st.lists(st.sampled_from([0.0, 1e-30, 0.5, 1.0]), min_size=5, max_size=5)
    chances = np.array(data.draw(st.lists(rows, min_size=count, max_size=count))).reshape(count, 5)
    path = entities.most_probable_valid(chances, LABELS)
    assert len(path) == count
    assert entities.first_fault([LABELS[number] for number in path]) is None


def test_valid_tags_stay_what_is_most_probable():
    chances = np.array([[0.1, 0.9, 0, 0, 0], [0.2, 0.1, 0.1, 0.5, 0.1]])
    assert entities.most_probable_valid(chances, LABELS) == [1, 3]
    assert entities.most_probable_valid(np.zeros((0, 5)), LABELS) == []
    assert entities.most_probable_valid(np.array([[0.3, 0.7]]), ["I-A", "I-B"]) == [1]


@given(rows_of_spans(), rows_of_spans())
def test_every_entity_is_counted_once(gold_row, predicted_row):
    gold, predicted = gold_row[0], predicted_row[0]
    counts = entities.sort_errors(gold, predicted)
    assert set(counts) <= set(entities.ERRORS)
    assert all(counts.values())
    met = counts["right"] + counts["wrong type"] + counts["wrong boundary"] + counts["wrong both"]
    assert met + counts["missed"] == len(gold)
    assert met + counts["invented"] == len(predicted)
    assert counts["right"] == len(set(gold) & set(predicted))


@pytest.mark.parametrize(
    ("gold", "predicted", "counts"),
    [
        ([("A", 0, 2)], [("A", 0, 2)], {"right": 1}),
        ([("A", 0, 2)], [("B", 0, 2)], {"wrong type": 1}),
        ([("A", 0, 2)], [("A", 1, 3)], {"wrong boundary": 1}),
        ([("A", 0, 2)], [("B", 1, 3)], {"wrong both": 1}),
        ([("A", 0, 2)], [("A", 2, 3)], {"missed": 1, "invented": 1}),
        ([("A", 0, 4)], [("A", 0, 2), ("A", 2, 4)], {"wrong boundary": 1, "invented": 1}),
        ([("A", 0, 2), ("A", 2, 4)], [("A", 0, 4)], {"wrong boundary": 1, "missed": 1}),
        ([("A", 0, 1), ("B", 1, 2)], [("B", 0, 2)], {"wrong boundary": 1, "missed": 1}),
        ([], [], {}),
    ],
)
def test_what_becomes_of_entities(gold, predicted, counts):
    assert entities.sort_errors(gold, predicted) == Counter(counts)
