"""The demo rows that are texts or pairs of texts: reviews, broken sentences, paraphrases, inferences."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tools.demo.grammar import (
    ADJECTIVES,
    ANIMATE,
    CATEGORY_OF,
    MOODS,
    PEOPLE,
    PRONOUNS,
    SYNONYMS,
    TRANSITIVE,
    Clause,
    Phrase,
    join,
    minimal_pair,
    past_of,
    pick_clause,
    pick_location,
    pick_noun,
    sentence,
    templates,
)

Texts = tuple[str, ...]


def write_acceptability(rng: Random, label: str) -> Texts:
    """Write a sentence of the grammar, or one with one of the `breaks`."""
    good, broken = minimal_pair(rng, rng.choice(list(templates()["breaks"])))
    return (good if label == "acceptable" else broken,)


_TOPICS, *_WORDS = (templates()["words"][kind] for kind in ("topics", "praise", "blame", "love", "hate"))


def write_review(rng: Random, label: str) -> Texts:
    """Write a review; its words of the other polarity are all negated."""
    good, bad, love, hate = _WORDS if label == "positive" else (_WORDS[turned] for turned in (1, 0, 3, 2))
    film, plot = rng.sample(_TOPICS, 2)
    words = {
        "film": film,
        "plot": plot,
        "good": rng.choice(good),
        "bad": rng.choice(bad),
        "loved": past_of(rng.choice(love)).replace("regreted", "regretted"),
        "hate": rng.choice(hate),
        "we": rng.choice(["we", "they", f"the {pick_noun(rng, ANIMATE[:3])}s"]),
        "very": rng.choice(["", "very", "really", "quite"]),
        "night": rng.choice(["night", "week", "month", "year"]),
    }
    return (sentence(*rng.choice(templates()["reviews"]).format_map(words).split()),)


def _synonym(rng: Random, word: str) -> str:
    return SYNONYMS.get(word, word) if rng.random() < 0.5 else word


def reworded(rng: Random, it: Clause) -> Clause:
    """Replace some of the words by synonyms."""
    return replace(
        it,
        subject=replace(it.subject, adjective=_synonym(rng, it.subject.adjective)),
        object=replace(it.object, adjective=_synonym(rng, it.object.adjective)),
        verb=_synonym(rng, it.verb),
    )


def in_other_words(rng: Random, it: Clause) -> str:
    """Write the same in other words: synonyms, the passive voice, the location first."""
    it = reworded(rng, it)
    if it.location and rng.random() < 0.3:
        return sentence(it.location, ",", replace(it, location=""))
    return sentence(rng.choice([str(it), it.passive()]))


def changed(rng: Random, it: Clause, part: str) -> Clause:
    """Change one part of a clause; `roles` swaps subject and object where the object can act."""
    if part == "roles" and it.object.category in ANIMATE:
        return replace(it, subject=it.object, object=it.subject)
    if part == "location":
        return replace(it, location=pick_location(rng, but=it.location))
    if part == "subject":
        return replace(it, subject=_renamed(rng, it.subject))
    if part == "object":
        return replace(it, object=_renamed(rng, it.object))
    return replace(it, verb=rng.choice([verb for verb in TRANSITIVE if verb != it.verb]))


def _renamed(rng: Random, phrase: Phrase) -> Phrase:
    return replace(phrase, noun=pick_noun(rng, (phrase.category,), but=phrase.noun))


def _same_or_changed(rng: Random, label: str) -> tuple[Clause, Clause]:
    """Pick a clause, and the same or one that differs: in who does it to whom, or in two of its words."""
    it = pick_clause(rng)
    if not label.startswith("not_"):
        return it, it
    if rng.random() < 0.15:
        return it, changed(rng, it, "roles")
    other = it
    for part in rng.sample(["subject", "object", "verb"], 2):
        other = changed(rng, other, part)
    return it, other


def write_paraphrase(rng: Random, label: str) -> Texts:
    """Write a clause, and the same or a changed one in other words."""
    it, other = _same_or_changed(rng, label)
    return sentence(it), in_other_words(rng, other)


def write_pair(rng: Random, _split: str) -> dict[str, str]:
    """Write a clause and the same in other words, as a row."""
    return _say_twice(rng, pick_clause(rng))


def write_two_ways(rng: Random, split: str) -> dict[str, str]:
    """Write a text that says a clause twice, in other words, as a row."""
    return {"text": " ".join(write_pair(rng, split).values())}


def write_triple(rng: Random, _split: str) -> dict[str, str]:
    """Write a clause, the same in other words, and one that differs in two words, as a row."""
    it, other = _same_or_changed(rng, "not_")
    return _say_twice(rng, it) | {"negative": in_other_words(rng, other)}


def _say_twice(rng: Random, it: Clause) -> dict[str, str]:
    anchor = positive = sentence(it)
    while positive == anchor:
        positive = in_other_words(rng, it)
    return {"anchor": anchor, "positive": positive}


def write_duplicate(rng: Random, label: str) -> Texts:
    """Write a question, and the same or a changed one in other words."""
    it, other = _same_or_changed(rng, label)
    other = reworded(rng, other)
    return sentence(it.question()), sentence(rng.choice([other.question(), other.passive_question()]))


def write_similarity(rng: Random, grade: str) -> Texts:
    """Write two clauses that share as many of five parts as the grade says; a synonym is half a point."""
    it = pick_clause(rng)
    old, new = rng.sample(list(ADJECTIVES), 2)
    it = replace(it, location=it.location or pick_location(rng), subject=replace(it.subject, adjective=old))
    parts, shared = rng.sample(["subject", "verb", "object", "location", "adjective"], 5), float(grade)
    alike = next(part for part in parts if part in ("verb", "adjective")) if shared % 1 else ""
    parts = [part for part in parts if part != alike][int(shared) :]
    second = it
    for part in parts:
        if part != "adjective":
            second = changed(rng, second, part)
    adjective = new if "adjective" in parts else SYNONYMS[old] if alike == "adjective" else old
    second = replace(second, subject=replace(second.subject, adjective=adjective))
    if alike == "verb":
        second = replace(second, verb=SYNONYMS[it.verb])
    return sentence(it), sentence(rng.choice([str(second), second.passive()]))


def weakened(rng: Random, it: Clause) -> Clause:
    """Leave out an adjective or the location, or name the category instead of the noun."""
    ways = [
        replace(it, subject=replace(it.subject, adjective="")),
        replace(it, object=replace(it.object, adjective="")),
        replace(it, location=""),
        replace(it, subject=replace(it.subject, noun=it.subject.category)),
        replace(it, object=replace(it.object, noun=it.object.category)),
    ]
    return rng.choice([way for way in ways if way != it])


def write_inference(rng: Random, label: str, categories: tuple[str, ...] = PEOPLE) -> Texts:
    """Write a pair: the special entails the general, and the negated general entails the negated special."""
    special = pick_clause(rng, categories)
    general = weakened(rng, special)
    if negated := rng.random() < 0.3:
        special, general = replace(general, negated=True), replace(special, negated=True)
    if label == "neutral" and rng.random() < 0.5:
        return sentence(general), in_other_words(rng, special)
    if label == "neutral":
        general = replace(changed(rng, changed(rng, general, "verb"), "object"), negated=rng.random() < 0.3)
    if label == "contradiction":
        general = replace(general, negated=not negated)
    return sentence(special), in_other_words(rng, general)


def write_entailment(rng: Random, label: str) -> Texts:
    """Write an inference whose label may also be `not_entailment`."""
    return write_inference(rng, label if label == "entailment" else rng.choice(["neutral", "contradiction"]))


def write_answer(rng: Random, label: str) -> Texts:
    """Write a question for a part of a clause; in a sentence without the answer, another part is changed."""
    it = replace(pick_clause(rng), location=pick_location(rng))
    missing, *others = rng.sample(["subject", "object", "location"], 3)
    clause = it if label == "entailment" else changed(rng, it, rng.choice(["verb", *others]))
    return sentence(it.question_about(missing)), in_other_words(rng, clause)


def write_pronoun(rng: Random, label: str) -> Texts:
    """Write a pronoun in the first text, and whom it means in the second, rightly or not."""
    one, two = rng.sample(list(PRONOUNS), 2)
    first, second = Phrase(pick_noun(rng, (one,))), Phrase(pick_noun(rng, (two,)))
    meant, other = rng.sample([first, second], 2)
    why = f"{PRONOUNS[meant.category][0]} was {rng.choice(list(MOODS | ADJECTIVES))}"
    named = meant if label == "entailment" else other
    text = join(first, past_of(rng.choice(list(TRANSITIVE))), second, "because", why)
    return sentence(text), sentence(named, *why.split()[1:])


TOPICS = [(noun, verb) for noun in CATEGORY_OF for verb in TRANSITIVE]
"""Subject and verb of each topic."""


def write_topic(rng: Random, topic: int) -> Texts:
    """Write a clause about a topic, and the same in other words."""
    noun, verb = TOPICS[topic]
    it = pick_clause(rng, (CATEGORY_OF[noun],))
    it = replace(it, subject=replace(it.subject, noun=noun), verb=verb)
    return sentence(it), in_other_words(rng, it)
