"""Public sets of sentences as the rows that `own_data` and `label_errors --counts` read.

    python -m benchmarks.public_sets --clones DIR --data DATA --output DIR

`--clones` has checkouts of three repositories of GitHub, each under its own name: harvardnlp/sent-conv-torch (customer
reviews of Hu and Liu 2004), AcademiaSinicaNLPLab/sentiment_dataset (Subj of Pang and Lee 2004, TREC of Li and Roth
2002) and PolyAI-LDN/task-specific-datasets (BANKING77 of Casanueva et al. 2020). `--data` has sets of the hub as
Parquet files, by name. Each set becomes a folder with `train.jsonl` and `validation.jsonl`.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.long_texts import write_rows

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


def read_parquet(file: Path, convert: Callable[[dict[str, Any]], dict[str, Any]]) -> Rows:
    """Read a Parquet file of the hub, with its rows in canonical columns."""
    from pyarrow import parquet

    return [convert(row) for row in parquet.read_table(file).to_pylist()]


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
    reviews = shuffled(read_lines(clones / "sent-conv-torch" / "data" / "custrev.all", CLASSES))
    sentences = clones / "sentiment_dataset" / "data"
    subjective = shuffled(read_lines(sentences / "subj.all", SIDES))
    banking = [
        read_banking(clones / "task-specific-datasets" / "banking_data" / f"{name}.csv") for name in ("train", "test")
    ]
    sets = {
        "cr": (reviews[1200:], reviews[:1200]),
        "subj": (subjective[1500:], subjective[:1500]),
        "trec": (read_lines(sentences / "TREC.train.all"), read_lines(sentences / "TREC.test.all")),
        "banking77": (banking[0], shuffled(banking[1])[:1500]),
    }

    def of_hub(folder: str, convert: Callable[[dict[str, Any]], dict[str, Any]]) -> tuple[Rows, Rows]:
        train, validation = (
            read_parquet(data / folder / f"{name}.parquet", convert) for name in ("train", "validation")
        )
        return train, validation

    sets["sst2"] = of_hub(
        "glue/sst2", lambda row: {"text": row["sentence"].strip(), "label": CLASSES[str(row["label"])]}
    )
    sets["stsb"] = of_hub(
        "glue/stsb",
        lambda row: {"text": row["sentence1"], "text_pair": row["sentence2"], "label": round(row["label"], 3)},
    )
    names = tag_names(data / "conll2003" / "train.parquet")
    train, validation = of_hub(
        "conll2003", lambda row: {"tokens": row["tokens"], "tags": [names[tag] for tag in row["ner_tags"]]}
    )
    sets["conll"] = (train, shuffled(validation)[:1500])
    return sets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clones", required=True, type=Path, help="folder of checkouts")
    parser.add_argument("--data", required=True, type=Path, help="folder of data sets of the hub")
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()
    for name, (train, validation) in read_sets(arguments.clones, arguments.data).items():
        write_rows(train, arguments.output / name / "train.jsonl")
        write_rows(validation, arguments.output / name / "validation.jsonl")


if __name__ == "__main__":
    main()
