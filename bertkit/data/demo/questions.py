"""The demo rows with questions whose answers are in a context of a few clauses."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from random import Random

from bertkit.data.demo.grammar import Clause, pick_clause, pick_location, sentence
from bertkit.data.demo.texts import changed
from bertkit.recipe import Row

PARTS = ("subject", "object", "location")


def write_question(rng: Random, split: str, unanswerable: float = 0.0, most_others: int = 3) -> Row:
    """Write a context, a question, and the position of its answer, as in SQuAD (Rajpurkar et al. 2016, 2018).

    Args:
        rng: makes every choice.
        split: a question of training has one accepted answer, one of the other splits has one to three.
        unanswerable: share of questions that the context does not answer, since a word differs.
        most_others: the most clauses in the context beside the one that answers.
    """
    it, part = replace(pick_clause(rng), location=pick_location(rng)), rng.choice(PARTS)
    changes = [change for change in ("verb", "subject", "object", "roles") if change != part]
    target = changed(rng, it, rng.choice(changes)) if rng.random() < unanswerable else it
    others = [_other_clause(rng, it) for _ in range(rng.randint(1, most_others))]
    if any(_answers(other, target, part) for other in (others if target == it else [it, *others])):
        # anew with an answer if this one had one: these are refused more often, which would change the share
        return write_question(rng, split, float(target != it), most_others)
    sentences = {clause: sentence(clause if rng.random() < 0.7 else clause.passive()) for clause in [it, *others]}
    context = " ".join(rng.sample(list(sentences.values()), len(sentences)))
    question = sentence(target.question_about(part))
    answers = _find_answers(context, sentences[it], str(getattr(it, part))) if target == it else []
    accepted = dict(answers[: 1 if split == "train" else rng.randint(1, 3)])
    return {
        "id": hashlib.sha256(f"{context} {question}".encode()).hexdigest()[:24],
        "context": context,
        "question": question,
        "answers": {"text": list(accepted), "answer_start": list(accepted.values())},
    }


def _other_clause(rng: Random, it: Clause) -> Clause:
    """Pick another clause; a quarter of them differ from the first only in a word and in the location."""
    if rng.random() < 0.75:
        return pick_clause(rng)
    return replace(changed(rng, it, rng.choice(["subject", "object", "verb", "roles"])), location=pick_location(rng))


def _answers(clause: Clause, target: Clause, part: str) -> bool:
    """Tell whether a clause answers for this part of the target: nouns and verb count, not number, tense, location."""
    same = {"subject": clause.subject.noun == target.subject.noun, "object": clause.object.noun == target.object.noun}
    return clause.verb == target.verb and all(same[name] for name in same if name != part)


def _find_answers(context: str, answer_sentence: str, phrase: str) -> list[tuple[str, int]]:
    """Find a phrase in a sentence of the context, then without its first word, and so on: text and character offset.

    >>> _find_answers("He slept. The nuns chased an old dog.", "The nuns chased an old dog.", "a old dog")
    [('an old dog', 26), ('old dog', 29), ('dog', 33)]
    """
    words, start = sentence(phrase)[:-1].split(), context.index(answer_sentence)
    shorter = [" ".join(words[first:]) for first in range(len(words))]
    # between word boundaries: `prince` does not match in `princess`
    matches = [re.search(rf"\b{words}\b", answer_sentence, flags=re.IGNORECASE) for words in shorter]
    return [(match[0], start + match.start()) for match in matches if match]
