"""Ways to read long documents: their scores beside those of truncation, and what they cost.

    python -m benchmarks.long_texts --model DIR --data DIR [--epochs 1 --seeds 1 2 3]

Documents of 400 to 2,000 words are made of sentences of `mlm_text`. In `needle`, one sentence of SST-2 at a random
place tells the label. In `majority`, seven sentences of SST-2 are spread over the text, and the label is that of most.
All ways start from one model that was fine-tuned on short documents of the same making, which `max_length` holds whole,
and read the same long documents. With `--epochs`, each is trained on long documents too. Those of windows are trained
alike, so one run is scored in three ways.

Every case is one line of the output file; one that is there already is not repeated, so the same command goes on where
it was stopped; after a change of bertkit, take the old lines out. Without `--epochs`, all take ten minutes of one core;
with `--epochs 1`, about half an hour for each seed.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import find_folder
from benchmarks.harness import (
    RESULTS,
    Report,
    add_line,
    finetune_here,
    read_columns,
    read_lines,
    read_options,
    table,
    write_rows,
)

TASKS = {"needle": 1, "majority": 7}  # -> sentences of SST-2 in a document
WINDOWS = ("windows_mean", "windows_max", "windows_vote")
TRAINED = ("head", "tail", "head_tail", "windows_mean", "hierarchical")
LENGTH = 256
LONG, SHORT = (400, 2000), (0, 100)
"""Words of the documents that are scored, and of those that the first model learns from."""

_SENTENCE = re.compile(r"(?<=[.!?])\s+")


def make_document(
    filler: Sequence[str], sentences: Sequence[tuple[str, int]], planted: int, words: int, draw: random.Random
) -> dict[str, str]:
    """Make a document of about so many words, with sentences that tell its label at random places among the others.

    >>> make_document(["a b c."], [("good .", 1)], 1, 6, random.Random(0))
    {'text': 'a b c. good . a b c.', 'label': 'positive'}
    """
    text: list[str] = []
    while sum(sentence.count(" ") + 1 for sentence in text) < words:
        text.append(draw.choice(filler))
    chosen = [draw.choice(sentences) for _ in range(planted)]
    for sentence, _ in chosen:
        text.insert(draw.randint(0, len(text)), sentence)
    positive = sum(label for _, label in chosen) * 2 > planted
    return {"text": " ".join(text), "label": "positive" if positive else "negative"}


def make_documents(
    data: Path, planted: int, split: str, count: int, words: tuple[int, int] = LONG
) -> list[dict[str, str]]:
    """Make the documents of a split; no sentence of one split is in the other."""
    draw = random.Random(f"{planted} {split} {words}")
    texts = read_columns(data / "mlm_text" / f"{split}.parquet", "text")
    parts = (part for row in texts for part in _SENTENCE.split(row["text"].strip()))
    filler = [part for part in parts if 4 <= part.count(" ") <= 40]
    rows = read_columns(find_folder(data, "sst2") / f"{split}.parquet", "sentence", "label")
    sentences = [(row["sentence"].strip(), row["label"]) for row in rows if row["sentence"].count(" ") >= 4]
    return [make_document(filler, sentences, planted, draw.randint(*words), draw) for _ in range(count)]


def key_of(task: str, way: str, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Return what identifies a case."""
    counts = {name: getattr(asked, name) for name in ("train", "validation", "short", "epochs", "overlap")}
    return {"task": task, "way": way, "seed": seed, "max_length": LENGTH, **counts}


def start_model(asked: argparse.Namespace, folder: Path) -> Path:
    """Fine-tune the model that all ways start from on short documents; one sentence of each tells its label."""
    for split, count in (("train", asked.short), ("validation", 500)):
        write_rows(make_documents(asked.data, 1, split, count, SHORT), folder / f"{split}.jsonl")
    settings = {"model": str(asked.model), "data.source": str(folder), "labels": ["negative", "positive"]}
    training = {"training.epochs": 1, "training.learning_rate": 2e-4, "training.max_length": LENGTH}
    finetune_here("classify", settings | training, folder / "run")
    return folder / "run"


def run_cases(task: str, way: str, seed: int, asked: argparse.Namespace, start: Path, data: Path) -> Iterator[Report]:
    """Train in a way, unless there are no epochs, and yield each case that it is scored as."""
    from bertkit.recipe import load_recipe
    from bertkit.workflows.evaluate import evaluate

    settings = {
        "model": str(start),
        "data.source": str(data),
        "labels": ["negative", "positive"],
        "metrics": ["accuracy"],
        "training.max_length": LENGTH,
        "training.batch_size": 8,
        "training.learning_rate": 2e-5,
        "training.seed": seed,
        "options.overlap": asked.overlap,
    }
    with tempfile.TemporaryDirectory() as folder:
        begin, model = time.process_time(), start
        if asked.epochs:
            model = Path(folder, "run")
            training = {"training.epochs": asked.epochs, "options.long_text": way}
            finetune_here("classify", settings | training, model)
        seconds = time.process_time() - begin
        for scored in WINDOWS if way in WINDOWS else (way,):
            recipe = load_recipe("classify", {**settings, "model": str(model), "options.long_text": scored})
            begin = time.process_time()
            evaluate(recipe, output=Path(folder, scored))
            predictions = read_lines(Path(folder, scored, "predictions.jsonl"))
            yield {
                "key": key_of(task, scored, seed, asked),
                "right": [int(row["prediction"] == row["label"]) for row in predictions],
                "train_seconds": round(seconds, 1),
                "eval_seconds": round(time.process_time() - begin, 1),
            }


def long_texts_part(cases: Sequence[Report]) -> str:
    """Build a table per task and training: accuracy over seeds, and the paired difference from truncation."""
    parts = []
    for task, epochs in product(TASKS, sorted({case["key"]["epochs"] for case in cases})):
        by_way: dict[str, list[Report]] = {}
        for case in cases:
            if (case["key"]["task"], case["key"]["epochs"]) == (task, epochs):
                by_way.setdefault(case["key"]["way"], []).append(case)
        if "head" not in by_way:
            continue
        head = np.mean([case["right"] for case in by_way["head"]], axis=0)
        documents, seeds = len(head), len(by_way["head"])
        trained = f"trained on {by_way['head'][0]['key']['train']} more" if epochs else "without training on any"
        title = f"**{task}**, {documents} long documents, {trained}, {seeds} seed{'s' if seeds > 1 else ''}:"
        draws = np.random.default_rng(0).integers(0, documents, size=(2000, documents))
        rows = []
        for way, of_way in by_way.items():
            right = np.mean([case["right"] for case in of_way], axis=0)  # (documents,), the share of seeds
            difference = right - head
            low, high = np.quantile(difference[draws].mean(axis=1), [0.025, 0.975])
            above = ["", ""] if way == "head" else [f"{difference.mean():+.3f}", f"{low:+.3f} to {high:+.3f}"]
            seconds = [np.mean([case[name] for case in of_way]) for name in ("train_seconds", "eval_seconds")]
            rows.append([f"`{way}`", f"{right.mean():.3f}", *above, *(f"{value:.0f}" for value in seconds)])
        titles = ("long_text", "accuracy", "above head", "95% interval", "core seconds to train", "to score")
        parts.append(f"{title}\n\n{table(titles, rows)}")
    return "\n\n".join(parts)


def main() -> None:
    own: dict[str, Any] = {
        "seeds": [1],
        "tasks": TASKS,
        "train": (400, "documents to train on"),
        "validation": (300, "documents to score"),
        "short": (12000, "short documents for the first model"),
        "epochs": (0.0, "on long documents"),
        "overlap": 32,
        "output": RESULTS / "long_texts.jsonl",
    }
    asked = read_options(__doc__, "model data", **own)
    done = [case["key"] for case in read_lines(asked.output)]
    missing = [
        (task, way, seed)
        for seed, task, way in product(asked.seeds, asked.tasks, TRAINED)
        if key_of(task, way, seed, asked) not in done
        and (asked.epochs or way != "hierarchical")  # its layer over windows would be untrained
    ]
    with tempfile.TemporaryDirectory() as folder:
        start = start_model(asked, Path(folder, "start")) if missing else Path(folder)
        for task, split in product(dict.fromkeys(task for task, *_ in missing), ("train", "validation")):
            rows = make_documents(asked.data, TASKS[task], split, getattr(asked, split))
            write_rows(rows, Path(folder, task, f"{split}.jsonl"))
        for task, way, seed in missing:
            for case in list(run_cases(task, way, seed, asked, start, Path(folder, task))):
                add_line(asked.output, case)
    print(long_texts_part(read_lines(asked.output)))


if __name__ == "__main__":
    main()
