"""The demo rows with several ways to go on, one of which fits the context."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from bertkit.data.demo.grammar import (
    MOODS,
    PEOPLE,
    PRONOUNS,
    TRANSITIVE,
    Clause,
    Phrase,
    join,
    past_of,
    pick_clause,
    pick_noun,
    sentence,
    tensed,
)
from bertkit.recipe import Row


def write_continuation(rng: Random, _split: str) -> Row:
    """Write a context, the beginning of what follows, and four ways to go on (like SWAG, Zellers et al. 2018)."""
    it, stem = _introduced(rng)
    endings, label = _write_endings(rng, it, 4)
    return {"context": sentence(it), "stem": stem, "choices": [f"{ending}." for ending in endings], "label": label}


def write_choice(rng: Random, _split: str) -> Row:
    """Write a context and two to five sentences, one of which can follow."""
    it, stem = _introduced(rng)
    endings, label = _write_endings(rng, it, rng.randint(2, 5))
    return {"context": sentence(it), "choices": [f"{stem} {ending}." for ending in endings], "label": label}


def _introduced(rng: Random) -> tuple[Clause, str]:
    """Pick a clause about a man or a woman, or several, and words that mean them."""
    it = replace(pick_clause(rng, ("man", "woman")), past=True, negated=rng.random() < 0.5)
    pronoun = "they" if it.subject.plural else PRONOUNS[it.subject.category][0]
    named = join("the", _noun_of(it.subject))
    return it, rng.choice([pronoun, named, named]).capitalize()


def _write_endings(rng: Random, it: Clause, count: int) -> tuple[list[str], int]:
    """Write ways to go on, and the index of the one that fits; the others break a rule or contradict the context."""
    # no two are of one pair: one of the two would be right whatever the context says
    (right, _), *others = rng.sample(_fitting_and_broken(rng, it), count)
    endings, label = [broken for _, broken in others], rng.randrange(count)
    endings.insert(label, right)
    return endings, label


def _fitting_and_broken(rng: Random, it: Clause) -> list[tuple[str, str]]:
    """Write six ways to go on that fit, each with one that is broken in its reflexive, number, pronoun, ..."""
    plural, thing = it.subject.plural, _noun_of(it.object)
    verb = rng.choice([verb for verb in TRANSITIVE if verb != it.verb])
    himself = "themselves" if plural else PRONOUNS[it.subject.category][2]
    herself = rng.choice([word for word in ("himself", "herself", "themselves") if word != himself])
    him, her = _pronouns(rng, it)
    past, again, mood = past_of(verb), rng.choice(["", "again", "often", "rarely"]), rng.choice(list(MOODS))
    so, not_so = ("never", "really") if it.negated else ("really", "never")
    another = _noun_of(replace(it.object, noun=pick_noun(rng, but=it.object.noun)))
    return [
        (join(past, himself, again), join(past, herself, again)),
        (join(past, him, again), join(past, her, again)),
        (join(tensed("be", True, plural), mood), join(tensed("be", True, not plural), mood)),
        (join(so, past_of(it.verb), "the", thing), join(not_so, past_of(it.verb), "the", thing)),
        (join(past, "the same", thing), join(past, "the same", another)),
        (join("did not", verb, "the", thing), join("did not", past, "the", thing)),
    ]


def _noun_of(phrase: Phrase) -> str:
    return str(phrase).split()[-1]


def _pronouns(rng: Random, it: Clause) -> tuple[str, str]:
    """Choose a pronoun that can mean the object of a clause, and one that cannot."""
    if it.object.plural:
        return "them", rng.choice(["it", "him", "her"])
    if it.object.category in PEOPLE:
        him = [words[1] for category, words in PRONOUNS.items() if it.object.category in (category, "person")]
        return rng.choice(him), rng.choice([word for word in ("him", "her", "it") if word not in him])
    return "it", "them"
