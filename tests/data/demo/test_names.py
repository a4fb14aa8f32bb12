"""Names are tagged in IOB2, and a list of names does not find them."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from bertkit.data.demo.rows import MOST_NAMES, NAME_TAGS
from tests.data.demo.common import most_frequent_tags, rows_of


def test_names_are_tagged_in_iob2():
    counts = Counter()
    for row in rows_of("ner", "train"):
        assert len(row["tokens"]) == len(row["tags"])
        for before, tag in pairwise(["O", *row["tags"]]):
            assert re.fullmatch("O|[BI]-(PER|ORG|LOC|MISC)", tag)
            assert not tag.startswith("I-") or before[1:] == tag[1:], row
        counts[sum(tag.startswith("B-") for tag in row["tags"])] += 1
    assert sorted(counts) == [0, 1, 2, 3, 4]


def test_a_list_of_names_does_not_solve_ner():
    from seqeval.metrics import f1_score

    assert 0.2 < f1_score(*most_frequent_tags("ner")) < 0.7


def test_the_tags_are_those_of_the_set():
    assert {tag for row in rows_of("ner", "train") for tag in row["tags"]} == set(NAME_TAGS)
    assert MOST_NAMES == 4
