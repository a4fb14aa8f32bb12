"""Demo rows that are texts or pairs of texts: reviews, ungrammatical sentences, paraphrases, inferences."""

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


def reworded(rng: Random, clause: Clause) -> Clause:
    """Replace some of the words by synonyms."""
    return replace(
        clause,
        subject=replace(clause.subject, adjective=_synonym(rng, clause.subject.adjective)),
        object=replace(clause.object, adjective=_synonym(rng, clause.object.adjective)),
        verb=_synonym(rng, clause.verb),
    )


def in_other_words(rng: Random, clause: Clause) -> str:
    """Write the same in other words: synonyms, the passive voice, the location first."""
    clause = reworded(rng, clause)
    if clause.location and rng.random() < 0.3:
        return sentence(clause.location, ",", replace(clause, location=""))
    return sentence(rng.choice([str(clause), clause.passive()]))


def changed(rng: Random, clause: Clause, part: str) -> Clause:
    """Change one part of a clause; `roles` swaps subject and object where the object can act."""
    if part == "roles" and clause.object.category in ANIMATE:
        return replace(clause, subject=clause.object, object=clause.subject)
    if part == "location":
        return replace(clause, location=pick_location(rng, but=clause.location))
    if part == "subject":
        return replace(clause, subject=_renamed(rng, clause.subject))
    if part == "object":
        return replace(clause, object=_renamed(rng, clause.object))
    return replace(clause, verb=rng.choice([verb for verb in TRANSITIVE if verb != clause.verb]))


def _renamed(rng: Random, phrase: Phrase) -> Phrase:
    return replace(phrase, noun=pick_noun(rng, (phrase.category,), but=phrase.noun))


def _same_or_changed(rng: Random, label: str) -> tuple[Clause, Clause]:
    """Pick a clause, and the same or one that differs: in who does it to whom, or in two of its words."""
    clause = pick_clause(rng)
    if not label.startswith("not_"):
        return clause, clause
    if rng.random() < 0.15:
        return clause, changed(rng, clause, "roles")
    second = clause
    for part in rng.sample(["subject", "object", "verb"], 2):
        second = changed(rng, second, part)
    return clause, second


def write_paraphrase(rng: Random, label: str) -> Texts:
    """Write a clause, and the same or a changed one in other words."""
    clause, second = _same_or_changed(rng, label)
    return sentence(clause), in_other_words(rng, second)


def write_pair(rng: Random, _split: str) -> dict[str, str]:
    """Write a clause and the same in other words, as a row."""
    return _paraphrase(rng, pick_clause(rng))


def write_paraphrases(rng: Random, split: str) -> dict[str, str]:
    """Write a clause and a paraphrase as one text, as a row."""
    return {"text": " ".join(write_pair(rng, split).values())}


def write_triple(rng: Random, _split: str) -> dict[str, str]:
    """Write a clause, the same in other words, and one that differs in two words, as a row."""
    clause, second = _same_or_changed(rng, "not_")
    return _paraphrase(rng, clause) | {"negative": in_other_words(rng, second)}


def _paraphrase(rng: Random, clause: Clause) -> dict[str, str]:
    anchor = positive = sentence(clause)
    while positive == anchor:
        positive = in_other_words(rng, clause)
    return {"anchor": anchor, "positive": positive}


def write_duplicate(rng: Random, label: str) -> Texts:
    """Write a question, and the same or a changed one in other words."""
    clause, second = _same_or_changed(rng, label)
    second = reworded(rng, second)
    return sentence(clause.question()), sentence(rng.choice([second.question(), second.passive_question()]))


def write_similarity(rng: Random, grade: str) -> Texts:
    """Write two clauses; the grade is the number of equal parts, of five, and a synonym counts half."""
    clause = pick_clause(rng)
    old, new = rng.sample(list(ADJECTIVES), 2)
    clause = replace(
        clause, location=clause.location or pick_location(rng), subject=replace(clause.subject, adjective=old)
    )
    parts, shared = rng.sample(["subject", "verb", "object", "location", "adjective"], 5), float(grade)
    synonym_part = next(part for part in parts if part in ("verb", "adjective")) if shared % 1 else ""
    parts = [part for part in parts if part != synonym_part][int(shared) :]
    second = clause
    for part in parts:
        if part != "adjective":
            second = changed(rng, second, part)
    adjective = new if "adjective" in parts else SYNONYMS[old] if synonym_part == "adjective" else old
    second = replace(second, subject=replace(second.subject, adjective=adjective))
    if synonym_part == "verb":
        second = replace(second, verb=SYNONYMS[clause.verb])
    return sentence(clause), sentence(rng.choice([str(second), second.passive()]))


def weakened(rng: Random, clause: Clause) -> Clause:
    """Leave out an adjective or the location, or name the category instead of the noun."""
    weaker_clauses = [
        replace(clause, subject=replace(clause.subject, adjective="")),
        replace(clause, object=replace(clause.object, adjective="")),
        replace(clause, location=""),
        replace(clause, subject=replace(clause.subject, noun=clause.subject.category)),
        replace(clause, object=replace(clause.object, noun=clause.object.category)),
    ]
    return rng.choice([weaker for weaker in weaker_clauses if weaker != clause])


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
    clause = replace(pick_clause(rng), location=pick_location(rng))
    missing, *other_parts = rng.sample(["subject", "object", "location"], 3)
    answer = clause if label == "entailment" else changed(rng, clause, rng.choice(["verb", *other_parts]))
    return sentence(clause.question_about(missing)), in_other_words(rng, answer)


def write_pronoun(rng: Random, label: str) -> Texts:
    """Write a pronoun in the first text, and whom it means in the second, rightly or not."""
    gender, other_gender = rng.sample(list(PRONOUNS), 2)
    first, second = Phrase(pick_noun(rng, (gender,))), Phrase(pick_noun(rng, (other_gender,)))
    meant, unmeant = rng.sample([first, second], 2)
    reason = f"{PRONOUNS[meant.category][0]} was {rng.choice(list(MOODS | ADJECTIVES))}"
    named = meant if label == "entailment" else unmeant
    text = join(first, past_of(rng.choice(list(TRANSITIVE))), second, "because", reason)
    return sentence(text), sentence(named, *reason.split()[1:])


TOPICS = [(noun, verb) for noun in CATEGORY_OF for verb in TRANSITIVE]
"""Subject and verb of each topic."""


def write_topic(rng: Random, topic: int) -> Texts:
    """Write a clause about a topic, and the same in other words."""
    noun, verb = TOPICS[topic]
    clause = pick_clause(rng, (CATEGORY_OF[noun],))
    clause = replace(clause, subject=replace(clause.subject, noun=noun), verb=verb)
    return sentence(clause), in_other_words(rng, clause)
