"""Answer typed questions about a text in one pass: yes or no, a choice among labels, or a score.

The encoder reads the text, the question and all of its options together, each option after a mask token of its own.
The state of that token becomes the option's logit, so it has seen the text, the question and the other options. A
softmax runs over the options of a question.

The order of labels changes no answer: they are read in an order that the text decides, in training and predicting
alike. So a model sees the labels of a data set in many orders too.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.labels import placeholder_names
from bertkit.data.questions import Question, parse_json, read_answer, read_answers, read_questions, read_state
from bertkit.metrics import calibration
from bertkit.metrics.decisions import softmax
from bertkit.metrics.questions import METRICS as SCORES
from bertkit.metrics.questions import NO_ANSWER, compute_scores, ranked_probability_score
from bertkit.modeling.heads.targets import Outputs as Tensors
from bertkit.modeling.heads.targets import Target, log_odds
from bertkit.modeling.info import Model
from bertkit.recipe.options import Option
from bertkit.tasks import (
    IGNORED,
    Answer,
    Collator,
    Columns,
    Compared,
    DataError,
    Details,
    Feature,
    Outputs,
    Prediction,
    Predictions,
    Recipe,
    Row,
    Setup,
    load_pretrained,
    read_option,
)
from bertkit.tokens.features import (
    Features,
    Rows,
    find_template,
    max_tokens,
    pad_features,
    to_batch,
    token_budget,
    tokenize_texts,
)

COLUMNS = Columns(
    given=("state",),
    gold="answers",
    optional=("questions",),
    blank=("state",),
    lists=("answers",),
    predicted=("decisions",),
)
TYPES: Mapping[str, Any] = {
    "state": str | list[Any] | dict[str, Any],
    "questions": dict[str, Any],
    "prediction": dict[str, Any],
    "decisions": dict[str, Any],
}
METRICS: tuple[str, ...] = SCORES

_FREQUENT = "most frequent answer"
_MOST_QUESTIONS = 100  # of a table
_LEAST_STATE = 4  # tokens of a text that are read beside its question


def _read_asked(value: Any) -> Any:
    try:
        return value if value is None else read_questions(value)
    except DataError as error:
        raise ValueError(f"{error.what}: {error.remedy}") from None


OPTIONS: Mapping[str, Any] = {**calibration.OPTIONS, "questions": Option(None, read=_read_asked)}

_option = partial(read_option, OPTIONS)


def read(row: Row, recipe: Recipe) -> Row | None:
    """Check the questions and the answers; a row that answers none of its questions is left out.

    Raises:
        DataError: a question is not as it must be, or an answer is none of its options.
    """
    checked = {**row, "state": read_state(row["state"])}
    if "questions" in row:
        checked["questions"] = parse_json(row["questions"])
        read_questions(checked["questions"])
    elif _option(recipe, "questions") is None:
        remedy = "give the rows a column `questions`, or the recipe --set options.questions"
        raise DataError("no questions", remedy, column="questions")
    if "answers" not in row:
        return checked
    checked["answers"] = read_answers(row["answers"], _questions_of(checked, recipe))
    return checked if checked["answers"] else None


def load_model(folder: Path, setup: Setup, *, new_head: bool) -> Model:
    """Load an encoder with one logit per token, which counts at the tokens of options."""
    from bertkit.modeling.heads.options import score_options

    model = load_pretrained(
        "AutoModelForTokenClassification",
        folder,
        placeholder_names(1),
        new_head=new_head,
        inference=setup.inference,
    )
    score_options(model)
    return model


def encode(rows: Rows, setup: Setup) -> list[Feature]:
    """Encode each question of a row that has an answer, or each, beside the text, which is cut where it does not fit.

    ``question`` is the number of a question in its row, and ``places`` are the tokens of its options in their order.

    Raises:
        DataError: a question and its options leave no room for a text.
    """
    template, tokenizer = find_template(setup.tokenizer, pair=True), setup.tokenizer
    budget, mask = token_budget(setup, template), tokenizer.mask_token_id
    asked = [_questions_of(row, setup.recipe) for row in rows]
    texts = {text for questions in asked for each in questions for text in (each.instructions, *each.texts)}
    ids = _token_ids(setup, texts)
    states = _token_ids(setup, (row["state"] for row in rows))
    features: list[Feature] = []
    for number, (row, questions) in enumerate(zip(rows, asked, strict=True)):
        answers = row.get("answers")
        for index, question in enumerate(questions):
            if answers is not None and question.name not in answers:
                continue
            order = _order(question, row["state"])
            second, places = list(ids[question.instructions]), [0] * len(order)
            for option in order:
                places[option] = len(second)
                second += [mask, *ids[question.texts[option]]]
            left = budget - len(second)
            if left < _LEAST_STATE:
                what = f"question {question.name!r} and its options take {len(second)} of {budget} tokens"
                raise DataError(what, "ask for fewer options at once, or describe them in fewer words", row=number + 1)
            state = states[row["state"]][:left]
            first = len(template.before) + len(state) + len(template.between)
            feature = {"row": number, "question": index, **template.fill(state, second)}
            feature["places"] = [first + place for place in places]
            if answers is not None:
                feature["labels"] = [IGNORED] * len(feature["input_ids"])
                feature["labels"][feature["places"][answers[question.name]]] = int(question.type == "score")
            features.append(feature)
    return features


def collator(setup: Setup) -> Collator:
    """Build the padding collator; ``markers`` is 1 at the tokens of options, and ``labels`` lies at the gold ones.

    Both are of shape (questions, tokens); a batch to predict has neither.
    """
    padding = {
        "input_ids": setup.tokenizer.pad_token_id,
        "token_type_ids": setup.tokenizer.pad_token_type_id,
        "labels": IGNORED,
    }

    def collate(features: Features) -> Any:
        batch = pad_features(features, padding, max_tokens(setup))
        if "labels" in batch:
            batch["markers"] = np.zeros_like(batch["labels"])
            for line, feature in zip(batch["markers"], features, strict=True):
                line[feature["places"]] = 1
        return to_batch(batch, setup)

    return collate


def decode(outputs: Outputs, features: Features, rows: Rows, setup: Setup) -> list[Prediction]:
    """Return the answer to each question by its name, and in ``decisions`` how sure it is.

    That is the ``probability`` of yes; the ``probabilities`` of labels and the ``confidence`` in the chosen one; or the
    ``expected`` level and the ``probabilities`` of all levels.
    """
    option = partial(_option, setup.recipe)
    records: list[Prediction] = [{"prediction": {}, "decisions": {}} for _ in rows]
    for output, feature in zip(outputs, features, strict=True):
        question = _questions_of(rows[feature["row"]], setup.recipe)[feature["question"]]
        logits = output["logits"][feature["places"], 0]
        probabilities = softmax(logits / option("temperature"))
        answer = question.value(int(probabilities.argmax()))
        record = records[feature["row"]]
        record["prediction"][question.name] = answer
        answers = [question.value(number) for number in range(len(probabilities))]
        record["decisions"][question.name] = {
            **_describe(question, probabilities.tolist()),
            **calibration.decide(probabilities, answers, option),
        }
    return records


def _describe(question: Question, probabilities: list[float]) -> dict[str, Any]:
    if question.type == "yes_no":
        return {"probability": probabilities[1]}
    if question.type == "score":
        levels = range(len(probabilities))
        return {"expected": float(np.dot(probabilities, levels)), "probabilities": probabilities}
    named = dict(zip(question.options, probabilities, strict=True))
    return {"probabilities": named, "confidence": max(probabilities)}


def gold_probabilities(predictions: Predictions, rows: Rows, setup: Setup) -> calibration.Decisions:
    """Return the probabilities of the options of all answered questions, 0 for those that a question lacks."""
    answered = [
        (number, row["answers"][each.name], _probabilities(each, record))
        for number, (row, record) in enumerate(zip(rows, predictions, strict=True))
        for each in _questions_of(row, setup.recipe)
        if each.name in row["answers"]
    ]
    padded = np.zeros((len(answered), max(len(of_options) for _, _, of_options in answered)))
    for line, (_, _, of_options) in zip(padded, answered, strict=True):
        line[: len(of_options)] = of_options
    numbers, gold = (np.array([each[column] for each in answered]) for column in (0, 1))
    return calibration.Decisions(padded, gold, numbers, per="row" if len(answered) == len(rows) else "question")


def _probabilities(question: Question, record: Prediction) -> list[float]:
    """Return the probabilities of a prediction's options in their order; 1 for the answer where it has none."""
    decision = record.get("decisions", {}).get(question.name)
    if decision is None:
        answer = read_answer(question, record["prediction"][question.name])
        return [float(number == answer) for number in range(len(question.options))]
    if question.type == "yes_no":
        return [1 - decision["probability"], decision["probability"]]
    of_options = decision["probabilities"]
    return list(of_options.values() if isinstance(of_options, Mapping) else of_options)


def targets(prediction: Prediction, outputs: Outputs, features: Features, row: Row, setup: Setup) -> list[Target]:
    """Return what can be explained: the log-odds of each answer among the options of its question."""
    found = []
    for number, feature in enumerate(features):
        question = _questions_of(row, setup.recipe)[feature["question"]]
        index = read_answer(question, prediction["prediction"][question.name]) or 0

        def score(outputs: Tensors, places: Any = feature["places"], index: int = index) -> Any:
            return log_odds(outputs["logits"][:, places, 0], index)

        found.append(Target(f"{question.name}: {question.options[index]}", score, feature=number))
    return found


def compare(predictions: Predictions, rows: Rows, setup: Setup) -> Compared:
    """Return arrays (rows, questions): numbers of gold and predicted answers, and how far levels are off.

    An answer has the same number in all rows that ask the question with it. ``ranked`` and ``error`` are NaN where a
    question has no levels.
    """
    most = max((len(row["answers"]) for row in rows), default=0)
    compared = {name: np.full((len(rows), most), NO_ANSWER) for name in ("gold", "predicted")}
    compared |= {name: np.full((len(rows), most), np.nan) for name in ("ranked", "error")}
    numbers: dict[tuple[str, str], int] = {}
    for line, (row, record) in enumerate(zip(rows, predictions, strict=True)):
        answered = [each for each in _questions_of(row, setup.recipe) if each.name in row["answers"]]
        for place, question in enumerate(answered):
            gold, given = row["answers"][question.name], record["prediction"].get(question.name)
            predicted = read_answer(question, given)
            if predicted is None:
                raise DataError(f"no answer to {question.name!r} is predicted", "predict one", row=line + 1)
            for name, option in (("gold", gold), ("predicted", predicted)):
                key = (question.name, question.options[option])
                compared[name][line, place] = numbers.setdefault(key, len(numbers))
            if question.type == "score":
                probabilities = _probabilities(question, record)
                expected = float(np.dot(probabilities, range(len(probabilities))))
                compared["error"][line, place] = abs(expected - gold)
                compared["ranked"][line, place] = ranked_probability_score(probabilities, gold)
    return compared


def score(compared: Compared, setup: Setup) -> dict[str, float]:
    """Compute the metrics over all answered questions; those of levels over the questions that have some."""
    return compute_scores(compared, setup.recipe.metrics)


def count_errors(compared: Compared) -> tuple[Any, Any]:
    """Count the wrong answers of each row, and all."""
    is_answered = compared["gold"] != NO_ANSWER
    return (is_answered & (compared["gold"] != compared["predicted"])).sum(axis=1), is_answered.sum(axis=1)


def fit_baselines(training: Rows, setup: Setup) -> dict[str, Any]:
    """Learn the most frequent answer to each question."""
    counts: dict[str, Counter[str]] = {}
    for row in training:
        for question in _questions_of(row, setup.recipe):
            if question.name in row["answers"]:
                answer = question.options[row["answers"][question.name]]
                counts.setdefault(question.name, Counter())[answer] += 1
    return {_FREQUENT: {name: [answer for answer, _ in of_name.most_common()] for name, of_name in counts.items()}}


def baselines(learned: Mapping[str, Any], rows: Rows, setup: Setup) -> dict[str, list[Prediction]]:
    """Give each question its most frequent answer in training; one that was never asked gets its first option."""
    predicted: list[Prediction] = []
    for row in rows:
        chosen = {}
        for question in _questions_of(row, setup.recipe):
            known = learned[_FREQUENT].get(question.name, ())
            option = next((question.options.index(answer) for answer in known if answer in question.options), 0)
            chosen[question.name] = question.value(option)
        predicted.append({"prediction": chosen})
    return {_FREQUENT: predicted}


def details(predictions: Predictions, rows: Rows, setup: Setup) -> Details:
    """Report each question by its name, and the answers as text."""
    tried: dict[tuple[str, str], list[tuple[bool, float]]] = {}
    answers = []
    for row, record in zip(rows, predictions, strict=True):
        gold, chosen, sure = [], [], []
        for question in _questions_of(row, setup.recipe):
            if question.name not in row["answers"]:
                continue
            right = row["answers"][question.name]
            predicted = read_answer(question, record["prediction"][question.name]) or 0
            probabilities = _probabilities(question, record)
            tried.setdefault((question.name, question.type), []).append((right == predicted, max(probabilities)))
            gold.append(f"{question.name}: {question.options[right]}")
            chosen.append(f"{question.name}: {question.options[predicted]}")
            sure.append(max(probabilities))
        answers.append(Answer("; ".join(gold), "; ".join(chosen), gold == chosen, min(sure, default=None)))
    table = [
        {
            "question": name,
            "type": kind,
            "accuracy": float(np.mean([is_right for is_right, _ in each])),
            "mean confidence": float(np.mean([confidence for _, confidence in each])),
            "rows": len(each),
        }
        for (name, kind), each in sorted(tried.items())
    ]
    return Details({"by question": table[:_MOST_QUESTIONS]}, answers=answers)


def _questions_of(row: Row, recipe: Recipe) -> list[Question]:
    """Return the questions of a row, or those that the recipe asks of every row."""
    return _read_once(json.dumps(row.get("questions") or _option(recipe, "questions")))


@lru_cache(4096)  # most rows ask what another one asks
def _read_once(questions: str) -> list[Question]:
    return read_questions(questions)


def _token_ids(setup: Setup, texts: Iterable[str]) -> dict[str, list[int]]:
    """Tokenize texts, each once."""
    unique = list(dict.fromkeys(texts))
    return (
        dict(zip(unique, (each.ids for each in tokenize_texts(setup.tokenizer, unique)), strict=True)) if unique else {}
    )


def _order(question: Question, state: str) -> list[int]:
    """Return the order in which options are read: that of levels, and of labels one that depends on the text alone."""
    numbers = range(len(question.options))
    if question.type != "choice":
        return list(numbers)
    return sorted(numbers, key=lambda number: (zlib.crc32(f"{state}\0{question.options[number]}".encode()), number))
