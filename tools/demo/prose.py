"""The demo text to pretrain on: paragraphs that use the grammar as written English does.

Sentences stand beside others that say the same, follow from them or differ in a word, joined by words such as `indeed`,
`so` and `but`, or followed by words that say what the two have in common; questions stand beside their answers; names
and words of several senses stand in sentences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import NamedTuple

from tools.demo import texts
from tools.demo.grammar import CATEGORY_OF, Clause, Row, join, pick_clause, pick_location, sentence, split_of
from tools.demo.rows import (
    write_choice,
    write_continuation,
    write_named,
    write_question,
    write_sense,
    write_word_classes,
)


class Paragraph(NamedTuple):
    """A paragraph, and the texts in it that could be those of a row."""

    text: str
    row_texts: tuple[str, ...]


WriteParagraph = Callable[[Random], Paragraph]


def write_paragraph(rng: Random, writers: Mapping[WriteParagraph, float]) -> str:
    """Write a paragraph of one of the writers, which holds no text of validation or test rows.

    Args:
        rng: makes every choice.
        writers: writer -> how often it is chosen.
    """
    (write,) = rng.choices(list(writers), list(writers.values()))
    while True:
        paragraph = write(rng)
        if all(split_of(text) == "train" for text in paragraph.row_texts):
            return paragraph.text


def _plain(rng: Random, write: Callable[[Random], texts.Texts]) -> Paragraph:
    written = write(rng)
    return Paragraph(" ".join(written), written)


def _joined(rng: Random, write: Callable[[Random, str], texts.Texts], links: Mapping[str, str]) -> Paragraph:
    """Write two texts that are related as a label says, with the words that link them.

    Args:
        rng: makes every choice.
        write: writes two texts for a label.
        links: label -> the words before the second text.
    """
    label = rng.choice(list(links))
    first, second = write(rng, label)
    return Paragraph(f"{first} {links[label]} {second[0].lower()}{second[1:]}", (first, second))


def _words(rng: Random, write: Callable[[Random, str], Row]) -> Paragraph:
    text = " ".join(write(rng, "train")["tokens"])
    return Paragraph(re.sub(" (?=[.,?])", "", text), (text,))


def _continued(rng: Random, write: Callable[[Random, str], Row]) -> Paragraph:
    row = write(rng, "train")
    return Paragraph(join(row["context"], row.get("stem", ""), row["choices"][row["label"]]), (row["context"],))


def answered(rng: Random, most_others: int) -> Paragraph:
    """Write a question, its answer, and the text that has it or not, in one of two orders."""
    row = write_question(rng, "train", 0.15, most_others)
    answer = (row["answers"]["text"] or ["Nobody knows"])[0]
    asked = f"{row['question']} {answer[0].upper()}{answer[1:]}."
    context = row["context"]
    text = rng.choice([f"{asked} {context}", f"{context} {asked}"])
    return Paragraph(text, (context, row["question"]))


def _two_reviews(rng: Random) -> texts.Texts:
    polarity = rng.choice(["positive", "negative"])
    return texts.write_review(rng, polarity) + texts.write_review(rng, polarity)


def _definition(rng: Random) -> texts.Texts:
    noun = rng.choice(list(CATEGORY_OF))
    return (sentence(rng.choice(["every", "a", "this"]), noun, "is a", CATEGORY_OF[noun]),)


def _compared(rng: Random, links: str, write: Callable[[Random, Clause], str]) -> Paragraph:
    """Write a clause, and then others that say the same, less, something else or the contrary, each after its word."""
    it = replace(pick_clause(rng), negated="Yet" in links and rng.random() < 0.2)
    first = write(rng, it)
    if split_of(first) != "train":
        return _compared(rng, links, write)
    paragraph, row_texts = [first], [first]
    for link in rng.choices(links.split(), k=rng.randint(2, 4)):
        tries = (write(rng, _related(rng, it, link)) for _ in range(5))
        text = next((text for text in tries if text != first and split_of(text) == "train"), "")
        if text:
            paragraph.append(f"{link} {text[0].lower()}{text[1:]}")
            row_texts.append(text)
    return Paragraph(" ".join(paragraph), tuple(row_texts))


def _related(rng: Random, it: Clause, link: str) -> Clause:
    """Write the clause that a word announces: in other words, weaker, with a change, or the contrary."""
    if link == "But":
        it = texts.changed(rng, it, rng.choice(["roles", "subject", "object", "verb"]))
    elif link in ("So", "Yet"):
        it = texts.weakened(rng, it)
    return texts.reworded(rng, replace(it, negated=it.negated != (link == "Yet")))


def commented(rng: Random) -> Paragraph:
    """Write two clauses or questions, and which of their parts are the same: `the same subject, another verb, ...`."""
    it = pick_clause(rng)
    it = replace(it, location=pick_location(rng) if rng.random() < 0.7 else it.location)
    changed, parts = it, ["subject", "verb", "object", "location"]
    if rng.random() < 0.12:
        changed = texts.changed(rng, it, "roles")
    elif rng.random() < 0.66:
        for part in rng.sample(parts, rng.choice([1, 1, 2, 2, 3, 4])):
            changed = texts.changed(rng, changed, part)
    first, second = texts.in_other_words(rng, it), texts.in_other_words(rng, changed)
    form = rng.random()
    if form < 0.2:
        first, second = _write_question(rng, it), _write_question(rng, texts.reworded(rng, changed))
    elif form < 0.3:
        first = _write_question(rng, it)
    elif form < 0.6:
        asked = rng.choice(["subject", "object", "location"] if it.location else ["subject", "object"])
        parts.remove(asked)
        first = sentence(it.question_about(asked))
    if not (it.location or changed.location):
        parts.remove("location")
    comment = [f"{'the same' if _part(it, part) == _part(changed, part) else 'another'} {part}" for part in parts]
    return Paragraph(f"{first} {second} {sentence(' , '.join(comment))}", (first, second))


def _part(it: Clause, part: str) -> str:
    """Return the noun of the subject or the object, or the verb or the location."""
    value = getattr(it, part)
    return value if isinstance(value, str) else value.noun


def _write_question(rng: Random, it: Clause) -> str:
    return sentence(rng.choice([it.question(), it.passive_question()]))


_GRADES = {str(half / 2): "Similarly" if half > 7 else "Besides" if half > 3 else "Whereas" for half in range(11)}
answered_or_not = partial(answered, most_others=4)
FIRST_TEXT: dict[WriteParagraph, float] = {
    partial(_plain, write=lambda rng: texts.write_acceptability(rng, "acceptable")): 2.5,
    partial(_plain, write=_two_reviews): 1,
    partial(_plain, write=_definition): 0.1,
    partial(_compared, links="Indeed Indeed So But But Yet", write=texts.in_other_words): 5,
    partial(_compared, links="Indeed But", write=_write_question): 1,
    commented: 9,
    partial(_joined, write=texts.write_similarity, links=_GRADES): 1,
    partial(_joined, write=texts.write_answer, links={"entailment": "Well", "not_entailment": "But"}): 1.2,
    partial(_joined, write=texts.write_pronoun, links={"entailment": "So", "not_entailment": "But"}): 0.5,
    answered_or_not: 6,
    partial(_words, write=write_named): 0.6,
    partial(_words, write=write_word_classes): 0.5,
    partial(_words, write=write_sense): 0.7,
    partial(_continued, write=write_continuation): 0.6,
    partial(_continued, write=write_choice): 0.3,
}
"""Writer of a paragraph -> how often it is used."""


def demo_text(paragraphs: int, seed: int, writers: Mapping[WriteParagraph, float] = FIRST_TEXT) -> Iterator[str]:
    """Write paragraphs to pretrain on; none has a text of validation or test rows."""
    rng = Random(f"text/{seed}")
    for _ in range(paragraphs):
        yield write_paragraph(rng, writers)
