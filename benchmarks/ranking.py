"""How `bertkit rank` orders small encoders, beside what fine-tuning them comes to.

    python -m benchmarks.ranking encoders runs --model DIR --data DIR --work DIR
    python -m benchmarks.ranking summary

`--model` is MiniLM-L6-H384; the encoders are a random one, some that bertkit pretrains, and it cut short. They stay in
`--work`. `--data` has glue, ud_en_ewt and mlm_text. Every run is one line of the output file, and is not repeated, so
the same command goes on where it was stopped. One core takes about 15 minutes for a seed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.cases import Case, make_case
from benchmarks.harness import Report, add_line, finetune_here, measure_once, read_lines, run_bertkit

RECIPES = ("sst2", "stsb", "pos", "ner")
ROWS, SEEDS = 1000, (1, 2, 3)
TRAINING = {"training.learning_rate": 2e-4, "training.batch_size": 16, "training.evaluate_every": 10_000}
EPOCHS, MAX_LENGTH = 3, 64
RANDOM, WHOLE = "random", "MiniLM, 6 layers"
PRETRAINED = (200, 500)  # steps of 2,048 tokens
LAYERS = (1, 2, 3, 4)
VOCABULARY = 8000  # of the encoders that are pretrained here: what can be learnt of more in minutes is little
PRETRAINING = ("--size", "mini", "--max-length", "64", "--batch-size", "32", "--learning-rate", "1e-3")
ONCE = ("--set", "training.evaluate_every=1000000")
DRAWS = 2000
METHODS = {
    "default: H-score, of numbers LogME": lambda line: line["scores"][line["by"]],
    "LogME": lambda line: line["scores"]["logme"],
    "kNN": lambda line: line["scores"]["knn"],
    "linear probe": lambda line: line["scores"]["linear_probe"],
    "default, of the last layer": lambda line: line["last"][line["by"]],
    "LogME, of the last layer": lambda line: line["last"]["logme"],
    "number of parameters": lambda line: line["parameters"],
}
"""Name -> what an encoder is ordered by; the last one reads no row."""

Pairs = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Recipe -> a number that encoders are ordered by, and what their fine-tuning came to."""


# --- The encoders ---


def names_of(layers: Sequence[int] = LAYERS) -> list[str]:
    """Return the names of the encoders, the least trained first.

    >>> names_of([1])
    ['random', 'pretrained, 200 steps', 'pretrained, 500 steps', 'MiniLM, 1 layer', 'MiniLM, 6 layers']
    """
    cut = [f"MiniLM, {count} layer{'s' * (count > 1)}" for count in layers]
    return [RANDOM, *(f"pretrained, {count} steps" for count in PRETRAINED), *cut, WHOLE]


def folder_of(name: str, work: Path) -> Path:
    """Return the folder that an encoder is written to."""
    return work / "encoders" / name.replace(", ", "-").replace(" ", "-")


def make_encoder(name: str, model: Path, text: Path, work: Path) -> dict[str, Any]:
    """Write an encoder that is not there yet, and return what it took."""
    folder, began = folder_of(name, work), time.monotonic()
    folder.parent.mkdir(parents=True, exist_ok=True)
    found = {}
    if name == WHOLE:
        folder.symlink_to(model.resolve())
    elif name == RANDOM:
        make_random(model, folder)
    elif name.startswith("pretrained"):
        found = pretrain(name.split()[1], text, work, folder)
    else:
        from bertkit.compression.target_shape import Shape
        from bertkit.workflows.prune import prune

        prune(str(model), folder, Shape(layers=tuple(range(int(name.split()[1])))))
    return {"encoder": name, "seconds": round(time.monotonic() - began, 1), **found}


def make_random(model: Path, folder: Path) -> None:
    """Write an encoder of the shape of `model` whose weights are drawn anew."""
    import torch
    from transformers import AutoModel

    from bertkit.modeling.load import load_tokenizer
    from bertkit.modeling.weights import load_config

    torch.manual_seed(0)
    AutoModel.from_config(load_config(model)).save_pretrained(folder)
    load_tokenizer(model).save_pretrained(folder)


def pretrain(steps: str, text: Path, work: Path, folder: Path) -> dict[str, Any]:
    tokenizer, run = work / "tokenizer", work / f"pretraining-{steps}"
    if not tokenizer.exists():
        words = ["--vocabulary-size", VOCABULARY, "--output", tokenizer]
        run_bertkit("pretrain", "tokenizer", "--data", text, *words)
    options = ["--data", text, "--tokenizer", tokenizer, "--steps", steps, *PRETRAINING, *ONCE, "--output", run]
    result = run_bertkit("pretrain", "mlm", *options)
    folder.symlink_to(run.resolve())
    held_out, frequencies = result["scores"]["loss"], result["baselines"]["token frequencies"]["loss"]
    return {"loss": round(held_out, 3), "loss_of_frequencies": round(frequencies, 3), "tokens": result["tokens"]}


# --- The runs ---


def case_of(recipe: str, encoder: str, seed: int, asked: argparse.Namespace) -> Case:
    """Return what is fine-tuned, and what is ranked: the same rows."""
    options = {"limit": ROWS, "seed": seed, "epochs": EPOCHS, "max_length": MAX_LENGTH}
    return make_case(recipe, folder_of(encoder, asked.work), asked.data, **options)


def finetune_one(case: Case) -> Report:
    """Fine-tune an encoder, and return the score of the recipe's best metric on validation rows."""
    began, used, metric = time.monotonic(), time.process_time(), case.load().best_metric
    with tempfile.TemporaryDirectory() as folder:
        (result, *_) = finetune_here(case.recipe, {**case.changes(), **TRAINING}, Path(folder, "run"))
    return {
        "metric": metric,
        "score": result.scores[metric],
        "scores": result.scores,
        "training_rows": ROWS,
        "rows": result.rows,
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(time.process_time() - used, 1),
    }


def make_all(asked: argparse.Namespace) -> None:
    """Write the encoders that are not there yet."""
    for name in names_of():
        if not folder_of(name, asked.work).exists():
            encoder = make_encoder(name, asked.model, asked.data / "mlm_text", asked.work)
            add_line(asked.output, {"stage": "encoder", **encoder})


def run_all(asked: argparse.Namespace) -> None:
    """Fine-tune every encoder on every recipe with the first seed, and rank them; then take the other seeds."""
    for seed, recipe in product(SEEDS, RECIPES):
        for name in names_of():
            identity = {"stage": "finetune", "recipe": recipe, "encoder": name, "seed": seed}
            measure_once(asked.output, identity, partial(finetune_one, case_of(recipe, name, seed, asked)))
        ranked = {line["encoder"] for line in lines_of("rank", asked.output) if line["recipe"] == recipe}
        if not ranked.issuperset(names_of()):
            for line in rank_one(recipe, asked):
                add_line(asked.output, {"stage": "rank", "recipe": recipe, **line})


def rank_one(name: str, asked: argparse.Namespace) -> list[Report]:
    """Rank the encoders on the rows that they are fine-tuned on, by the mean of layers and by the last one."""
    from bertkit.workflows.rank import RankSettings, rank

    folders = {str(folder_of(name, asked.work).resolve()): name for name in names_of()}
    recipe = case_of(name, names_of()[0], SEEDS[0], asked).load()
    used, found = time.process_time(), rank(recipe, list(folders), RankSettings(examples=ROWS))
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


def lines_of(stage: str, file: Path) -> list[Report]:
    """Read the recorded lines of a stage."""
    return [line for line in read_lines(file) if line["stage"] == stage]


# --- The summary ---


def correlations(first: Any, second: Any) -> tuple[float, float]:
    """Return Pearson's r and Kendall's tau-b; NaN where one of the two is constant.

    >>> correlations([1, 2, 3], [10, 20, 30])
    (1.0, 1.0)
    """
    from scipy.stats import kendalltau

    if len(set(first)) < 2 or len(set(second)) < 2:
        return float("nan"), float("nan")
    return round(float(np.corrcoef(first, second)[0, 1]), 12), round(float(kendalltau(first, second).statistic), 12)


def mean_correlations(pairs: Pairs, draws: int = DRAWS) -> dict[str, Any]:
    """Return the means of both correlations over recipes, with 95% intervals of encoders drawn anew in each recipe."""
    own = np.mean([correlations(*pair) for pair in pairs.values()], axis=0)
    random, drawn = np.random.default_rng(0), []
    for _ in range(draws):
        of_draw = []
        for first, second in pairs.values():
            chosen = random.integers(len(first), size=len(first))
            of_draw.append(correlations(first[chosen], second[chosen]))
        drawn.append(np.nanmean(of_draw, axis=0))
    ends = np.nanpercentile(drawn, [2.5, 97.5], axis=0)
    return {
        name: {"mean": round(float(own[place]), 3), "interval": [round(float(end), 3) for end in ends[:, place]]}
        for place, name in enumerate(("pearson", "kendall"))
    }


def summarize(runs: Sequence[Report], ranks: Sequence[Report]) -> Report:
    """Return how well each method orders encoders, on the recipes where all of them were fine-tuned and ranked."""
    tuned: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        tuned.setdefault(run["recipe"], {}).setdefault(run["encoder"], []).append(run["score"])
    ranked: dict[str, dict[str, Report]] = {}
    for line in ranks:
        ranked.setdefault(line["recipe"], {})[line["encoder"]] = line
    whole = {name: lines for name, lines in ranked.items() if set(lines) == set(tuned.get(name, {}))}
    scores = {name: np.array([mean(tuned[name][encoder]) for encoder in lines]) for name, lines in whole.items()}
    methods = {}
    for method, read in METHODS.items():
        pairs = {name: (np.array(list(map(read, lines.values()))), scores[name]) for name, lines in whole.items()}
        lost = {name: round(float(true.max() - true[given.argmax()]), 4) for name, (given, true) in pairs.items()}
        methods[method] = {**mean_correlations(pairs), "lost_by_the_first": lost}
    ranking = sum(next(iter(lines.values()))["cpu_seconds_of_all"] for lines in whole.values())
    tuning = sum(run["cpu_seconds"] for run in runs if run["recipe"] in whole)
    return {"methods": methods, "cpu_seconds": {"fine-tuning": round(tuning, 1), "ranking": round(ranking, 1)}}


def show_summary(asked: argparse.Namespace) -> None:
    """Print how well each method orders the encoders, and the numbers of each encoder."""
    runs, ranks = (lines_of(stage, asked.output) for stage in ("finetune", "rank"))
    summary = summarize(runs, ranks)
    rows = []
    for name, method in summary["methods"].items():
        cells = [
            harness.with_ends(method[key]["mean"], method[key]["interval"], ".2f") for key in ("pearson", "kendall")
        ]
        lost = ", ".join(f"{recipe} {value:.3f}" for recipe, value in method["lost_by_the_first"].items())
        rows.append([name, *cells, lost])
    print(harness.table(("ordered by", "Pearson's r", "Kendall's tau", "lost by taking the first"), rows, "llll"), "\n")
    rows = []
    for line in ranks:
        names, scores = (line["recipe"], line["encoder"]), line["scores"]
        tuned = mean(run["score"] for run in runs if (run["recipe"], run["encoder"]) == names)
        values = [tuned, scores[line["by"]], scores["knn"], scores["linear_probe"]]
        rows.append([*names, *(f"{value:.3f}" for value in values)])
    print(harness.table(("recipe", "encoder", "fine-tuned", "score", "kNN", "linear probe"), rows, "llllll"), "\n")
    print(f"CPU seconds: {summary['cpu_seconds']}")


STAGES = {"encoders": make_all, "runs": run_all, "summary": show_summary}


def main() -> None:
    asked = harness.read_options(__doc__, "stages+ model? data?", work=Path, output=harness.RESULTS / "ranking.jsonl")
    for stage in asked.stages:
        STAGES[stage](asked)


if __name__ == "__main__":
    main()
