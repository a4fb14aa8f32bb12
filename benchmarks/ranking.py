"""How `bertkit rank` orders small encoders, beside what fine-tuning them comes to.

    python -m benchmarks.ranking encoders runs --model DIR --data DIR --work DIR
    python -m benchmarks.ranking summary

Every run is one line of the output file, and is not repeated, so the same command goes on where it was stopped. The
encoders stay in `--work`. One core takes about 15 minutes for a seed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.cases import ROOT, Case, make_case
from benchmarks.ranking_encoders import PRETRAINED, folder_of, make_encoder, names_of
from benchmarks.ranking_summary import tables
from benchmarks.schedules import read_runs

Write = Callable[[Mapping[str, Any]], None]

OUTPUT = ROOT / "benchmarks" / "results" / "ranking.jsonl"
RECIPES = ("sst2", "stsb", "pos", "ner")
ROWS, SEEDS = 1000, (1, 2, 3)
TRAINING = {"training.learning_rate": 2e-4, "training.batch_size": 16, "training.evaluate_every": 10_000}
EPOCHS, MAX_LENGTH = 3, 64


def case_of(recipe: str, encoder: str, seed: int, asked: argparse.Namespace) -> Case:
    """Return what is fine-tuned, and what is ranked: the same rows."""
    options = {"limit": ROWS, "seed": seed, "epochs": EPOCHS, "max_length": MAX_LENGTH}
    return make_case(recipe, str(folder_of(encoder, asked.work)), asked.data, **options)


def finetune_one(case: Case, work: Path) -> dict[str, Any]:
    """Fine-tune an encoder, and return the score of the recipe's best metric on validation rows."""
    from bertkit.workflows.finetune import finetune

    folder, began, used = work / "run", time.monotonic(), time.process_time()
    shutil.rmtree(folder, ignore_errors=True)
    recipe = case.load(TRAINING)
    (result, *_) = finetune(recipe, output=folder)
    metric = recipe.best_metric or recipe.metrics[0]
    shutil.rmtree(folder)
    return {
        "metric": metric,
        "score": result.scores[metric],
        "scores": result.scores,
        "training_rows": ROWS,
        "rows": result.rows,
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(time.process_time() - used, 1),
    }


def make_all(asked: argparse.Namespace, write: Write) -> None:
    """Write the encoders that are not there yet."""
    for name in names_of(asked.steps):
        if not folder_of(name, asked.work).exists():
            write({"stage": "encoder", **make_encoder(name, asked.model, asked.data / "mlm_text", asked.work)})


def run_all(asked: argparse.Namespace, write: Write) -> None:
    """Fine-tune every encoder on every recipe with the first seed, and rank them; then take the other seeds."""
    for seed in SEEDS:
        for recipe in RECIPES:
            done = {(line["recipe"], line["encoder"], line["seed"]) for line in lines_of("finetune", asked.output)}
            for name in names_of(asked.steps):
                if (recipe, name, seed) not in done:
                    found = finetune_one(case_of(recipe, name, seed, asked), asked.work)
                    write({"stage": "finetune", "recipe": recipe, "encoder": name, "seed": seed, **found})
            ranked = {(line["recipe"], line["encoder"]) for line in lines_of("rank", asked.output)}
            if any((recipe, name) not in ranked for name in names_of(asked.steps)):
                for line in rank_one(recipe, asked):
                    write({"stage": "rank", "recipe": recipe, **line})


def rank_one(name: str, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Rank the encoders on the rows that they are fine-tuned on, by the mean of layers and by the last one."""
    from bertkit.workflows.rank import RankSettings, rank

    folders = {str(folder_of(name, asked.work).resolve()): name for name in names_of(asked.steps)}
    recipe = case_of(name, names_of(asked.steps)[0], SEEDS[0], asked).load()
    used = time.process_time()
    found = rank(recipe, list(folders), RankSettings(examples=ROWS))
    seconds = round(time.process_time() - used, 1)  # of all encoders, with the measurement of their speed
    return [
        {
            "encoder": folders[one.model],
            "by": found.by,
            "examples": found.examples,
            "scores": one.scores,
            "last": score_last(recipe, one.model),
            "interval": one.interval,
            "is_like_first": one.is_like_first,
            "is_like_next": one.is_like_next,
            "parameters": one.cost.parameters,
            "tokens_per_second": round(one.cost.tokens_per_second, 1),
            "cpu_seconds_of_all": seconds,
        }
        for one in found.encoders
    ]


def score_last(recipe: Any, model: str) -> dict[str, float]:
    """Compute the scores of an encoder's last layer, whose vectors are on disk by now."""
    from bertkit.insight.ranking.examples import choose_examples, read_features
    from bertkit.insight.ranking.layers import pool_layers
    from bertkit.insight.ranking.measure import H_SCORE, ORDERS
    from bertkit.tasks import load_task
    from bertkit.workflows.finetune.inputs import read_labeled
    from bertkit.workflows.rank import open_reader

    examples = choose_examples(load_task(recipe), read_labeled(recipe)[1]["train"], ROWS)
    vectors = read_features(open_reader(model, recipe), examples).pooled(pool_layers("last"))
    known = {name: score for name, score in ORDERS.items() if examples.is_named or name != H_SCORE}
    return {name: score(vectors, examples.gold) for name, score in known.items()}


def lines_of(stage: str, file: Path) -> list[dict[str, Any]]:
    """Read the recorded lines of a stage."""
    return [line for line in read_runs(file) if line["stage"] == stage]


def summarize(asked: argparse.Namespace, write: Write) -> None:
    """Print how well each score orders the encoders, of the lines that are there."""
    print(tables(lines_of("finetune", asked.output), lines_of("rank", asked.output)))


STAGES = {"encoders": make_all, "runs": run_all, "summary": summarize}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="+", choices=list(STAGES))
    parser.add_argument("--model", type=Path, help="folder of MiniLM-L6-H384")
    parser.add_argument("--data", type=Path, help="folder with glue, ud_en_ewt and mlm_text")
    parser.add_argument("--work", type=Path, help="folder that the encoders are kept in")
    parser.add_argument("--steps", type=int, nargs="*", default=PRETRAINED, help="of each encoder that is pretrained")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args()

    def write(line: Mapping[str, Any]) -> None:
        asked.output.parent.mkdir(parents=True, exist_ok=True)
        with asked.output.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
        print(line, flush=True)

    for stage in asked.stages:
        STAGES[stage](asked, write)


if __name__ == "__main__":
    main()
