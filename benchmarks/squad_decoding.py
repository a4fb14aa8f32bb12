"""bertkit's choice of answers beside a plain loop over windows: the same logits of SQuAD's questions, taking turns.

    python -m benchmarks.squad_decoding --model DIR --data DIR [--limit 1000]

A model that answers questions computes the logits. Of any other only the tokenizer is used, and logits are random
(seeded), with a gold answer that stands out. Both sides return the 20 best answers of every question with texts, logits
and probabilities, and must agree. Writes benchmarks/results/decoding.json. Seconds are of the one thread that decodes,
so it matters little what else runs.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import make_case
from benchmarks.harness import Report, ratio, read_options, take_turns, write_results
from benchmarks.load import machine
from bertkit.data.files import read_records
from bertkit.hardware.precision import detect_hardware
from bertkit.modeling import load as models
from bertkit.recipe import load_recipe
from bertkit.tasks import question_answering as task
from bertkit.tokens.features import Setup


def bertkit(outputs: list[Report], features: list[Report], rows: list[Report], setup: Setup) -> list[Report]:
    """Return the answers of bertkit, with the n best of each question as a list of records."""
    answers = task.decode(outputs, features, rows, setup)
    return [{**each, "n_best": task.n_best(each)} for each in answers]


def plain(
    outputs: list[Report], features: list[Report], rows: list[Report], n_best: int, longest: int
) -> list[list[Report]]:
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
            first, offsets = features[number]["context"], features[number]["offsets"]
            sides = [outputs[number][f"{name}_logits"][first : first + len(offsets)] for name in ("start", "end")]
            starts, ends = (np.argsort(logits)[-1 : -n_best - 1 : -1].tolist() for logits in sides)
            for start in starts:
                for end in ends:
                    if end < start or end - start + 1 > longest:
                        continue
                    answer = {"start": offsets[start][0], "end": offsets[end][1]}
                    candidates.append(answer | {"start_logit": sides[0][start], "end_logit": sides[1][end]})
        best = sorted(candidates, key=score, reverse=True)[:n_best]
        weights = np.exp([score(candidate) - score(best[0]) for candidate in best])
        for candidate, probability in zip(best, weights / weights.sum(), strict=True):
            candidate["text"] = rows[row]["context"][candidate["start"] : candidate["end"]]
            candidate["probability"] = probability
        answers.append(best)
    return answers


def score(answer: dict) -> Any:
    """Add the logits of an answer's start and end."""
    return np.float32(answer["start_logit"]) + np.float32(answer["end_logit"])


def make_logits(features: list[Report], seed: int) -> list[Report]:
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


def model_logits(folder: Path, features: list[Report], setup: Setup) -> list[Report]:
    """Return the model's logits of each window."""
    from bertkit.evaluation.forward import forward

    machine = detect_hardware("auto")
    model = task.load_model(folder, setup, new_head=False)
    return forward(model, features, task.collator(setup), precision=machine.precision)[0]


def check_equal(ours: list[Report], theirs: list[list[Report]]) -> int:
    """Check that all answers but those of equal scores, which have no order, are equal; return how many those are."""
    ties = 0
    for one, other in zip(ours, theirs, strict=True):
        scores = [score(each) for each in one["n_best"]]
        assert scores == [score(each) for each in other]
        ties += len({own for own in scores if scores.count(own) > 1})
        for mine, his, own in zip(one["n_best"], other, scores, strict=True):
            np.testing.assert_allclose(mine["probability"], his["probability"], rtol=1e-4)
            if scores.count(own) == 1 and own != scores[-1]:  # the last may tie with a span on neither list
                assert (mine["text"], mine["start_logit"]) == (his["text"], his["start_logit"])
    return ties


def timed(work: Callable[[], list[Any]]) -> Report:
    """Return the processor seconds that `work` took, and its result; the garbage collector is off meanwhile."""
    gc.collect()
    gc.disable()
    began = time.thread_time()
    result = work()
    seconds = time.thread_time() - began
    gc.enable()
    return {"seconds": seconds, "result": result}


def decoding_part(reports: Sequence[Report]) -> str:
    """Describe the time that it takes to choose answers, beside a plain loop."""
    [report] = reports
    ours, theirs = report["seconds"]["bertkit"], report["seconds"]["plain loop"]
    logits = "the model's" if report["logits"] == "model" else "random"
    return (
        f"{report['machine']['cpu']}. The {report['n_best']} best answers of {report['questions']:,} questions in"
        f" {report['windows']:,} windows from {logits} logits: bertkit took {ours:.2f} seconds of processor time, a"
        f" loop over windows {theirs:.2f} ({ratio(theirs, ours)}). Texts, offsets and probabilities are equal."
    )


def main() -> None:
    own = {"rounds": 5, "seed": (0, "of the random logits")}
    asked = read_options(__doc__, "model data limit threads output", **own)
    n_best, longest = 20, 30
    recipe = load_recipe("squad", {"options.n_best": n_best, "options.max_answer_length": longest})
    case = make_case("squad", asked.model, asked.data)
    file, model = Path(case.data, "validation.parquet"), Path(case.model)
    rows = [task.read(row, recipe) for _, row in read_records(file, recipe.data)][: asked.limit]
    setup = Setup(recipe, models.load_tokenizer(model), ())
    features = task.encode(rows, setup)
    is_trained = "QuestionAnswering" in models.read_config(model)["architectures"][0]
    outputs = model_logits(model, features, setup) if is_trained else make_logits(features, asked.seed)
    engines = {
        "bertkit": lambda: bertkit(outputs, features, rows, setup),
        "plain loop": lambda: plain(outputs, features, rows, n_best, longest),
    }
    runs = take_turns({name: partial(timed, work) for name, work in engines.items()}, asked.rounds)
    rounds = {name: [run["seconds"] for run in of_side] for name, of_side in runs.items()}
    median = {name: statistics.median(seconds) for name, seconds in rounds.items()}
    report = {
        "machine": machine(asked.threads),
        "questions": len(rows),
        "windows": len(features),
        "logits": "model" if is_trained else "random",
        "n_best": n_best,
        "equal_scores": check_equal(*(of_side[-1]["result"] for of_side in runs.values())),
        "seconds": median,
        "ratio": median["plain loop"] / median["bertkit"],
        "rounds": rounds,
    }
    write_results(report, asked.output / "decoding.json")
    print(decoding_part([report]))


if __name__ == "__main__":
    main()
