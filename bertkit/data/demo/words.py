"""The demo rows whose words have classes: universal part-of-speech tags, known from the templates."""

from __future__ import annotations

from random import Random

from bertkit.data.demo.grammar import Phrase, fill_slots, templates, tensed, with_s
from bertkit.recipe import Row

Tagged = list[tuple[str, str]]
"""Words, each with its tag."""

WORD_CLASSES = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ", "VERB",
)  # fmt: skip
_NOUNS_OR_VERBS, _NAMES, _NUMBERS = (templates()["words"][kind] for kind in ("nouns_or_verbs", "names", "numbers"))


def write_word_classes(rng: Random, _split: str) -> Row:
    """Write a sentence whose words have classes; those of `park`, `that`, `can`, ... depend on the sentence."""
    choices = templates()["word_classes"]
    tagged = _fill_template(rng, rng.choice(choices))
    if tagged[-1][0] != "?":
        if rng.random() < 0.3:
            link = [(",", "PUNCT"), (rng.choice(["and", "but"]), "CCONJ")]
            tagged += [*link, *_fill_template(rng, rng.choice(choices[:24]))]
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


def _fill_template(rng: Random, template: str) -> Tagged:
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
