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
import itertools
import json
import random
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet

from benchmarks.cases import ROOT
from benchmarks.schedules import read_runs
from bertkit.storage.files import split_lines

TASKS = {"needle": 1, "majority": 7}  # -> sentences of SST-2 in a document
WINDOWS = ("windows_mean", "windows_max", "windows_vote")
TRAINED = ("head", "tail", "head_tail", "windows_mean", "hierarchical")
LENGTH = 256
LONG, SHORT = (400, 2000), (0, 100)
"""Words of the documents that are scored, and of those that the first model learns from."""

_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_SPLITS = ("train", "validation")


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
    texts = parquet.read_table(data / "mlm_text" / f"{split}.parquet", columns=["text"])["text"].to_pylist()
    filler = [part for text in texts for part in _SENTENCE.split(text.strip()) if 4 <= part.count(" ") <= 40]
    table = parquet.read_table(data / "glue" / "sst2" / f"{split}.parquet", columns=["sentence", "label"]).to_pylist()
    sentences = [(row["sentence"].strip(), row["label"]) for row in table if row["sentence"].count(" ") >= 4]
    return [make_document(filler, sentences, planted, draw.randint(*words), draw) for _ in range(count)]


def write_rows(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write rows as lines of JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def key_of(task: str, way: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return what identifies a case."""
    counts = {name: getattr(options, name) for name in ("train", "validation", "short", "epochs", "overlap")}
    return {"task": task, "way": way, "seed": seed, "max_length": LENGTH, **counts}


def start_model(options: argparse.Namespace, folder: Path) -> Path:
    """Fine-tune the model that all ways start from on short documents; one sentence of each tells its label."""
    from bertkit.recipe import load_recipe
    from bertkit.workflows.finetune import finetune

    for split, count in (("train", options.short), ("validation", 500)):
        write_rows(make_documents(options.data, 1, split, count, SHORT), folder / f"{split}.jsonl")
    settings = {"model": str(options.model), "data.source": str(folder), "labels": ["negative", "positive"]}
    training = {"training.epochs": 1, "training.learning_rate": 2e-4, "training.max_length": LENGTH}
    finetune(load_recipe("classify", settings | training), output=folder / "run")
    return folder / "run"


def run_cases(task: str, way: str, seed: int, options: argparse.Namespace, start: Path, data: Path) -> Iterator[Any]:
    """Train in a way, unless there are no epochs, and yield each case that it is scored as."""
    from bertkit.recipe import load_recipe
    from bertkit.workflows.evaluate import evaluate
    from bertkit.workflows.finetune import finetune

    settings = {
        "model": str(start),
        "data.source": str(data),
        "labels": ["negative", "positive"],
        "metrics": ["accuracy"],
        "training.max_length": LENGTH,
        "training.batch_size": 8,
        "training.learning_rate": 2e-5,
        "training.seed": seed,
        "options.overlap": options.overlap,
    }
    with tempfile.TemporaryDirectory() as folder:
        begin, model = time.process_time(), start
        if options.epochs:
            model = Path(folder, "run")
            training = {"training.epochs": options.epochs, "options.long_text": way}
            finetune(load_recipe("classify", settings | training), output=model)
        seconds = time.process_time() - begin
        for scored in WINDOWS if way in WINDOWS else (way,):
            recipe = load_recipe("classify", {**settings, "model": str(model), "options.long_text": scored})
            begin = time.process_time()
            evaluate(recipe, output=Path(folder, scored))
            predictions = split_lines(Path(folder, scored, "predictions.jsonl").read_text(encoding="utf-8"))
            right = [int(row["prediction"] == row["label"]) for row in map(json.loads, predictions)]
            yield {
                "key": key_of(task, scored, seed, options),
                "right": right,
                "train_seconds": round(seconds, 1),
                "eval_seconds": round(time.process_time() - begin, 1),
            }


def long_texts_part(cases: Sequence[dict[str, Any]]) -> str:
    """Build a table per task and training: accuracy over seeds, and the paired difference from truncation."""
    lines = []
    for task, epochs in itertools.product(TASKS, sorted({case["key"]["epochs"] for case in cases})):
        by_way: dict[str, list[dict[str, Any]]] = {}
        for case in cases:
            if (case["key"]["task"], case["key"]["epochs"]) == (task, epochs):
                by_way.setdefault(case["key"]["way"], []).append(case)
        if "head" not in by_way:
            continue
        head = np.mean([case["right"] for case in by_way["head"]], axis=0)
        documents, seeds = len(head), len(by_way["head"])
        trained = f"trained on {by_way['head'][0]['key']['train']} more" if epochs else "without training on any"
        lines += ["", f"**{task}**, {documents} long documents, {trained}, {seeds} seed{'s' if seeds > 1 else ''}:", ""]
        lines += ["| long_text | accuracy | above head | 95% interval | core seconds to train | to score |"]
        lines += ["|---|---:|---:|---:|---:|---:|"]
        draws = np.random.default_rng(0).integers(0, documents, size=(2000, documents))
        for way, of_way in by_way.items():
            right = np.mean([case["right"] for case in of_way], axis=0)  # (documents,), the share of seeds
            difference = right - head
            low, high = np.quantile(difference[draws].mean(axis=1), [0.025, 0.975])
            seconds = [np.mean([case[name] for case in of_way]) for name in ("train_seconds", "eval_seconds")]
            numbers = [f"{right.mean():.3f}"]
            numbers += ["", ""] if way == "head" else [f"{difference.mean():+.3f}", f"{low:+.3f} to {high:+.3f}"]
            lines.append(f"| `{way}` | {' | '.join([*numbers, *(f'{value:.0f}' for value in seconds)])} |")
    return "\n".join(lines).strip()


def main() -> None:
    """Run what is not there yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--train", type=int, default=400, help="documents to train on")
    parser.add_argument("--validation", type=int, default=300, help="documents to score")
    parser.add_argument("--short", type=int, default=12000, help="short documents for the first model")
    parser.add_argument("--epochs", type=float, default=0, help="on long documents")
    parser.add_argument("--overlap", type=int, default=32)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "long_texts.jsonl")
    options = parser.parse_args()
    done = [case["key"] for case in read_runs(options.output)]
    cases = [(task, way, seed) for seed in options.seeds for task in options.tasks for way in TRAINED]
    if not options.epochs:  # its layer over windows would be untrained
        cases = [case for case in cases if "hierarchical" not in case]
    missing = [case for case in cases if key_of(*case, options) not in done]
    with tempfile.TemporaryDirectory() as folder:
        start = start_model(options, Path(folder, "start")) if missing else None
        for task in dict.fromkeys(task for task, *_ in missing):
            for split in _SPLITS:
                rows = make_documents(options.data, TASKS[task], split, getattr(options, split))
                write_rows(rows, Path(folder, task, f"{split}.jsonl"))
        for task, way, seed in missing:
            assert start is not None
            options.output.parent.mkdir(parents=True, exist_ok=True)
            found = list(run_cases(task, way, seed, options, start, Path(folder, task)))
            with options.output.open("a", encoding="utf-8") as stream:
                stream.writelines(json.dumps(case) + "\n" for case in found)
    print(long_texts_part(read_runs(options.output)))


if __name__ == "__main__":
    main()
