"""The demo rows with questions whose answers stand in a context of a few clauses."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from random import Random

from bertkit.demo.grammar import Clause, pick_clause, pick_place, sentence
from bertkit.demo.texts import changed
from bertkit.recipe import Row

PARTS = ("subject", "object", "place")
"""What is asked about."""


def write_question(rng: Random, split: str, unanswerable: float = 0.0) -> Row:
    """Write a context, a question, and where its answer stands, as SQuAD has them (Rajpurkar et al. 2016, 2018).

    Args:
        rng: what every choice is made with.
        split: training has one accepted answer to a question, the other splits have one to three.
        unanswerable: the share of questions that the context does not answer; like another one but for a word.
    """
    it, part = replace(pick_clause(rng), place=pick_place(rng)), rng.choice(PARTS)
    changes = [change for change in ("verb", "subject", "object", "roles") if change != part]
    asked = changed(rng, it, rng.choice(changes)) if rng.random() < unanswerable else it
    others = [_other_clause(rng, it) for _ in range(rng.randint(1, 4))]
    if any(_answers(other, asked, part) for other in (others if asked == it else [it, *others])):
        # with the same end: questions with an answer are refused more often, which would change the share
        return write_question(rng, split, float(asked != it))
    told = {clause: sentence(clause if rng.random() < 0.7 else clause.passive()) for clause in [it, *others]}
    context = " ".join(rng.sample(list(told.values()), len(told)))
    question = sentence(asked.question_about(part))
    answers = _find_answers(context, told[it], str(getattr(it, part))) if asked == it else []
    kept = dict(answers[: 1 if split == "train" else rng.randint(1, 3)])
    return {
        "id": hashlib.sha256(f"{context} {question}".encode()).hexdigest()[:24],
        "context": context,
        "question": question,
        "answers": {"text": list(kept), "answer_start": list(kept.values())},
    }


def _other_clause(rng: Random, it: Clause) -> Clause:
    """Pick another clause, in a quarter of the cases one that differs from the first in a word and in its place."""
    if rng.random() < 0.75:
        return pick_clause(rng)
    return replace(changed(rng, it, rng.choice(["subject", "object", "verb", "roles"])), place=pick_place(rng))


def _answers(told: Clause, asked: Clause, part: str) -> bool:
    """Is it told by the nouns and the verb what is asked? Number, tense and place do not make it something else."""
    same = {"subject": told.subject.noun == asked.subject.noun, "object": told.object.noun == asked.object.noun}
    return told.verb == asked.verb and all(same[other] for other in same if other != part)


def _find_answers(context: str, told: str, phrase: str) -> list[tuple[str, int]]:
    """Find a phrase in what is told; then what it is without its first word, then without its first two.

    >>> _find_answers("He slept. The nuns chased an old dog.", "The nuns chased an old dog.", "a old dog")
    [('an old dog', 26), ('old dog', 29), ('dog', 33)]
    """
    words, start = sentence(phrase)[:-1].split(), context.index(told)
    shorter = [" ".join(words[first:]) for first in range(len(words))]
    # between word boundaries: a prince is not found in a princess
    found = [re.search(rf"\b{words}\b", told, flags=re.IGNORECASE) for words in shorter]
    return [(match[0], start + match.start()) for match in found if match]
