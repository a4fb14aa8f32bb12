"""The demo rows with a word of several senses, told apart by the words around it."""

from __future__ import annotations

from random import Random

from bertkit.data.demo.grammar import fill_slots, templates, with_s
from bertkit.data.demo.words import tidy
from bertkit.recipe import Row


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
