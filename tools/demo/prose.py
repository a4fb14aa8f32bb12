"""The demo text for pretraining: paragraphs that use the grammar as written English does.

A paragraph has sentences with paraphrases, consequences or contradictions, joined by words such as `indeed`, `so` and
`but`; or two sentences with a comment on the parts that they share; or a question with its answer; or names and
ambiguous words in sentences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import NamedTuple

from tools.demo import texts
from tools.demo.grammar import CATEGORY_OF, Clause, Row, get_split, join, pick_clause, pick_location, sentence
from tools.demo.rows import (
    write_choice,
    write_continuation,
    write_named,
    write_question,
    write_sense,
    write_word_classes,
)


class Paragraph(NamedTuple):
    """A paragraph, and the texts in it that could occur in a row."""

    text: str
    row_texts: tuple[str, ...]


WriteParagraph = Callable[[Random], Paragraph]


def write_paragraph(rng: Random, writers: Mapping[WriteParagraph, float]) -> str:
    """Write a paragraph with one of the writers, without texts of validation or test rows.

    Args:
        rng: Makes every choice.
        writers: Writer -> how often it is chosen.
    """
    (write,) = rng.choices(list(writers), list(writers.values()))
    while True:
        paragraph = write(rng)
        if all(get_split(text) == "train" for text in paragraph.row_texts):
            return paragraph.text


def _write_plain(rng: Random, write: Callable[[Random], texts.Texts]) -> Paragraph:
    written = write(rng)
    return Paragraph(" ".join(written), written)


def _joined(rng: Random, write: Callable[[Random, str], texts.Texts], links: Mapping[str, str]) -> Paragraph:
    """Write two texts whose relation a label names, with the words that link them.

    Args:
        rng: Makes every choice.
        write: Writes two texts for a label.
        links: Label -> the words before the second text.
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


def answered(rng: Random, max_distractors: int) -> Paragraph:
    """Write a question, its answer, and the context that contains the answer or not, in either order."""
    row = write_question(rng, "train", 0.15, max_distractors)
    answer = (row["answers"]["text"] or ["Nobody knows"])[0]
    dialogue = f"{row['question']} {answer[0].upper()}{answer[1:]}."
    context = row["context"]
    text = rng.choice([f"{dialogue} {context}", f"{context} {dialogue}"])
    return Paragraph(text, (context, row["question"]))


def _two_reviews(rng: Random) -> texts.Texts:
    polarity = rng.choice(["positive", "negative"])
    return texts.write_review(rng, polarity) + texts.write_review(rng, polarity)


def _definition(rng: Random) -> texts.Texts:
    noun = rng.choice(list(CATEGORY_OF))
    return (sentence(rng.choice(["every", "a", "this"]), noun, "is a", CATEGORY_OF[noun]),)


def _compared(rng: Random, links: str, write: Callable[[Random, Clause], str]) -> Paragraph:
    """Write a clause, and then paraphrases, weaker, different or opposite clauses, each after a linking word."""
    clause = replace(pick_clause(rng), negated="Yet" in links and rng.random() < 0.2)
    first = write(rng, clause)
    if get_split(first) != "train":
        return _compared(rng, links, write)
    paragraph, row_texts = [first], [first]
    for link in rng.choices(links.split(), k=rng.randint(2, 4)):
        tries = (write(rng, _related(rng, clause, link)) for _ in range(5))
        text = next((text for text in tries if text != first and get_split(text) == "train"), "")
        if text:
            paragraph.append(f"{link} {text[0].lower()}{text[1:]}")
            row_texts.append(text)
    return Paragraph(" ".join(paragraph), tuple(row_texts))


def _related(rng: Random, clause: Clause, link: str) -> Clause:
    """Write the clause that a linking word announces: a paraphrase, or a weaker, different or opposite clause."""
    if link == "But":
        clause = texts.changed(rng, clause, rng.choice(["roles", "subject", "object", "verb"]))
    elif link in ("So", "Yet"):
        clause = texts.weakened(rng, clause)
    return texts.reworded(rng, replace(clause, negated=clause.negated != (link == "Yet")))


def commented(rng: Random) -> Paragraph:
    """Write two clauses or questions, and a comment on their parts: `the same subject, another verb, ...`."""
    clause = pick_clause(rng)
    clause = replace(clause, location=pick_location(rng) if rng.random() < 0.7 else clause.location)
    changed, parts = clause, ["subject", "verb", "object", "location"]
    if rng.random() < 0.12:
        changed = texts.changed(rng, clause, "roles")
    elif rng.random() < 0.66:
        for part in rng.sample(parts, rng.choice([1, 1, 2, 2, 3, 4])):
            changed = texts.changed(rng, changed, part)
    first, second = texts.in_other_words(rng, clause), texts.in_other_words(rng, changed)
    form = rng.random()
    if form < 0.2:
        first, second = _write_question(rng, clause), _write_question(rng, texts.reworded(rng, changed))
    elif form < 0.3:
        first = _write_question(rng, clause)
    elif form < 0.6:
        asked_part = rng.choice(["subject", "object", "location"] if clause.location else ["subject", "object"])
        parts.remove(asked_part)
        first = sentence(clause.question_about(asked_part))
    if not (clause.location or changed.location):
        parts.remove("location")
    comment = [f"{'the same' if _part(clause, part) == _part(changed, part) else 'another'} {part}" for part in parts]
    return Paragraph(f"{first} {second} {sentence(' , '.join(comment))}", (first, second))


def _part(clause: Clause, part: str) -> str:
    """Return the noun of the subject or the object, or the verb or the location."""
    value = getattr(clause, part)
    return value if isinstance(value, str) else value.noun


def _write_question(rng: Random, clause: Clause) -> str:
    return sentence(rng.choice([clause.question(), clause.passive_question()]))


_GRADES = {str(half / 2): "Similarly" if half > 7 else "Besides" if half > 3 else "Whereas" for half in range(11)}
answered_or_not = partial(answered, max_distractors=4)
FIRST_TEXT: dict[WriteParagraph, float] = {
    partial(_write_plain, write=lambda rng: texts.write_acceptability(rng, "acceptable")): 2.5,
    partial(_write_plain, write=_two_reviews): 1,
    partial(_write_plain, write=_definition): 0.1,
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
    """Write paragraphs for pretraining, without texts of validation or test rows."""
    rng = Random(f"text/{seed}")
    for _ in range(paragraphs):
        yield write_paragraph(rng, writers)
