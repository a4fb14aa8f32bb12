"""The demo rows whose words have classes: universal part-of-speech tags, known from the templates."""

from __future__ import annotations

from random import Random

from bertkit.data.demo.grammar import Phrase, fill_slots, tensed, with_s
from bertkit.recipe import Row

Tagged = list[tuple[str, str]]
"""Words, each with its tag."""

_TEMPLATES = [
    "{who} {found}/VERB {whom} {where}",
    "{who} {parks}/VERB {whom} {where}",
    "{who} {often}/ADV {found}/VERB {whom} {where}",
    "{who} can/AUX {park}/VERB {whom} {where}",
    "{who} {does}/AUX not/PART {park}/VERB {whom} {where}",
    "{who} {found}/VERB that/DET {walk}/NOUN {where}",
    "{who} {found}/VERB the/DET can/NOUN {where}",
    "the/DET {big}/ADJ can/NOUN was/AUX {found}/VERB by/ADP {who}",
    "the/DET can/NOUN can/AUX {sleep}/VERB {where}",
    "{walks}/NOUN were/AUX {found}/VERB {where}",
    "{who} {thought}/VERB that/SCONJ {other} {slept}/VERB {where}",
    "{who} {thought}/VERB that/SCONJ {name}/PROPN can/AUX {park}/VERB {whom}",
    "{he}/PRON {thought}/VERB that/SCONJ that/DET {walk}/NOUN was/AUX {big}/ADJ",
    "that/PRON is/AUX what/PRON {who} {found}/VERB {where}",
    "that/PRON was/AUX the/DET {big}/ADJ {walk}/NOUN of/ADP {name}/PROPN",
    "{other} that/PRON {who} {found}/VERB {slept}/VERB {where}",
    "{who} {thought}/VERB of/ADP that/PRON {where}",
    "{he}/PRON {slept}/VERB to/PART {park}/VERB {whom}",
    "{who} {hoped}/VERB to/PART {park}/VERB {whom} {where}",
    "{who} {found}/VERB a/DET way/NOUN to/ADP the/DET {walk}/NOUN",
    "{he}/PRON went/VERB to/ADP {walks}/NOUN with/ADP {other}",
    "{who} {slept}/VERB before/ADP the/DET {walk}/NOUN",
    "{who} {slept}/VERB before/SCONJ {other} {found}/VERB {whom}",
    "after/ADP the/DET {walk}/NOUN {who} {slept}/VERB {where}",
    "after/SCONJ {who} {found}/VERB {whom} ,/PUNCT {other} {slept}/VERB",
    "{who} {slept}/VERB because/SCONJ {he}/PRON had/AUX {found}/VERB {himself}/PRON",
    "the/DET {dogs}/NOUN like/VERB {whom}",
    "{he}/PRON {slept}/VERB like/ADP {other}",
    "did/AUX {who} {park}/VERB {whom} {where} ?/PUNCT",
    "{he}/PRON did/VERB the/DET puzzle/NOUN {where}",
    "{name}/PROPN has/AUX {found}/VERB {whom}",
    "{name}/PROPN has/VERB {whom} {where}",
    "{name}/PROPN will/AUX {park}/VERB {whom}",
    "{who} {found}/VERB the/DET will/NOUN of/ADP {name}/PROPN",
    "there/PRON was/VERB a/DET {walk}/NOUN {where}",
    "{name}/PROPN was/AUX there/ADV with/ADP {other}",
    "{two}/NUM {dogs}/NOUN {found}/VERB {whom} {where}",
    "{two}/NUM of/ADP {dogs}/NOUN and/CCONJ {queens}/NOUN {park}/VERB {whom}",
    "{who} {found}/VERB the/DET light/ADJ {walk}/NOUN {where}",
    "{who} {found}/VERB the/DET light/NOUN of/ADP {name}/PROPN",
    "{dogs}/NOUN and/CCONJ {queens}/NOUN {park}/VERB {whom}",
]
"""Words with their classes; a slot without a class is a phrase or a location, whose words have their own."""
WORD_CLASSES = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ", "VERB",
)  # fmt: skip
"""The tags of the rows."""
_NOUNS_OR_VERBS = ["park", "watch", "lift", "show", "need", "fear", "call", "train", "cook", "play"]
_NAMES = ["Will", "Mark", "Rose", "Anna", "Paul", "Clara"]
_NUMBERS = ["two", "three", "four", "ten", "twelve"]


def write_word_classes(rng: Random, _split: str) -> Row:
    """Write a sentence whose words have classes; those of `park`, `that`, `can`, ... depend on the sentence."""
    tagged = _fill(rng, rng.choice(_TEMPLATES))
    if tagged[-1][0] != "?":
        if rng.random() < 0.3:
            tagged += [(",", "PUNCT"), (rng.choice(["and", "but"]), "CCONJ"), *_fill(rng, rng.choice(_TEMPLATES[:24]))]
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


def _fill(rng: Random, template: str) -> Tagged:
    slots, park = fill_slots(rng), rng.choice(_NOUNS_OR_VERBS)
    who = slots["who"]
    slots |= {
        "park": park,
        "parks": tensed(park, False, isinstance(who, Phrase) and who.plural),
        "walk": rng.choice(_NOUNS_OR_VERBS),
        "walks": with_s(rng.choice(_NOUNS_OR_VERBS)),
        "dogs": with_s(str(slots["dog"])),
        "queens": with_s(str(slots["queen"])),
        "name": rng.choice(_NAMES),
        "two": rng.choice(_NUMBERS),
        "hoped": rng.choice(["hoped", "wanted", "tried"]),
    }
    tagged: Tagged = []
    for item in template.split():
        word, _, tag = item.partition("/")
        filling = slots[word[1:-1]] if word.startswith("{") else word
        tagged += [(str(filling), tag)] if tag else _classes(filling)
    return tagged


def _classes(filling: object) -> Tagged:
    """Return the words of a noun phrase, or of a location such as `in the garden`, with their classes."""
    if not isinstance(filling, Phrase):
        return list(zip(str(filling).split(), ("ADP", "DET", "NOUN"), strict=False))
    noun = str(filling).split()[-1]
    many = "ADJ" if filling.determiner == "many" else "DET"
    adjective = [(filling.adjective, "ADJ")] if filling.adjective else []
    return [(filling.determiner, many), *adjective, (noun, "NOUN")]
