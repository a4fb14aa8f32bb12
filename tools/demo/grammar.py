"""A small English grammar for clauses, questions about them, and ungrammatical sentences.

All choices come from the `random.Random` that is passed in, so equal seeds give equal sentences.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

Row = dict[str, Any]
"""Column -> value."""


@cache
def templates() -> Any:
    """Read the tables of ``templates.yaml``; comments in the file describe them."""
    return yaml.safe_load(Path(__file__).with_name("templates.yaml").read_text(encoding="utf-8"))


_WORDS = templates()["words"]
CATEGORIES: dict[str, list[str]] = _WORDS["nouns"]
CATEGORY_OF = {noun: category for category, nouns in CATEGORIES.items() for noun in nouns}
PEOPLE = ("man", "woman", "person")
ANIMATE = (*PEOPLE, "animal")
THINGS = ("fruit", "vehicle", "instrument", "toy")
TRANSITIVE, ADJECTIVES, MOODS = (dict[str, str](_WORDS[kind]) for kind in ("transitive", "adjectives", "moods"))
SYNONYMS = TRANSITIVE | ADJECTIVES | MOODS
DETERMINERS = {False: ("the", "a", "this", "that"), True: ("the", "these", "those", "some", "many")}
"""Whether the noun is plural -> its determiners."""
PRONOUNS = {"man": ("he", "him", "himself"), "woman": ("she", "her", "herself")}


def join(*phrases: object) -> str:
    """Join the phrases that are not empty with spaces."""
    return " ".join(text for text in map(str, phrases) if text)


def sentence(*phrases: object) -> str:
    """Join phrases to a sentence.

    >>> sentence("was a", "old dog", "", "asleep", "?"), sentence("he waited")
    ('Was an old dog asleep?', 'He waited.')
    """
    text = re.sub(r"\ba (?=[aeiou])", "an ", join(*phrases)).replace(" ?", "?").replace(" ,", ",")
    return text[0].upper() + text[1:] + ("" if text.endswith("?") else ".")


def get_split(text: str) -> str:
    """Return the split of a text, which its checksum decides: three of five texts are for training.

    >>> get_split("The dog slept."), get_split("The dogs slept.")
    ('train', 'test')
    """
    return ("validation", "test", "train", "train", "train")[zlib.crc32(text.encode()) % 5]


def with_s(word: str) -> str:
    """Add the s of a plural noun, or of a verb in the third person.

    >>> [with_s(word) for word in ("carry", "waitress", "toy", "dog")]
    ['carries', 'waitresses', 'toys', 'dogs']
    """
    if re.search("[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "sh", "ch", "x")) else "s")


def past_of(verb: str) -> str:
    """Return the past tense of a verb, which is also the participle of every verb in TRANSITIVE."""
    if re.search("[^aeiou]y$", verb):
        return verb[:-1] + "ied"
    return _WORDS["pasts"].get(verb) or verb + ("d" if verb.endswith("e") else "ed")


def tensed(verb: str, past: bool, plural: bool) -> str:
    """Return the form of a verb after a subject, of the irregular `be` and `do` too."""
    if verb == "be":
        return ("were" if plural else "was") if past else ("are" if plural else "is")
    if verb == "do":
        return "did" if past else ("do" if plural else "does")
    return past_of(verb) if past else (verb if plural else with_s(verb))


@dataclass(frozen=True)
class Phrase:
    """A noun phrase: determiner, adjective, noun, and what follows the noun."""

    noun: str
    plural: bool = False
    determiner: str = "the"
    adjective: str = ""
    tail: str = ""

    def __str__(self) -> str:
        """Write its words."""
        noun = (_WORDS["plurals"].get(self.noun) or with_s(self.noun)) if self.plural else self.noun
        return join(self.determiner, self.adjective, noun, self.tail)

    @property
    def category(self) -> str:
        """The category of the noun: `man`, `toy`, ..."""
        return CATEGORY_OF.get(self.noun, self.noun)


@dataclass(frozen=True)
class Clause:
    """A statement: subject, verb and object, maybe with a location."""

    subject: Phrase
    verb: str
    object: Phrase
    location: str = ""
    past: bool = True
    negated: bool = False

    def __str__(self) -> str:
        """Write its words in the active voice."""
        if self.negated:
            return join(self.subject, self.do, "not", self.verb, self.object, self.location)
        return join(self.subject, tensed(self.verb, self.past, self.subject.plural), self.object, self.location)

    @property
    def do(self) -> str:
        """The form of `do` that goes with the subject."""
        return tensed("do", self.past, self.subject.plural)

    @property
    def be(self) -> str:
        """The form of `be` that goes with the object."""
        return tensed("be", self.past, self.object.plural)

    def passive(self) -> str:
        """Write its words in the passive voice."""
        no = "not" if self.negated else ""
        return join(self.object, self.be, no, past_of(self.verb), "by", self.subject, self.location)

    def question(self) -> str:
        """Write the question whether it is so."""
        return join(self.do, self.subject, self.verb, self.object, self.location, "?")

    def passive_question(self) -> str:
        """Write the question whether it is so, in the passive voice."""
        return join(self.be, self.object, past_of(self.verb), "by", self.subject, self.location, "?")

    def question_about(self, part: str) -> str:
        """Write the question for its `subject`, `object` or `location`."""
        if part == "subject":
            who = "who" if self.subject.category in ANIMATE else "what"
            return join(who, tensed(self.verb, self.past, False), self.object, self.location, "?")
        if part == "object":
            whom = "who" if self.object.category in ANIMATE else "what"
            return join(whom, self.do, self.subject, self.verb, self.location, "?")
        return join("where", self.do, self.subject, self.verb, self.object, "?")


def pick_noun(rng: Random, categories: tuple[str, ...] = (*ANIMATE, *THINGS), but: str = "") -> str:
    """Pick a noun of one of the categories, except `but`."""
    return rng.choice([noun for noun in CATEGORIES[rng.choice(categories)] if noun != but])


def pick_phrase(rng: Random, categories: tuple[str, ...] = (*ANIMATE, *THINGS), but: str = "") -> Phrase:
    """Pick a noun phrase; two in five have an adjective."""
    noun, plural = pick_noun(rng, categories, but), rng.random() < 0.5
    adjectives = ADJECTIVES | MOODS if CATEGORY_OF[noun] in ANIMATE else ADJECTIVES
    adjective = rng.choice(list(adjectives)) if rng.random() < 0.4 else ""
    return Phrase(noun, plural, rng.choice(DETERMINERS[plural]), adjective)


def pick_location(rng: Random, but: str = "") -> str:
    """Pick words for a location, such as `in the garden`."""
    noun = rng.choice([name for name in _WORDS["locations"] if name not in but])
    return f"{rng.choice(['in', 'near', 'behind'])} the {noun}"


def pick_clause(rng: Random, categories: tuple[str, ...] = ANIMATE) -> Clause:
    """Pick a clause whose subject has one of the categories."""
    subject = pick_phrase(rng, categories)
    thing = pick_phrase(rng, but=subject.noun)
    location = pick_location(rng) if rng.random() < 0.5 else ""
    return Clause(subject, rng.choice(list(TRANSITIVE)), thing, location, past=rng.random() < 0.7)


def minimal_pair(rng: Random, name: str) -> tuple[str, str]:
    """Write an acceptable sentence, and the same sentence with one of the `breaks`."""
    before, right, wrong, after = re.split(r"[\[|\]]", templates()["breaks"][name])
    words = fill_slots(rng)
    good, bad = (f"{before}{middle}{after}".replace("?", " ?").format_map(words) for middle in (right, wrong))
    return sentence(*good.split()), sentence(*bad.split())


def fill_slots(rng: Random) -> dict[str, object]:
    """Choose a phrase, or its words, for every slot of a template."""
    clause, sleep, location = pick_clause(rng), rng.choice(_WORDS["intransitive"]), pick_location(rng)
    plural, king, queen = clause.subject.plural, *rng.sample(list(PRONOUNS), 2)
    these = replace(clause.subject, determiner=rng.choice(["these", "those"] if plural else ["a", "this", "that"]))
    he, him, himself = PRONOUNS[king]
    return {
        "who": clause.subject,
        "whom": clause.object,
        "other": pick_phrase(rng, ANIMATE),
        "person": pick_phrase(rng, PEOPLE),
        "thing": pick_phrase(rng, THINGS),
        "these": these,
        "these*": replace(these, plural=not plural),
        "this": rng.choice(["the", "this", "that"]),
        "dog": pick_noun(rng, ANIMATE),
        "kite": pick_noun(rng),
        "king": pick_noun(rng, (king,)),
        "queen": pick_noun(rng, (queen,)),
        "he": he,
        "him": him,
        "himself": himself,
        "herself": PRONOUNS[queen][2],
        "find": clause.verb,
        "find+s": with_s(clause.verb),
        "found": past_of(clause.verb),
        "finding": clause.verb.removesuffix("e") + "ing",
        "sleep": sleep,
        "sleep+s": with_s(sleep),
        "sleeps": tensed(sleep, False, plural),
        "sleeps*": tensed(sleep, False, not plural),
        "slept": past_of(sleep),
        "thought": past_of(rng.choice(_WORDS["clausal"])),
        "explained": past_of(rng.choice(_WORDS["telling"])),
        "is": tensed("be", False, clause.object.plural),
        "is*": tensed("be", False, not clause.object.plural),
        "was": tensed("be", True, clause.object.plural),
        "does": tensed("do", False, plural),
        "does*": tensed("do", False, not plural),
        "big": rng.choice(list(ADJECTIVES)),
        "often": rng.choice(_WORDS["adverbs"]),
        "garden": location.split()[-1],
        "in the garden": location,
        "where": rng.choice(["", location]),
    }
