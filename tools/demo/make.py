"""Write the demo rows and the demo text into `bertkit/data/demo/` (`make demo-rows`).

    python -m tools.demo.make

The same code writes the same rows on every machine. A checksum of a row's text decides in
which split the row is, so no text is in two splits.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random

from tools.demo import texts
from tools.demo.grammar import get_split
from tools.demo.prose import demo_text
from tools.demo.rows import (
    Row,
    write_choice,
    write_continuation,
    write_named,
    write_question,
    write_ranking,
    write_sense,
    write_word_classes,
)

FOLDER = Path(__file__).parents[2] / "bertkit" / "data" / "demo"
PARAGRAPHS = 10_000
ROWS = {"train": 3000, "validation": 500, "test": 500}
INPUTS = ("text", "anchor", "context", "query", "state")
"""The first of these columns that a row has is its key: no other row of any split has the same text there."""

WriteRows = Callable[[Random, str], list[Row]]
"""Writes the next rows of a split: one, or the passages of a query."""
WriteTexts = Callable[[Random, str], texts.Texts]
"""Writes one or two texts for a label."""


def write_single(write: Callable[[Random, str], Row]) -> WriteRows:
    """Return a writer that calls another one for each row."""
    return lambda rng, split: [write(rng, split)]


def labeled(weights: Mapping[str | float, float], write: WriteTexts) -> WriteRows:
    """Return a writer of texts with labels.

    Args:
        weights: Label -> how often it is drawn.
        write: Writes the texts for a label.
    """

    def write_rows(rng: Random, _split: str) -> list[Row]:
        (label,) = rng.choices(list(weights), list(weights.values()))
        return [dict(zip(("text", "text_pair"), write(rng, str(label)), strict=False)) | {"label": label}]

    return write_rows


def write_topic(rng: Random, _split: str) -> Row:
    """Write a clause and a paraphrase; the label is the topic, which is a subject with a verb."""
    topic = rng.randrange(len(texts.TOPICS))
    return dict(zip(("text", "text_pair"), texts.write_topic(rng, topic), strict=True)) | {"label": topic}


SENTIMENT = {"negative": 0.45, "positive": 0.55}
QUESTIONS = {
    "liked": {"type": "yes_no", "instructions": "Did the first viewer like it?"},
    "opinion": {"type": "choice", "criteria": ["positive", "negative", "mixed"]},
    "praise": {"type": "score", "criteria": ["no viewer liked it", "one viewer did", "both viewers did"]},
}


def write_decisions(rng: Random, _split: str) -> Row:
    """Write two reviews with one question of each type about them."""
    labels = rng.choices(list(SENTIMENT), k=2)
    praise = labels.count("positive")
    answers = {"liked": labels[0] == "positive", "opinion": ["negative", "mixed", "positive"][praise], "praise": praise}
    reviews = [texts.write_review(rng, label)[0] for label in labels]
    return {"state": " ".join(reviews), "questions": QUESTIONS, "answers": answers}


ENTAILMENT = {"entailment": 0.5, "not_entailment": 0.5}
THREE_WAYS = {"entailment": 1.0, "neutral": 1.0, "contradiction": 1.0}
SETS: dict[str, WriteRows] = {
    "cola": labeled({"unacceptable": 0.35, "acceptable": 0.65}, texts.write_acceptability),
    "mnli": labeled(THREE_WAYS, texts.write_inference),
    "mrpc": labeled({"not_equivalent": 0.4, "equivalent": 0.6}, texts.write_paraphrase),
    "qnli": labeled(ENTAILMENT, texts.write_answer),
    "qqp": labeled({"not_duplicate": 0.6, "duplicate": 0.4}, texts.write_duplicate),
    "rte": labeled(ENTAILMENT, texts.write_entailment),
    "sst2": labeled(SENTIMENT, texts.write_review),
    "wnli": labeled({"not_entailment": 0.5, "entailment": 0.5}, texts.write_pronoun),
    "topics": write_single(write_topic),
    "stsb": labeled({half / 2: 1.0 for half in range(11)}, texts.write_similarity),
    "similarity-pairs": write_single(texts.write_pair),
    "similarity-texts": write_single(texts.write_paraphrases),
    "similarity-triples": write_single(texts.write_triple),
    "ner": write_single(write_named),
    "pos": write_single(write_word_classes),
    "squad": write_single(write_question),
    "squad2": write_single(partial(write_question, unanswerable=1 / 3)),
    "rerank": write_ranking,
    "choose": write_single(write_choice),
    "swag": write_single(write_continuation),
    "decide": write_single(write_decisions),
    "wsd": write_single(write_sense),
}
MISMATCHED = {"mnli": labeled(THREE_WAYS, partial(texts.write_inference, categories=("animal",)))}
"""Sets with a second validation split, whose rows are about other subjects."""


def read_demo_rows(name: str, split: str) -> Iterator[Row]:
    """Write the rows of a split of a set.

    Args:
        name: A key of `SETS`.
        split: train, validation, test, or validation_mismatched.
    """
    base, _, variant = split.partition("_")
    write = MISMATCHED[name] if variant else SETS[name]
    rng, seen, count = Random(f"{name}/{split}"), set[str](), 0
    while count < ROWS[base]:
        rows = write(rng, base)
        first = rows[0]
        text = str(next((first[column] for column in INPUTS if first.get(column)), None) or " ".join(first["tokens"]))
        if get_split(text) == base and text not in seen and text != first.get("text_pair"):
            seen.add(text)
            yield from rows
            count += len(rows)


def demo_files() -> dict[Path, Iterator[str]]:
    """Return each demo file, relative to the folder of the demo, with the lines to write."""
    splits = [(name, split) for name in SETS for split in ROWS] + [
        (name, "validation_mismatched") for name in MISMATCHED
    ]
    files = {
        Path(name, f"{split}.jsonl.gz"): (json.dumps(row, ensure_ascii=False) for row in read_demo_rows(name, split))
        for name, split in splits
    }
    return {**files, Path("text", "train.txt.gz"): demo_text(PARAGRAPHS, seed=0)}


def write_lines(file: Path, lines: Iterable[str]) -> None:
    """Write a compressed file whose bytes do not depend on its name or on the time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as stream, gzip.GzipFile("", "wb", 9, stream, mtime=0) as compressed:
        compressed.writelines(f"{line}\n".encode() for line in lines)


def main() -> None:
    for file, lines in demo_files().items():
        write_lines(FOLDER / file, lines)
        print(f"{file}: {(FOLDER / file).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
