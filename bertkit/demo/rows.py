"""The demo data: small tasks written by a grammar, so that every recipe runs with nothing but the package.

A text belongs to one split by its checksum, so no text of training can turn up in validation or test.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

from bertkit.demo import texts
from bertkit.demo.choices import write_choice, write_continuation
from bertkit.demo.names import write_named
from bertkit.demo.questions import write_question
from bertkit.demo.senses import write_sense
from bertkit.demo.words import write_word_classes
from bertkit.errors import DataError, closest
from bertkit.recipe import Row

SIZES = {"train": 3000, "validation": 500, "test": 500}
"""Split -> rows in it."""

Write = Callable[[Random, str], Row]
"""Writes a row for a split."""


@dataclass(frozen=True)
class Kind:
    """Who writes the rows of a recipe, and those of its mismatched splits if it has any."""

    write: Write
    mismatched: Write | None = None


def demo_rows(kind: str, split: str, rows: int | None = None) -> list[Row]:
    """Write the rows of a split, the same ones every time.

    Args:
        kind: one of DEMO_KINDS.
        split: train, validation or test; mnli also has validation_mismatched, about other subjects.
        rows: how many, the first of them; the split's size in SIZES when absent.

    Raises:
        DataError: an unknown kind or split.
    """
    if kind not in _KINDS:
        raise DataError(f"no demo data is called {kind!r}", closest(kind, DEMO_KINDS))
    wanted, part = _KINDS[kind], split.removesuffix("_mismatched")
    write = wanted.write if split == part else wanted.mismatched
    if part not in SIZES or write is None or split == "train_mismatched":
        raise DataError(f"the demo data of {kind!r} has no split {split!r}", closest(split, SIZES))
    rng, found = Random(f"{kind}/{split}"), dict[str, Row]()
    while len(found) < (SIZES[part] if rows is None else rows):
        row = write(rng, part)
        text = _told_text(row)
        if _split_of(text) == part and text not in found and text != row.get("text_pair"):
            found[text] = row
    return list(found.values())


def demo_text(rows: int, seed: int) -> Iterator[str]:
    """Write paragraphs of one or two acceptable sentences to pretrain on, none of them held out."""
    rng = Random(f"text/{seed}")
    while rows > 0:
        paragraph = rng.choice(texts.PROSE)(rng)
        if all(_split_of(text) == "train" for text in paragraph):
            rows -= 1
            yield " ".join(paragraph)


def _told_text(row: Row) -> str:
    """Give the text that no other row of any split may have: a row's first one, without what is asked about it."""
    return str(row.get("text") or row.get("context") or " ".join(row["tokens"]))


def _split_of(text: str) -> str:
    return ("validation", "test", "train", "train", "train")[zlib.crc32(text.encode()) % 5]


def _labeled(
    shares: dict[str, float], write_texts: Callable[[Random, str], texts.Texts], numeric: bool = False
) -> Write:
    """Make a writer of rows from one of texts for a label, given the share of each label."""

    def write(rng: Random, _split: str) -> Row:
        (label,) = rng.choices(list(shares), list(shares.values()))
        row: Row = dict(zip(("text", "text_pair"), write_texts(rng, label), strict=False))
        return row | {"label": float(label) if numeric else label}

    return write


_SENTIMENT = Kind(_labeled({"negative": 0.45, "positive": 0.55}, texts.write_review))
_SIMILARITY = Kind(_labeled({str(half / 2): 1.0 for half in range(11)}, texts.write_similarity, numeric=True))
_THREE_WAYS = {"entailment": 1.0, "neutral": 1.0, "contradiction": 1.0}
_NAMES, _QUESTIONS, _SENSES = Kind(write_named), Kind(write_question), Kind(write_sense)
_KINDS = {
    "choose": Kind(write_choice),
    "classify": _SENTIMENT,
    "cola": Kind(_labeled({"unacceptable": 0.35, "acceptable": 0.65}, texts.write_acceptability)),
    "mnli": Kind(
        _labeled(_THREE_WAYS, texts.write_inference),
        mismatched=_labeled(_THREE_WAYS, partial(texts.write_inference, kinds=("animal",))),
    ),
    "mrpc": Kind(_labeled({"not_equivalent": 0.4, "equivalent": 0.6}, texts.write_paraphrase)),
    "ner": _NAMES,
    "ner-features": _NAMES,
    "pos": Kind(write_word_classes),
    "qa": _QUESTIONS,
    "qnli": Kind(_labeled({"entailment": 0.5, "not_entailment": 0.5}, texts.write_answer)),
    "qqp": Kind(_labeled({"not_duplicate": 0.6, "duplicate": 0.4}, texts.write_duplicate)),
    "regress": _SIMILARITY,
    "rte": Kind(_labeled({"entailment": 0.5, "not_entailment": 0.5}, texts.write_entailment)),
    "squad": _QUESTIONS,
    "squad2": Kind(partial(write_question, unanswerable=1 / 3)),
    "sst2": _SENTIMENT,
    "stsb": _SIMILARITY,
    "swag": Kind(write_continuation),
    "tag": _NAMES,
    "wnli": Kind(_labeled({"not_entailment": 0.5, "entailment": 0.5}, texts.write_pronoun)),
    "wsd": _SENSES,
    "wsd-nearest": _SENSES,
}
DEMO_KINDS = tuple(_KINDS)
"""The recipes that have demo data."""
