"""Questions have exactly one answer in their context, or none, and the answers are where they say."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from bertkit.data.demo.grammar import TRANSITIVE, past_of, with_s
from bertkit.data.demo.sets import SIZES
from tests.data.demo.common import rows_of, sets_of
from tests.kills import slow_unless

SETS = sets_of("question_answering")
VERBS = {form: verb for verb in TRANSITIVE for form in (verb, with_s(verb), past_of(verb))}


@pytest.mark.parametrize("split", slow_unless(["validation"], SIZES))
@pytest.mark.parametrize("name", SETS)
def test_answers_are_at_their_offsets(name, split):
    rows = rows_of(name, split)
    counts = Counter(len(row["answers"]["text"]) for row in rows)
    for row in rows:
        texts, starts = row["answers"]["text"], row["answers"]["answer_start"]
        assert len(texts) == len(starts) == len(set(texts))
        assert all(row["context"][start:].startswith(text) for text, start in zip(texts, starts, strict=True))
        assert 2 <= row["context"].count(".") <= 5
        assert row["question"].endswith("?")
    assert len({row["id"] for row in rows}) == len(rows)
    assert set(counts) - {0} == ({1} if split == "train" else {1, 2, 3})
    assert counts[0] / len(rows) == pytest.approx(1 / 3 if name == "squad2" else 0, abs=0.065)


def read_clause(text):
    """Read a clause's or a question's subject, verb, object and location; what is asked for is missing."""
    verb, location = "|".join(sorted(VERBS)), r"(?: (?P<location>(?:in|near|behind) the \w+))?[.?]"
    forms = [
        rf"(?P<object>.+) (?:is|are|was|were) (?P<verb>{verb}) by (?P<subject>.+?){location}",
        rf"where (?:do|does|did) (?P<subject>.+) (?P<verb>{verb}) (?P<object>.+?){location}",
        rf"(?:who|what) (?:do|does|did) (?P<subject>.+) (?P<verb>{verb}){location}",
        rf"(?:who|what) (?P<verb>{verb}) (?P<object>.+?){location}",
        rf"(?P<subject>.+?) (?P<verb>{verb}) (?P<object>.+?){location}",
    ]
    parts = next(match for match in (re.fullmatch(form, text.lower()) for form in forms) if match).groupdict()
    return parts | {"verb": VERBS[parts["verb"]]}


@pytest.mark.parametrize("name", SETS)
def test_one_clause_of_the_context_answers_the_question(name):
    for row in rows_of(name, "train"):
        question = read_clause(row["question"])
        missing = next(part for part in ("subject", "object", "location") if not question.get(part))
        given = [part for part in ("subject", "verb", "object") if part != missing]
        clauses = [read_clause(text) for text in re.findall(r"[^.]+\.", row["context"])]
        answers = [
            clause[missing].strip() for clause in clauses if all(clause[p].strip() == question[p] for p in given)
        ]
        assert answers == [text.lower() for text in row["answers"]["text"]], row
