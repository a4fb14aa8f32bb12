"""Decision models: what an answer costs, and what it depends on beside the text.

    python -m benchmarks.decisions --model DIR [--shapes minilm modernbert], or --model RUN --data rows.csv [--rows 200]

The first prints milliseconds of processor time for a text, of encoders with random weights: each question in its own
sequence, all in one pass, and a pair of texts per option, as in zero-shot inference. Of sequences that are read apart,
five are timed, and the time is multiplied. The second asks a run of `decide` its one choice again.
"""

from __future__ import annotations

import csv
import random
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

import bertkit
from benchmarks.harness import Report, read_options, table
from bertkit.modeling.heads.options import option_class
from bertkit.recipe import load_recipe

SHAPES: dict[str, dict[str, Any]] = {
    "minilm": {"model_type": "bert", "num_hidden_layers": 6, "hidden_size": 384, "intermediate_size": 1536},
    "modernbert": {"model_type": "modernbert"},  # the base size
}
POSITIONS, MEASURED, COLUMNS = 8192, 5, {"state": "state", "questions": "questions"}
IRRELEVANT = ["the weather of tomorrow", "a recipe for soup", "who won the match", "learning the piano", "a lost dog"]
_WORDS = ["card", "payment", "declined", "shop", "transfer", "fee", "refund", "pending"]


def write_models(shape: str, tokenizer_of: Path, folder: Path) -> None:
    """Write two models with random weights: `folder`/options for questions, and `folder`/pairs for inference."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of, model_max_length=POSITIONS)
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "cls", "sep")}
    fields = {"num_attention_heads": 12, "vocab_size": len(tokenizer), "max_position_embeddings": POSITIONS, **ids}
    config = AutoConfig.for_model(**SHAPES[shape], **fields, id2label={0: "entailment", 1: "neutral", 2: "other"})
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder / "pairs")
    config.num_labels = 1
    config.option_separator, config.option_marker = tokenizer.sep_token_id, tokenizer.mask_token_id
    option_class(type(config))(config).save_pretrained(folder / "options")
    for saved in folder.iterdir():
        tokenizer.save_pretrained(saved)


def measure(shape: str, folder: Path) -> Iterator[Report]:
    """Yield the milliseconds of each number of questions, words and options."""
    changes = {"training.max_length": POSITIONS, "data.columns": COLUMNS}
    loaded = {"apart": bertkit.load(folder / "options", "decide", changes=changes)}
    if shape != "modernbert":  # it has windows
        changes["options.one_pass"] = True
        loaded["one pass"] = bertkit.load(folder / "options", "decide", changes=changes)
    changes = {"training.max_length": POSITIONS, "data.columns": {"text_pair": "text_pair"}}
    inference, draw = bertkit.load(folder / "pairs", "classify", changes=changes), random.Random(0)
    for words, options in product((50, 500), (3, 77)):
        state = " ".join(draw.choices(_WORDS, k=words))
        labels = [f"{draw.choice(_WORDS)} {draw.choice(_WORDS)} {number}" for number in range(options)]
        pairs = [{"text": state, "text_pair": f"This is about {label}."} for label in labels[:MEASURED]]
        of_pair = time_of(inference, pairs) / len(pairs)
        for questions in (1, 5, 20):
            times = {"words": words, "options": options, "questions": questions}
            for way, model in loaded.items():
                count = questions if way == "one pass" else min(questions, MEASURED)
                asked = {f"q{number}": {"type": "choice", "criteria": labels} for number in range(count)}
                times[way] = time_of(model, [{"state": state, "questions": asked}]) * questions / count
            yield {**times, "inference": of_pair * options * questions}


def time_of(model: Any, rows: list[Report]) -> float:
    """Return the milliseconds of processor time of an answer, the median of five or, of slow ones, of fewer."""
    times: list[float] = []
    while len(times) < 5 and sum(times) < 2000:
        begin = time.process_time()
        model.predict(rows)
        times.append(1000 * (time.process_time() - begin))
    return float(np.median(times[1:] or times))


def ask_again(run: Path, data: Path, count: int) -> Iterator[Report]:
    """Yield how answers change with permuted and with irrelevant labels, and what an empty text is answered."""
    [asked] = load_recipe(str(run / "recipe.yaml")).options["questions"].values()
    labels = list(asked["criteria"])
    model = bertkit.load(run, changes={"options.questions": None, "data.columns": COLUMNS})
    with data.open(encoding="utf-8", newline="") as stream:
        texts = [row["text"] for row in csv.DictReader(stream)][:count]

    def answer(given: list[str], texts: list[str]) -> np.ndarray:
        question = {"choice": {**asked, "criteria": given}}
        records = model.predict([{"state": text, "questions": question} for text in texts])
        return np.array([[each["decisions"]["choice"]["probabilities"][name] for name in labels] for each in records])

    before = answer(labels, texts)  # (texts, labels)
    chosen = np.arange(len(texts)), before.argmax(axis=1)
    for name, given in {"permuted": labels[::-1], "irrelevant added": labels + IRRELEVANT}.items():
        after = answer(given, texts)
        change, flips = np.abs(after - before)[chosen], (after.argmax(axis=1) != chosen[1]).mean()
        yield {"labels": name, "flips": f"{flips:.1%}", "mean": change.mean(), "most": change.max()}
    away = np.abs(answer(labels, [""])[0] - 1 / len(labels))
    yield {"labels": "empty text, beside uniform", "flips": "", "mean": away.mean(), "most": away.max()}


def main() -> None:
    asked = read_options(__doc__, "model data?", rows=200, shapes=SHAPES)
    if asked.data:
        shown = {"labels": "{labels}", "flips": "{flips}", "mean change": "{mean:.4f}", "largest": "{most:.4f}"}
        print(table(shown, ask_again(asked.model, asked.data, asked.rows)))
    for shape in () if asked.data else asked.shapes:
        with tempfile.TemporaryDirectory() as folder:
            write_models(shape, asked.model, Path(folder))
            rows = list(measure(shape, Path(folder)))
        print(f"{shape}:\n\n{table({title: f'{{{title}:,.0f}}' for title in rows[0]}, rows)}\n", flush=True)


if __name__ == "__main__":
    main()
