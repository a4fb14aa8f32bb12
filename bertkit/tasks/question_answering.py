"""Answer a question by a span of a text (SQuAD 1.1; Devlin et al. 2019, section 4.2), or say that there is none (2.0).

A text longer than the window is read in windows that overlap; the best spans of all windows compete.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.rows import Columns
from bertkit.errors import DataError
from bertkit.metrics import answers
from bertkit.modeling import load as models
from bertkit.recipe import Recipe, Row
from bertkit.recipe.options import Option, read_option
from bertkit.tasks import Answer, Details, no_precompute
from bertkit.tokens import answer_spans as spans
from bertkit.tokens.features import (
    Collator,
    Feature,
    Setup,
    find_template,
    padding_collator,
    token_budget,
    tokenize_texts,
)

COLUMNS = Columns(given=("question", "context"), gold="answers", lists=("answers",))
NAMED: bool = False
_BY_ANSWER = ("HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")
_BY_THRESHOLD = ("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh")
METRICS: tuple[str, ...] = ("exact_match", "f1", *_BY_ANSWER, *_BY_THRESHOLD)
OPTIONS: Mapping[str, Any] = {
    "no_answer": False,
    "overlap": 128,
    "n_best": Option(20, least=1),
    "max_answer_length": Option(30, least=1),
    "null_threshold": None,
}

precompute = no_precompute

_NO_ANSWER, _OTHERS = "no answer", "(others)"
_NOWHERE = -1e4  # the score where there is no span to choose: lower than any sum of two logits


def read(row: Row, recipe: Recipe) -> Row:
    """Check the question, the text and the answers, which become ``{"text": [...], "answer_start": [...]}``.

    Answers come so, as a list of ``{"text", "answer_start"}``, as (text, start), as JSON of one of these, or as plain
    text that occurs once.

    Raises:
        DataError: no text, no answer where there must be one, or an answer that is not where it is said to be.
    """
    for column in ("question", "context"):
        if not isinstance(row[column], str) or not row[column].strip():
            raise DataError(f"{answers.name(row)}no {column}", "fill it in, or leave the row out", column=column)
    if "answers" not in row:
        return row
    texts, starts = answers.read_answers(row)
    if not texts and not _option(recipe, "no_answer"):
        what = f"{answers.name(row)}no answer, though every question has one here"
        raise DataError(what, "use the recipe squad2, or --set options.no_answer=true", column="answers")
    return {**row, "answers": {"text": texts, "answer_start": starts}}


def load_model(folder: Path, setup: Setup, *, new_head: bool) -> Any:
    """Load an encoder with two outputs a token: does the answer begin here, does it end here."""
    return models.load_model("AutoModelForQuestionAnswering", folder, models.placeholder_names(2), new_head=new_head)


def encode(rows: Sequence[Row], setup: Setup) -> list[Feature]:
    """Encode question and text in windows of the text.

    ``context`` is the position of the window's first token of the text, ``offsets`` the characters its tokens stand
    for, shape (tokens, 2). A window without the answer has it at position 0, as has a question without one.
    """
    frame = find_template(setup.tokenizer, pair=True)
    whole = token_budget(setup, frame)
    questions = _encode_once([row["question"].lstrip() for row in rows], setup)
    contexts = _encode_once([row["context"] for row in rows], setup)
    offsets = {
        text: spans.extend_offsets(text, np.array(encoded.offsets, dtype=np.int64).reshape(-1, 2))
        for text, encoded in contexts.items()
    }
    overlap = _option(setup.recipe, "overlap")
    features = []
    for number, row in enumerate(rows):
        question = questions[row["question"].lstrip()].ids[: whole // 2]
        tokens, places = contexts[row["context"]].ids, offsets[row["context"]]
        first = len(frame.before) + len(question) + len(frame.between)
        room = whole - len(question)
        for part in spans.window_slices(len(tokens), room, min(overlap, room // 2)):
            feature = {"row": number, **frame.fill(question, tokens[part])}
            feature.update(context=first, offsets=places[part])
            if "answers" in row:
                begin, end = spans.find_answer_tokens(row["answers"], places[part])
                feature.update(start_positions=first + begin if end >= 0 else 0)
                feature.update(end_positions=first + end if end >= 0 else 0)
            features.append(feature)
    return features


def collator(setup: Setup) -> Collator:
    """Make the padding collator, which gives ``start_positions`` and ``end_positions`` of shape (windows,) too."""
    import torch

    pad = padding_collator(setup)

    def collate(features: Sequence[Feature]) -> dict[str, torch.Tensor]:
        batch = pad(features)
        if all("start_positions" in feature for feature in features):
            for name in ("start_positions", "end_positions"):
                batch[name] = torch.tensor([feature[name] for feature in features])
        return batch

    return collate


def decode(
    outputs: Sequence[Mapping[str, Any]], features: Sequence[Feature], rows: Sequence[Row], setup: Setup
) -> list[dict[str, Any]]:
    """Give each question its best answer: ``prediction``, its characters ``start`` and ``end``, score, probability.

    The score is the sum of the two logits; the probability is among the best spans. With `no_answer`, ``null_odds``
    is the score of no answer less that of the best span: above the threshold, the prediction is empty.
    """
    kept = [(each["row"], each["context"], each["offsets"]) for each in features]
    inside = [slice(first, first + len(offsets)) for _, first, offsets in kept]
    found = spans.find_n_best(
        [output["start_logits"][part] for output, part in zip(outputs, inside, strict=True)],
        [output["end_logits"][part] for output, part in zip(outputs, inside, strict=True)],
        np.array([row for row, _, _ in kept]),
        n_best=_option(setup.recipe, "n_best"),
        max_tokens=_option(setup.recipe, "max_answer_length"),
    )
    offsets = np.concatenate([offsets for _, _, offsets in kept])
    before = np.cumsum([0, *(len(offsets) for _, _, offsets in kept)])[found["window"]]
    nulls = _null_scores(outputs, features, len(rows)) if _option(setup.recipe, "no_answer") else None
    columns = {
        "start": offsets[before + found["start"], 0].tolist(),
        "end": offsets[before + found["end"], 1].tolist(),
        "start_logit": found["start_logit"].tolist(),
        "end_logit": found["end_logit"].tolist(),
        "score": (found["start_logit"].astype(np.float64) + found["end_logit"]).tolist(),
        "probability": spans.probabilities(found["score"], found["row"], len(rows), nulls).tolist(),
    }
    edges = np.searchsorted(found["row"], np.arange(len(rows) + 1)).tolist()
    threshold = float(_option(setup.recipe, "null_threshold") or 0.0)
    parts = itertools.starmap(slice, itertools.pairwise(edges))
    contexts, known = (row["context"] for row in rows), itertools.repeat(None) if nulls is None else nulls.tolist()
    return [_choose(*each, threshold) for each in zip(contexts, itertools.repeat(columns), parts, known, strict=False)]


def compare(predictions: Sequence[Mapping[str, Any]], rows: Sequence[Row], setup: Setup) -> dict[str, Any]:
    """Give exact match and F1 of each question in [0, 1], and with `no_answer` what the best threshold depends on."""
    no_answer = bool(_option(setup.recipe, "no_answer"))
    scored = [
        answers.score_answer(row["answers"]["text"], each["prediction"], no_answer=no_answer)
        for row, each in zip(rows, predictions, strict=True)
    ]
    return {
        "exact": np.array([exact for exact, _ in scored]),
        "f1": np.array([f1 for _, f1 in scored]),
        "has_answer": np.array([bool(row["answers"]["text"]) for row in rows]),
        "empty": np.array([not each["prediction"] for each in predictions]),
        "null_odds": np.array([each.get("null_odds", 0.0) for each in predictions]),
    }


def score(compared: Mapping[str, Any], setup: Setup) -> dict[str, float]:
    """Give the metrics of the official evaluation in percent; NaN where no question is of the kind."""
    return {name: _measure(name, compared) for name in setup.recipe.metrics}


def baseline(training: Sequence[Row], rows: Sequence[Row], setup: Setup) -> list[dict[str, Any]]:
    """Predict no answer."""
    return [{"prediction": ""} for _ in rows]


def tune(predictions: Sequence[Mapping[str, Any]], rows: Sequence[Row], setup: Setup) -> dict[str, Any]:
    """Choose the threshold on ``null_odds`` that has the best F1 on these rows, unless the recipe sets one."""
    if not _option(setup.recipe, "no_answer") or _option(setup.recipe, "null_threshold") is not None:
        return {}
    best = [{**each, "prediction": _best_text(each)} for each in predictions]
    found = compare(best, rows, setup)
    columns = (found[name] for name in ("f1", "empty", "null_odds", "has_answer"))
    return {"null_threshold": answers.best_threshold(*columns)[1]}


def details(predictions: Sequence[Mapping[str, Any]], rows: Sequence[Row], setup: Setup) -> Details:
    """Tell the scores by the question's first word, and write the files that SQuAD's evaluation reads."""
    compared = compare(predictions, rows, setup)
    ids = [str(row.get("id", number)) for number, row in enumerate(rows)]
    files: dict[str, Any] = {
        "predictions.json": {name: each["prediction"] for name, each in zip(ids, predictions, strict=True)},
        "nbest_predictions.json": {name: n_best(each) for name, each in zip(ids, predictions, strict=True)},
    }
    if _option(setup.recipe, "no_answer"):
        files["null_odds.json"] = {name: each["null_odds"] for name, each in zip(ids, predictions, strict=True)}
    told = [
        Answer(
            " | ".join(dict.fromkeys(row["answers"]["text"])) or _NO_ANSWER,
            each["prediction"] or _NO_ANSWER,
            bool(exact),
            each["probability"],
        )
        for row, each, exact in zip(rows, predictions, compared["exact"], strict=True)
    ]
    return Details({"by the first word of the question": _by_first_word(rows, compared)}, files, told)


def _option(recipe: Recipe, name: str) -> Any:
    return read_option(OPTIONS, recipe, name)


def _encode_once(texts: Sequence[str], setup: Setup) -> dict[str, Any]:
    """Give the tokens of each different text: SQuAD asks about five questions of one paragraph."""
    different = list(dict.fromkeys(texts))
    return dict(zip(different, tokenize_texts(setup.tokenizer, different), strict=True)) if different else {}


def _null_scores(outputs: Sequence[Mapping[str, Any]], features: Sequence[Feature], rows: int) -> np.ndarray[Any, Any]:
    """Give each row's score of no answer: the lowest of its windows, since one that has the answer is enough."""
    scores = np.full(rows, np.inf)
    found = [float(output["start_logits"][0]) + float(output["end_logits"][0]) for output in outputs]
    np.minimum.at(scores, [feature["row"] for feature in features], found)
    return scores


def _choose(
    context: str, columns: Mapping[str, list[Any]], part: slice, null: float | None, threshold: float
) -> dict[str, Any]:
    """Choose the answer of one question, whose spans, best first, are a part of all columns."""
    kept: dict[str, Any] = {"_spans": (context, columns, part), "_null": null}
    found = part.start < part.stop
    if null is not None:
        kept["null_odds"] = null - (columns["score"][part.start] if found else _NOWHERE)
    if not found or (null is not None and kept["null_odds"] > threshold):
        chance = None if null is None else 1 - sum(columns["probability"][part])
        return {"prediction": "", "start": None, "end": None, "score": null, "probability": chance, **kept}
    top = {name: columns[name][part.start] for name in ("start", "end", "score", "probability")}
    return {"prediction": context[top["start"] : top["end"]], **top, **kept}


def n_best(prediction: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give a question's n-best list as the Hugging Face script writes it."""
    context, columns, part = prediction["_spans"]
    kept = [columns[name][part] for name in ("start", "end", "probability", "start_logit", "end_logit")]
    listed = [
        {"text": context[start:end], "probability": chance, "start_logit": start_logit, "end_logit": end_logit}
        for start, end, chance, start_logit, end_logit in zip(*kept, strict=True)
    ]
    null = prediction["_null"]
    if null is not None:
        chance = 1 - sum(span["probability"] for span in listed)
        listed.append({"text": "", "probability": chance, "start_logit": null / 2, "end_logit": null / 2})
        listed.sort(key=lambda span: -(span["start_logit"] + span["end_logit"]))
    return listed


def _best_text(prediction: Mapping[str, Any]) -> str:
    """Give the text of the best span, whether or not it was chosen."""
    context, columns, part = prediction["_spans"]
    return str(context[columns["start"][part.start] : columns["end"][part.start]]) if part.start < part.stop else ""


def _measure(name: str, compared: Mapping[str, Any]) -> float:
    exact, f1, has_answer = compared["exact"], compared["f1"], compared["has_answer"]
    if name.startswith("best_"):
        scores = exact if name.startswith("best_exact") else f1
        best, threshold = answers.best_threshold(scores, compared["empty"], compared["null_odds"], has_answer)
        return threshold if name.endswith("_thresh") else 100 * best
    values = f1 if name.endswith("f1") else exact
    if name.startswith(("HasAns", "NoAns")):
        values = values[has_answer if name.startswith("HasAns") else ~has_answer]
    return float(100 * values.mean()) if len(values) else float("nan")


def _by_first_word(rows: Sequence[Row], compared: Mapping[str, Any], most: int = 8) -> list[dict[str, Any]]:
    """Give the scores of the questions that begin with each of the most frequent words, and of the others."""
    words = [row["question"].split()[0].lower().strip("\"'¿?.,") for row in rows]
    frequent = [word for word, _ in Counter(words).most_common(most)]
    kinds = np.array([word if word in frequent else _OTHERS for word in words])
    table = []
    for word in [*frequent, _OTHERS]:
        chosen = kinds == word
        if chosen.any():
            scores = {"exact_match": compared["exact"][chosen].mean(), "f1": compared["f1"][chosen].mean()}
            shown = {name: float(100 * share) for name, share in scores.items()}
            table.append({"question": word, **shown, "questions": int(chosen.sum())})
    return table
