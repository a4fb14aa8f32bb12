"""The demo rows: small tasks written by a grammar, so that every recipe runs with nothing but the package.

A text belongs to one split by its checksum, so no text of training can occur in validation or test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

from bertkit.data.demo.prose import FIRST_TEXT, WriteParagraph, write_paragraph
from bertkit.data.demo.sets import DemoSet
from bertkit.data.demo.splits import split_of
from bertkit.errors import DataError, closest
from bertkit.recipe import Row

SIZES = {"train": 3000, "validation": 500, "test": 500}


def demo_rows(demo_set: DemoSet, split: str, limit: int | None = None) -> list[Row]:
    """Write the rows of a split, the same ones every time.

    Args:
        demo_set: what to write; `demo_set_for` chooses it for a recipe.
        split: train, validation or test; also e.g. validation_mismatched, of mismatched rows if the set has them.
        limit: how many rows at most, the first of the split; as many as `SIZES` has when absent.

    Raises:
        DataError: an unknown split.
    """
    base, _, variant = split.partition("_")
    write = (demo_set.mismatched or demo_set.write) if variant else demo_set.write
    if base not in SIZES or (base == "train" and variant):
        raise DataError(f"the demo data of {demo_set.name!r} has no split {split!r}", closest(split, SIZES))
    rng, rows, texts = Random(f"{demo_set.name}/{split}"), list[Row](), set[str]()
    count = min(SIZES[base], limit or SIZES[base])
    while len(rows) < count:
        row = write(rng, base)
        text = _main_text(row)
        if split_of(text) == base and text not in texts and text != row.get("text_pair"):
            texts.add(text)
            rows += [row] if demo_set.unfold is None else demo_set.unfold(row)
    return rows[:count]


def demo_text(paragraphs: int, seed: int, writers: Mapping[WriteParagraph, float] = FIRST_TEXT) -> Iterator[str]:
    """Write paragraphs to pretrain on; none has a text of validation or test rows."""
    rng = Random(f"text/{seed}")
    for _ in range(paragraphs):
        yield write_paragraph(rng, writers)


def _main_text(row: Row) -> str:
    """Return the text that no other row of any split may have: a row's first one, without its question."""
    names = ("text", "anchor", "context", "query")
    return str(next((row[name] for name in names if row.get(name)), None) or " ".join(row["tokens"]))
