"""The demo rows with a word of several senses, told apart by the words around it."""

from __future__ import annotations

from random import Random

from bertkit.data.demo.grammar import fill_slots, with_s
from bertkit.data.demo.words import tidy
from bertkit.recipe import Row

SENSES = {
    "bank_river": [
        "{who} {slept} on the muddy|steep|grassy * of the river|stream|canal",
        "{who} {found} {whom} on the * by the river|stream|water",
        "the *s of the river|stream|canal were steep|muddy|green",
        "{who} sat on the * and {found} fish in the river|water",
        "the * was big , and {who} swam in the river|stream|canal",
    ],
    "bank_money": [
        "{who} {found} money|cash|coins in the * {in the garden}",
        "the * gave {person} a loan|card for the house|car",
        "{who} needed money|cash from the *s in the village|market",
        "a clerk of the old|new|big * {found} the money|cash",
        "the * was big , and {who} paid the loan|bill",
    ],
    "bat_animal": [
        "the *s flew out|away at night|dusk and {found} moths|insects",
        "a * with small|big wings|ears slept|vanished in the cave|forest",
        "{who} {found} a * with wings {where}",
        "hungry *s eat insects|moths|fruit {in the garden}",
        "the * was small , and {who} {found} its wings|cave",
    ],
    "bat_club": [
        "{who} lifted the * and hit the ball|balls {where}",
        "the player|{dog} found a wooden|heavy * for the game|match",
        "{who} carried the *s and the ball|balls to the game|match",
        "the * broke when {who} hit the ball {where}",
        "the * was small , and {who} lost the game|match|ball",
    ],
    "seal_animal": [
        "a * with wet|grey fur swam in the sea|water",
        "{who} {found} a * on the beach|ice|rocks",
        "the *s eat fish and sleep on the ice|beach|rocks",
        "the * chased|found a fish in the cold|deep sea|water",
        "the * was old , and {who} gave it a fish",
    ],
    "seal_stamp": [
        "the letter|document of {person} had a red|wax|royal *",
        "{who} put the * of the king|queen on the letter|document",
        "the *s on the letters|documents were red|broken",
        "{who} broke the * and read the letter|document {where}",
        "the * was old , and {who} signed the letter|document",
    ],
    "spring_season": [
        "in the * after winter|march the flowers|trees are green",
        "{who} {found} flowers in the * after the winter|snow",
        "every * the birds arrive|sing {in the garden}",
        "{who} {slept} until the * , when the snow|winter ended",
        "the * was pretty , and {who} {found} flowers|blossoms",
    ],
    "spring_coil": [
        "the metal|steel|rusty * of the clock|bed|toy was broken",
        "{who} {found} the *s in the clock|bed|machine {where}",
        "a * in the machine|watch of {person} snapped|broke",
        "{who} pressed the steel|metal * {where}",
        "the * was small , and {who} {found} the clock|bed|watch",
    ],
    "spring_water": [
        "{who} drank cool|clear water from the * {where}",
        "the hot|cool *s near the village|forest gave water to {person}",
        "the water of the * was clear|cool|hot {where}",
        "{who} carried|filled a cup|bottle at the * {where}",
        "the * was pretty , and {who} drank the water",
    ],
    "crane_bird": [
        "the *s flew over the lake|forest to their nest|nests",
        "a white|grey * with long legs|wings {slept} {where}",
        "{who} {found} the nest|eggs|feathers of the * {where}",
        "the * flew|vanished when {who} {found} its eggs|nest",
        "the * was old , and {who} {found} its feathers|nest",
    ],
    "crane_machine": [
        "the driver of the * lifted|raised steel|bricks {where}",
        "{who} used a tall|yellow * to lift|raise {whom}",
        "the *s lifted the heavy|big steel|trucks|cars {where}",
        "a * with an engine|hook carried bricks|steel {where}",
        "the * was old , and {who} {found} its engine|hook",
    ],
}
"""Sense, named after its word -> templates: `*` is the word, `*s` its plural, and one of `a|b|c` is chosen."""


def write_sense(rng: Random, _split: str) -> Row:
    """Write a sentence with one of the SENSES of a word; `target` is its index among the words."""
    word = rng.choice(sorted({name.partition("_")[0] for name in SENSES}))
    sense = rng.choice([name for name in SENSES if name.startswith(f"{word}_")])
    words, target = list[str](), 0
    for item in rng.choice(SENSES[sense]).format_map(fill_slots(rng)).split():
        if item.startswith("*"):
            target = len(words)
            words.append(with_s(word) if item == "*s" else word)
        else:
            words.append(rng.choice(item.split("|")))
    return {"tokens": tidy([*words, "."]), "target": target, "word": word, "sense": sense}
