"""Demo rows that are more than one or two texts: tagged words, senses, choices, questions and rankings."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

from tools.demo.grammar import (
    MOODS,
    PEOPLE,
    PRONOUNS,
    TRANSITIVE,
    Clause,
    Phrase,
    Row,
    fill_slots,
    join,
    past_of,
    pick_clause,
    pick_location,
    pick_noun,
    sentence,
    templates,
    tensed,
    with_s,
)
from tools.demo.texts import changed, in_other_words

Tagged = list[tuple[str, str]]
"""Words, each with its tag."""

WORD_CLASSES = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ", "VERB",
)  # fmt: skip
_NOUNS_OR_VERBS, _ANY_NAMES, _NUMBERS = (templates()["words"][kind] for kind in ("nouns_or_verbs", "names", "numbers"))


def write_word_classes(rng: Random, _split: str) -> Row:
    """Write a sentence with word classes; the classes of `park`, `that`, `can`, ... depend on the sentence."""
    choices = templates()["word_classes"]
    tagged = _fill_with_classes(rng, rng.choice(choices))
    if tagged[-1][0] != "?":
        if rng.random() < 0.3:
            link = [(",", "PUNCT"), (rng.choice(["and", "but"]), "CCONJ")]
            tagged += [*link, *_fill_with_classes(rng, rng.choice(choices[:24]))]
        tagged.append((".", "PUNCT"))
    return {"tokens": tidy([word for word, _ in tagged]), "tags": [tag for _, tag in tagged]}


def tidy(words: list[str]) -> list[str]:
    """Correct the words of a sentence: `an` before a vowel, a capital at the beginning.

    >>> tidy(["a", "old", "Dane", "waited", "."])
    ['An', 'old', 'Dane', 'waited', '.']
    """
    following = [*words[1:], ""]
    words = [
        "an" if word == "a" and after[:1].lower() in set("aeiou") else word
        for word, after in zip(words, following, strict=True)
    ]
    return [words[0][0].upper() + words[0][1:], *words[1:]]


def _fill_with_classes(rng: Random, template: str) -> Tagged:
    slots, park = fill_slots(rng), rng.choice(_NOUNS_OR_VERBS)
    who = slots["who"]
    slots |= {
        "park": park,
        "parks": tensed(park, False, isinstance(who, Phrase) and who.plural),
        "walk": rng.choice(_NOUNS_OR_VERBS),
        "walks": with_s(rng.choice(_NOUNS_OR_VERBS)),
        "dogs": with_s(str(slots["dog"])),
        "queens": with_s(str(slots["queen"])),
        "name": rng.choice(_ANY_NAMES),
        "two": rng.choice(_NUMBERS),
        "hoped": rng.choice(["hoped", "wanted", "tried"]),
    }
    tagged: Tagged = []
    for item in template.split():
        word, _, tag = item.partition("/")
        filling = slots[word[1:-1]] if word.startswith("{") else word
        tagged += [(str(filling), tag)] if tag else _classes_of(filling)
    return tagged


def _classes_of(filling: object) -> Tagged:
    """Return the words of a noun phrase, or of a location such as `in the garden`, with their classes."""
    if not isinstance(filling, Phrase):
        return list(zip(str(filling).split(), ("ADP", "DET", "NOUN"), strict=False))
    noun = str(filling).split()[-1]
    many = "ADJ" if filling.determiner == "many" else "DET"
    adjective = [(filling.adjective, "ADJ")] if filling.adjective else []
    return [(filling.determiner, many), *adjective, (noun, "NOUN")]


MAX_NAMES = 4

_KINDS = ("first_names", "family_names", "countries", "peoples")
_FIRST, _SHARED, _COUNTRIES, _PEOPLES = (list[str](templates()["words"][kind]) for kind in _KINDS)


def _person(rng: Random) -> str:
    first, family = rng.choice(_FIRST), rng.choice(_SHARED)
    return rng.choice([first, family, family, f"{first} {family}"])


def _firm(rng: Random) -> str:
    name, partner = rng.sample(_SHARED, 2)
    forms = [name, name, f"{name} & Sons", f"{name} & {partner}", f"{name} Bank", f"{name} Motors"]
    forms += [f"Bank of {name}", f"Bank of {rng.choice(_COUNTRIES)}", f"{rng.choice(_PEOPLES)} Airways"]
    return rng.choice([*forms, f"{rng.choice(_FIRST)} {name} & Sons", "Northwind Bank"])


def _location(rng: Random) -> str:
    name, country = rng.choice(_SHARED), rng.choice(_COUNTRIES)
    return rng.choice([name, name, country, country, f"Lake {name}", f"New {name}", f"{name} Park", "Lake Orra"])


def _title(rng: Random) -> str:
    name = rng.choice([*_SHARED, *_COUNTRIES, *_PEOPLES, "Silver", "Spring"])
    return f"{name} {rng.choice(['Cup', 'Prize', 'Festival'])}"


_NAMES: dict[str, tuple[str, Callable[[Random], str]]] = {
    "PER": ("PER", _person),
    "ORG": ("ORG", _firm),
    "LOC": ("LOC", _location),
    "TITLE": ("MISC", _title),
    "PEOPLE": ("MISC", lambda rng: rng.choice(_PEOPLES)),
}
"""Word of a template -> type of the name, and the function that writes such a name."""
NAME_TYPES = ("PER", "ORG", "LOC", "MISC")
NAME_TAGS = ("O", *(f"{prefix}-{name}" for name in NAME_TYPES for prefix in "BI"))
_LINKS = ["and", "but", "because", "although"]


def write_named(rng: Random, _split: str) -> Row:
    """Write a sentence with IOB2 tags for its names (Tjong Kim Sang and De Meulder 2003), some without any."""
    tagged = _fill_with_names(rng, rng.choice(templates()["names"]))
    if rng.random() < 0.4:
        tagged += [(rng.choice(_LINKS), "O"), *_fill_with_names(rng, rng.choice(templates()["names"]))]
    if sum(tag.startswith("B-") for _, tag in tagged) > MAX_NAMES:
        return write_named(rng, _split)
    return {"tokens": tidy([*(word for word, _ in tagged), "."]), "tags": [*(tag for _, tag in tagged), "O"]}


def _fill_with_names(rng: Random, template: str) -> Tagged:
    tagged: Tagged = []
    for word in template.format_map(fill_slots(rng)).split():
        if word in _NAMES:
            name, write = _NAMES[word]
            words = write(rng).split()
            tagged += [(words[0], f"B-{name}"), *((later, f"I-{name}") for later in words[1:])]
        else:
            tagged.append((word, "O"))
    return tagged


def write_sense(rng: Random, _split: str) -> Row:
    """Write a sentence with one of the senses of a word; `target` is its index among the words."""
    senses = templates()["senses"]
    word = rng.choice(sorted({name.partition("_")[0] for name in senses}))
    sense = rng.choice([name for name in senses if name.startswith(f"{word}_")])
    words, target = list[str](), 0
    for item in rng.choice(senses[sense]).format_map(fill_slots(rng)).split():
        if item.startswith("*"):
            target = len(words)
            words.append(with_s(word) if item == "*s" else word)
        else:
            words.append(rng.choice(item.split("|")))
    return {"tokens": tidy([*words, "."]), "target": target, "word": word, "sense": sense}


def write_continuation(rng: Random, _split: str) -> Row:
    """Write a context, the beginning of what follows, and four endings (like SWAG, Zellers et al. 2018)."""
    clause, stem = _introduced(rng)
    endings, label = _write_endings(rng, clause, 4)
    return {"context": sentence(clause), "stem": stem, "choices": [f"{ending}." for ending in endings], "label": label}


def write_choice(rng: Random, _split: str) -> Row:
    """Write a context and two to five sentences; only one sentence can follow."""
    clause, stem = _introduced(rng)
    endings, label = _write_endings(rng, clause, rng.randint(2, 5))
    return {"context": sentence(clause), "choices": [f"{stem} {ending}." for ending in endings], "label": label}


def _introduced(rng: Random) -> tuple[Clause, str]:
    """Pick a clause about a man or a woman, or several, and words that mean them."""
    clause = replace(pick_clause(rng, ("man", "woman")), past=True, negated=rng.random() < 0.5)
    pronoun = "they" if clause.subject.plural else PRONOUNS[clause.subject.category][0]
    named = join("the", _noun_of(clause.subject))
    return clause, rng.choice([pronoun, named, named]).capitalize()


def _write_endings(rng: Random, clause: Clause, count: int) -> tuple[list[str], int]:
    """Write endings, and the index of the correct one; the others break a rule or contradict the context."""
    # Never both endings of one pair: one of the two would be right in every context.
    (right, _), *wrong_pairs = rng.sample(_fitting_and_broken(rng, clause), count)
    endings, label = [broken for _, broken in wrong_pairs], rng.randrange(count)
    endings.insert(label, right)
    return endings, label


def _fitting_and_broken(rng: Random, clause: Clause) -> list[tuple[str, str]]:
    """Write six correct endings, each with a broken one: wrong reflexive, number, pronoun, ..."""
    plural, thing = clause.subject.plural, _noun_of(clause.object)
    verb = rng.choice([verb for verb in TRANSITIVE if verb != clause.verb])
    himself = "themselves" if plural else PRONOUNS[clause.subject.category][2]
    herself = rng.choice([word for word in ("himself", "herself", "themselves") if word != himself])
    him, her = _pronouns(rng, clause)
    past, again, mood = past_of(verb), rng.choice(["", "again", "often", "rarely"]), rng.choice(list(MOODS))
    so, not_so = ("never", "really") if clause.negated else ("really", "never")
    another = _noun_of(replace(clause.object, noun=pick_noun(rng, but=clause.object.noun)))
    return [
        (join(past, himself, again), join(past, herself, again)),
        (join(past, him, again), join(past, her, again)),
        (join(tensed("be", True, plural), mood), join(tensed("be", True, not plural), mood)),
        (join(so, past_of(clause.verb), "the", thing), join(not_so, past_of(clause.verb), "the", thing)),
        (join(past, "the same", thing), join(past, "the same", another)),
        (join("did not", verb, "the", thing), join("did not", past, "the", thing)),
    ]


def _noun_of(phrase: Phrase) -> str:
    return str(phrase).split()[-1]


def _pronouns(rng: Random, clause: Clause) -> tuple[str, str]:
    """Choose a pronoun that can mean the object of a clause, and one that cannot."""
    if clause.object.plural:
        return "them", rng.choice(["it", "him", "her"])
    if clause.object.category in PEOPLE:
        him = [words[1] for category, words in PRONOUNS.items() if clause.object.category in (category, "person")]
        return rng.choice(him), rng.choice([word for word in ("him", "her", "it") if word not in him])
    return "it", "them"


PARTS = ("subject", "object", "location")


def write_question(rng: Random, split: str, unanswerable: float = 0.0, max_distractors: int = 3) -> Row:
    """Write a context, a question, and the position of its answer, as in SQuAD (Rajpurkar et al. 2016, 2018).

    Args:
        rng: Makes every choice.
        split: Training questions have one accepted answer; questions of other splits have one to three.
        unanswerable: Fraction of questions that the context does not answer, because a word differs.
        max_distractors: Maximum number of clauses in the context in addition to the clause that answers.
    """
    fact, part = replace(pick_clause(rng), location=pick_location(rng)), rng.choice(PARTS)
    changes = [change for change in ("verb", "subject", "object", "roles") if change != part]
    target = changed(rng, fact, rng.choice(changes)) if rng.random() < unanswerable else fact
    distractors = [_pick_distractor(rng, fact) for _ in range(rng.randint(1, max_distractors))]
    if any(
        _answers(distractor, target, part) for distractor in (distractors if target == fact else [fact, *distractors])
    ):
        # Retry with the same kind of question: answerable ones are rejected more often, which would change the ratio.
        return write_question(rng, split, float(target != fact), max_distractors)
    sentences = {
        clause: sentence(clause if rng.random() < 0.7 else clause.passive()) for clause in [fact, *distractors]
    }
    context = " ".join(rng.sample(list(sentences.values()), len(sentences)))
    question = sentence(target.question_about(part))
    answers = _find_answers(context, sentences[fact], str(getattr(fact, part))) if target == fact else []
    accepted = dict(answers[: 1 if split == "train" else rng.randint(1, 3)])
    return {
        "id": hashlib.sha256(f"{context} {question}".encode()).hexdigest()[:24],
        "context": context,
        "question": question,
        "answers": {"text": list(accepted), "answer_start": list(accepted.values())},
    }


def _pick_distractor(rng: Random, clause: Clause) -> Clause:
    """Pick another clause; a quarter of them differ from the first one only in a word and in the location."""
    if rng.random() < 0.75:
        return pick_clause(rng)
    return replace(
        changed(rng, clause, rng.choice(["subject", "object", "verb", "roles"])), location=pick_location(rng)
    )


def _answers(clause: Clause, target: Clause, part: str) -> bool:
    """Return whether a clause answers the question for a part of the target; only nouns and verb count."""
    same = {"subject": clause.subject.noun == target.subject.noun, "object": clause.object.noun == target.object.noun}
    return clause.verb == target.verb and all(same[name] for name in same if name != part)


def _find_answers(context: str, answer_sentence: str, phrase: str) -> list[tuple[str, int]]:
    """Find a phrase in a sentence of the context, then without its first word, and so on: text and character offset.

    >>> _find_answers("He slept. The nuns chased an old dog.", "The nuns chased an old dog.", "a old dog")
    [('an old dog', 26), ('old dog', 29), ('dog', 33)]
    """
    words, start = sentence(phrase)[:-1].split(), context.index(answer_sentence)
    shorter = [" ".join(words[first:]) for first in range(len(words))]
    # Match between word boundaries: `prince` must not match in `princess`.
    matches = [re.search(rf"\b{words}\b", answer_sentence, flags=re.IGNORECASE) for words in shorter]
    return [(match[0], start + match.start()) for match in matches if match]


_PASSAGES = 5


def write_ranking(rng: Random, _split: str) -> list[Row]:
    """Write a question and five passages; only one answers it (like MS MARCO, Nguyen et al. 2016)."""
    clause = replace(pick_clause(rng), location=pick_location(rng))
    missing, *other_parts = rng.sample(["subject", "object", "location"], 3)
    relevant, wrong = in_other_words(rng, clause), set[str]()
    while len(wrong) < _PASSAGES - 1:
        passage = in_other_words(rng, changed(rng, clause, rng.choice(["verb", *other_parts])))
        wrong |= {passage} - {relevant}
    passages = sorted(wrong)
    rng.shuffle(passages)
    passages.insert(rng.randrange(_PASSAGES), relevant)
    query = sentence(clause.question_about(missing))
    return [{"query": query, "passage": passage, "relevance": int(passage == relevant)} for passage in passages]
