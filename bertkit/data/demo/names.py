"""The demo rows with names of persons, organizations, locations and other things, which only their context tells apart.

`Marlow` is a person where it laughs, a town after `in`, a firm after `works for`, and a part of `Marlow & Sons`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from bertkit.data.demo.grammar import fill_slots, templates
from bertkit.data.demo.words import Tagged, tidy
from bertkit.recipe import Row

MOST_NAMES = 4

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
"""Word of a template -> the type of name it stands for, and the function that writes one."""
NAME_TYPES = ("PER", "ORG", "LOC", "MISC")
NAME_TAGS = ("O", *(f"{prefix}-{name}" for name in NAME_TYPES for prefix in "BI"))
_LINKS = ["and", "but", "because", "although"]


def write_named(rng: Random, _split: str) -> Row:
    """Write a sentence with IOB2 tags for its names (Tjong Kim Sang and De Meulder 2003), some without any."""
    tagged = _fill_template(rng, rng.choice(templates()["names"]))
    if rng.random() < 0.4:
        tagged += [(rng.choice(_LINKS), "O"), *_fill_template(rng, rng.choice(templates()["names"]))]
    if sum(tag.startswith("B-") for _, tag in tagged) > MOST_NAMES:
        return write_named(rng, _split)
    return {"tokens": tidy([*(word for word, _ in tagged), "."]), "tags": [*(tag for _, tag in tagged), "O"]}


def _fill_template(rng: Random, template: str) -> Tagged:
    tagged: Tagged = []
    for word in template.format_map(fill_slots(rng)).split():
        if word in _NAMES:
            name, write = _NAMES[word]
            words = write(rng).split()
            tagged += [(words[0], f"B-{name}"), *((later, f"I-{name}") for later in words[1:])]
        else:
            tagged.append((word, "O"))
    return tagged
