"""bertkit's choice of answers beside a plain loop over windows: the same logits of SQuAD's questions, taking turns.

    python -m benchmarks.squad_decoding --model DIR --data DIR [--limit 1000]

A model that answers questions computes the logits. Of any other only the tokenizer is used, and logits are random
(seeded), with a gold answer that stands out. Both sides return the 20 best answers of every question with texts, logits
and probabilities, and must agree. Writes benchmarks/results/decoding.json. Seconds are of the one thread that decodes,
so it matters little what else runs.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.cases import ROOT, add_options, make_case, write_results
from benchmarks.load import machine
from bertkit.data.files import read_records
from bertkit.hardware.precision import detect_hardware
from bertkit.modeling import load as models
from bertkit.recipe import load_recipe
from bertkit.tasks import question_answering as task
from bertkit.tokens.features import Setup


def bertkit(outputs: list[dict], features: list[dict], rows: list[dict], setup: Setup) -> list[list[dict]]:
    """Return the answers of bertkit, with the n best of each question as a list of records."""
    answers = task.decode(outputs, features, rows, setup)
    return [{**each, "n_best": task.n_best(each)} for each in answers]


def plain(outputs: list[dict], features: list[dict], rows: list[dict], n_best: int, longest: int) -> list[list[dict]]:
    """Return the answers of a plain loop, as scripts for SQuAD have it.

    It pairs the best starts and ends of each window, and reads the texts off the context.
    """
    windows: dict[int, list[int]] = {}
    for number, feature in enumerate(features):
        windows.setdefault(feature["row"], []).append(number)
    answers = []
    for row, numbers in windows.items():
        candidates = []
        for number in numbers:
            first = features[number]["context"]
            offsets = features[number]["offsets"]
            start_logits = outputs[number]["start_logits"][first : first + len(offsets)]
            end_logits = outputs[number]["end_logits"][first : first + len(offsets)]
            starts = np.argsort(start_logits)[-1 : -n_best - 1 : -1].tolist()
            ends = np.argsort(end_logits)[-1 : -n_best - 1 : -1].tolist()
            for start in starts:
                for end in ends:
                    if end < start or end - start + 1 > longest:
                        continue
                    candidates.append(
                        {
                            "offsets": (offsets[start][0], offsets[end][1]),
                            "score": start_logits[start] + end_logits[end],
                            "start_logit": start_logits[start],
                            "end_logit": end_logits[end],
                        }
                    )
        best = sorted(candidates, key=lambda candidate: candidate["score"], reverse=True)[:n_best]
        context = rows[row]["context"]
        for candidate in best:
            candidate["start"], candidate["end"] = candidate.pop("offsets")
            candidate["text"] = context[candidate["start"] : candidate["end"]]
        scores = np.array([candidate.pop("score") for candidate in best])
        weights = np.exp(scores - np.max(scores))
        for candidate, probability in zip(best, weights / weights.sum(), strict=True):
            candidate["probability"] = probability
        answers.append(best)
    return answers


def make_logits(features: list[dict], seed: int) -> list[dict]:
    """Return noise, and 8 more where the answer begins and ends."""
    rng = np.random.default_rng(seed)
    outputs = []
    for feature in features:
        output = {}
        for name in ("start", "end"):
            logits = rng.normal(size=len(feature["input_ids"])).astype(np.float32)
            logits[feature[f"{name}_positions"]] += 8
            output[f"{name}_logits"] = logits
        outputs.append(output)
    return outputs


def model_logits(folder: Path, features: list[dict], setup: Setup) -> list[dict]:
    """Return the model's logits of each window."""
    from bertkit.evaluation.forward import forward

    machine = detect_hardware("auto")
    model = task.load_model(folder, setup, new_head=False)
    return forward(model, features, task.collator(setup), precision=machine.precision)[0]


def check_equal(ours: list[dict], theirs: list[list[dict]]) -> int:
    """Compare all answers; equal scores have no order, so those are compared as sets. Return how many there are."""
    ties = 0
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        scores = [np.float32(each["start_logit"]) + np.float32(each["end_logit"]) for each in one["n_best"]]
        assert scores == [each["start_logit"] + each["end_logit"] for each in other]
        groups = [
            {
                score: {(each["text"], float(each["start_logit"])) for each in group}
                for score in set(scores)
                for group in [[each for each, own in zip(side, scores, strict=True) if own == score]]
            }
            for side in (one["n_best"], other)
        ]
        tied = {score for score in scores if scores.count(score) > 1}
        ties += len(tied)
        assert all(groups[0][score] == groups[1][score] for score in groups[0] if score != scores[-1])
        if scores[-1] not in tied and groups[0][scores[-1]] != groups[1][scores[-1]]:
            ties += 1  # the last rank is shared with a span that is on neither list's end
            assert [each["start_logit"] + each["end_logit"] for each in other][-1] == scores[-1]
        if scores[0] not in tied:
            assert (one["prediction"], one["start"], one["end"]) == tuple(
                other[0][key] for key in ("text", "start", "end")
            )
        np.testing.assert_allclose(
            [each["probability"] for each in one["n_best"]], [each["probability"] for each in other], rtol=1e-4
        )
    return ties


def timed(work: Callable[[], list]) -> tuple[float, list]:
    """Return the processor seconds that `work` took, and its result; the garbage collector is off meanwhile."""
    gc.collect()
    gc.disable()
    began = time.thread_time()
    result = work()
    seconds = time.thread_time() - began
    gc.enable()
    return seconds, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the random logits")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    n_best, longest = 20, 30
    recipe = load_recipe("squad", {"options.n_best": n_best, "options.max_answer_length": longest})
    case = make_case("squad", arguments.model, arguments.data)
    file = Path(case.data, "validation.parquet")
    rows = [task.read(row, recipe) for _, row in read_records(file, recipe.data)][: arguments.limit]
    model = Path(case.model)
    setup = Setup(recipe, models.load_tokenizer(model), ())
    features = task.encode(rows, setup)
    answers = "QuestionAnswering" in models.read_config(model)["architectures"][0]
    outputs = model_logits(model, features, setup) if answers else make_logits(features, arguments.seed)
    engines = {
        "bertkit": lambda: bertkit(outputs, features, rows, setup),
        "plain loop": lambda: plain(outputs, features, rows, n_best, longest),
    }
    rounds: dict[str, list[float]] = {name: [] for name in engines}
    ties = 0
    for _ in range(arguments.rounds):
        results = []
        for name, work in engines.items():
            seconds, result = timed(work)
            rounds[name].append(seconds)
            results.append(result)
        ties = check_equal(*results)
    median = {name: statistics.median(each) for name, each in rounds.items()}
    report = {
        "machine": machine(arguments.threads),
        "questions": len(rows),
        "windows": len(features),
        "logits": "model" if answers else "random",
        "n_best": n_best,
        "equal_scores": ties,
        "seconds": median,
        "ratio": median["plain loop"] / median["bertkit"],
        "rounds": rounds,
    }
    write_results(report, arguments.output / "decoding.json")
    print(f"{median['bertkit']:.2f} s, plain loop {median['plain loop']:.2f} s: {report['ratio']:.1f}x")


if __name__ == "__main__":
    main()
