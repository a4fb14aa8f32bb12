"""Answer typed questions about a text in one pass: yes or no, a choice among labels, or a score.

The encoder reads the text, the question and all of its options together; each option follows its own mask token.
The mean state of an option's words becomes its logit, so it has seen the text, the question and the other options. A
softmax runs over the options of a question.

The order of labels changes no answer: they are read in an order that the text decides, in training and predicting
alike. So a model sees the labels of a dataset in many orders too.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.columns import ColumnSpec
from bertkit.data.formats.json import parse_json
from bertkit.data.labels import placeholder_names
from bertkit.errors import DataError, RecipeError
from bertkit.metrics import calibration
from bertkit.metrics.intervals import Metric
from bertkit.metrics.probabilities import softmax
from bertkit.metrics.registry import QUESTIONS
from bertkit.modeling.heads.targets import Outputs as Tensors
from bertkit.modeling.heads.targets import Target, log_odds
from bertkit.modeling.info import Model
from bertkit.modeling.load import load_pretrained
from bertkit.recipe.records import Option, Recipe, check_names, check_options, read_option
from bertkit.recipe.sections import Row
from bertkit.tasks import Answer, Outputs, Prediction, Predictions, RowScores, TaskReport, score_table
from bertkit.tokens.features import (
    Collator,
    Feature,
    Features,
    Rows,
    TaskContext,
    find_template,
    padding_collator,
    split_by_size,
    token_budget,
)
from bertkit.tokens.questions import TYPES as QUESTION_TYPES
from bertkit.tokens.questions import (
    Question,
    fill_questions,
    lay_out,
    read_answer,
    read_answers,
    read_questions,
    read_state,
    token_ids,
)

COLUMNS = ColumnSpec(
    inputs=("state",),
    gold="answers",
    optional=("questions",),
    blank=("state",),
    lists=("answers",),
    predicted=("decisions",),
)
# transformers has a pipeline with this name.
PIPELINE_TAG = "decision"
TYPES: Mapping[str, Any] = {
    "state": str | list[Any] | dict[str, Any],
    "questions": dict[str, Any],
    "prediction": dict[str, Any],
}
NO_ANSWER = -1
"""Answer id of a question that a row does not have."""

METRICS: Mapping[str, Metric] = QUESTIONS

_ERROR, _RANKED = "mean_absolute_error", "ranked_probability_score"
_FREQUENT = "most frequent answer"
_MAX_QUESTIONS = 100  # rows of the table of questions
_MIN_STATE = 4  # tokens of a text that are read with its question


def _read_asked(value: Any) -> Any:
    try:
        return value if value is None else read_questions(value)
    except DataError as error:
        raise ValueError(f"{error.message}: {error.remedy}") from None


def _for_each_type(name: str) -> Option:
    """Build the option of a calibration that is one number, or one for each type of question."""
    option = calibration.OPTIONS[name]

    def read(value: Any) -> Any:
        by_type = value if isinstance(value, Mapping) else {QUESTION_TYPES[0]: value}
        check_names(f"options.{name}", by_type, QUESTION_TYPES)
        for type_value in by_type.values():
            check_options({name: type_value}, {name: option})
        return value

    return Option(option.default, read=read)


OPTIONS: Mapping[str, Any] = {
    **{name: _for_each_type(name) for name in calibration.OPTIONS},
    "questions": Option(None, read=_read_asked),
    "one_pass": False,
}

_option, score = partial(read_option, OPTIONS), partial(score_table, METRICS)
# Values for a type that is missing in an option with a value per type: nothing is promised for it.
_LEFT_OUT = {"temperature": 1.0, "abstain_below": math.inf, "set_above": 0.0}


def get_type_option(recipe: Recipe, kind: str, name: str) -> Any:
    """Return an option of a calibration for a type of question."""
    value = _option(recipe, name)
    return value.get(kind, _LEFT_OUT[name]) if isinstance(value, Mapping) else value


def read(row: Row, recipe: Recipe) -> Row | None:
    """Check the questions and the answers; a row that answers none of its questions is left out.

    Raises:
        DataError: If a question is malformed, or an answer is not one of its options.
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
    checked["answers"] = read_answers(row["answers"], _get_questions(checked, recipe))
    return checked if checked["answers"] else None


def load_model(folder: Path, context: TaskContext, *, new_head: bool) -> Model:
    """Load an encoder with one logit per token, which counts at the mask tokens of options.

    Raises:
        RecipeError: If ``one_pass`` is set and the encoder computes positions internally.
    """
    from bertkit.modeling.attention import preserve_sliding_window
    from bertkit.modeling.heads.options import option_class, takes_positions

    model = load_pretrained(option_class, folder, context, labels=placeholder_names(1), new_head=new_head)
    config = model.config
    if new_head:  # An exported graph has no tokenizer and splits sequences by these ids.
        config.option_separator = find_template(context.tokenizer, pair=True).between[-1]
        config.option_marker = context.tokenizer.mask_token_id
    if _option(context.recipe, "one_pass") and not takes_positions(config):
        message = f"options.one_pass: a {config.model_type} model computes positions internally"
        raise RecipeError(message, "leave it out; each question is then read in a separate sequence")
    preserve_sliding_window(model)
    return model


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode the answered questions of a row, or all, with the text, which is truncated if it does not fit.

    ``questions`` are the indices of a feature's questions in their row. ``places`` are the positions of the mask tokens
    of all their options: one question after the other, and options in their order. With ``one_pass``, questions share a
    sequence while it has no more than ``max_length`` tokens.

    Raises:
        DataError: If a question and its options leave no room for a text.
    """
    tokenizer, template = context.tokenizer, find_template(context.tokenizer, pair=True)
    budget, is_one_pass = token_budget(context, template), bool(_option(context.recipe, "one_pass"))
    # 1. Tokenize every distinct text once: rows usually repeat the questions of other rows.
    asked_parts = [_questions_to_read(row, context.recipe) for row in rows]
    texts = (text for questions in asked_parts for _, part in questions for text in (part.instructions, *part.texts))
    ids, states = token_ids(tokenizer, texts), token_ids(tokenizer, (row["state"] for row in rows))
    # 2. Build one sequence per question or, with `one_pass`, as many questions per sequence as fit.
    features: list[Feature] = []
    for row_index, (row, questions) in enumerate(zip(rows, asked_parts, strict=True)):
        parts = [lay_out(index, question, row["state"], ids, tokenizer.mask_token_id) for index, question in questions]
        if long := next((part for part in parts if len(part.ids) + _MIN_STATE > budget), None):
            message = f"question {long.question.name!r} and its options take {len(long.ids)} of {budget} tokens"
            raise DataError(message, "give fewer options at once, or describe them in fewer words", row=row_index + 1)
        # The state is truncated equally for all questions of the row, so it does not depend on the other questions.
        state = states[row["state"]][: budget - max(len(part.ids) for part in parts)]
        # With a maximum of 0, each question has its own sequence. A separator follows every question except the last.
        max_tokens = budget - len(state) if is_one_pass else 0
        for run in split_by_size(parts, max_tokens, lambda part: len(part.ids) + 1):
            features.append({"row": row_index, **fill_questions(template, state, run, row.get("answers"))})
    return features


def collator(context: TaskContext) -> Collator:
    """Build the padding collator; ``labels`` (sequences, tokens) are set at the mask tokens of gold options."""
    return padding_collator(context, label_per_token=True)


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Return the answer to each question by its name, and its confidence in ``decisions``.

    That is the ``probability`` of yes; the ``probabilities`` of labels and the ``confidence`` in the chosen one; or the
    ``expected`` level and the ``probabilities`` of all levels.
    """
    records: list[Prediction] = [{"prediction": {}, "decisions": {}} for _ in rows]
    for output, feature in zip(outputs, features, strict=True):
        record = records[feature["row"]]
        for question, places in _asked_in(feature, rows[feature["row"]], context):
            option = partial(get_type_option, context.recipe, question.type)
            probabilities = softmax(output["logits"][places, 0] / option("temperature"))
            answers = [question.value(option_index) for option_index in range(len(probabilities))]
            record["prediction"][question.name] = answers[int(probabilities.argmax())]
            decision = _describe_answer(question, probabilities.tolist())
            record["decisions"][question.name] = decision | calibration.apply_options(probabilities, answers, option)
    return records


def _asked_in(feature: Feature, row: Row, context: TaskContext) -> Iterator[tuple[Question, Any]]:
    """Yield the questions of a feature, each with the tokens of its options."""
    questions, start = _get_questions(row, context.recipe), 0
    for index in feature["questions"]:
        end = start + len(questions[index].options)
        yield questions[index], feature["places"][start:end]
        start = end


def _describe_answer(question: Question, probabilities: list[float]) -> dict[str, Any]:
    if question.type == "yes_no":
        return {"probability": probabilities[1]}
    if question.type == "score":
        return {"expected": expected_level(probabilities), "probabilities": probabilities}
    by_label = dict(zip(question.options, probabilities, strict=True))
    return {"probabilities": by_label, "confidence": max(probabilities)}


def gold_probabilities(predictions: Predictions, rows: Rows, context: TaskContext) -> calibration.Decisions:
    """Return the probabilities of the options of all answered questions, 0 for those that a question lacks."""
    answered = [
        (row_index, row["answers"][question.name], question.type, _probabilities(question, record))
        for row_index, (row, record) in enumerate(zip(rows, predictions, strict=True))
        for _, question in _questions_to_read(row, context.recipe)
    ]
    # Questions have different numbers of options. A padded option has probability 0, so it never changes a loss.
    padded = np.zeros((len(answered), max(len(option_probabilities) for *_, option_probabilities in answered)))
    for line, (*_, option_probabilities) in zip(padded, answered, strict=True):
        line[: len(option_probabilities)] = option_probabilities
    row_indices, gold, types = (np.array([answer[column] for answer in answered]) for column in range(3))
    return calibration.Decisions(padded, gold, row_indices, "row" if len(answered) == len(rows) else "question", types)


def _probabilities(question: Question, record: Prediction) -> list[float]:
    """Return the probabilities of a prediction's options in their order; without any, 1 for the answer."""
    decision = record.get("decisions", {}).get(question.name)
    if decision is None:
        answer = read_answer(question, record["prediction"][question.name])
        return [float(index == answer) for index in range(len(question.options))]
    if question.type == "yes_no":
        return [1 - decision["probability"], decision["probability"]]
    option_probabilities = decision["probabilities"]
    return list(option_probabilities.values() if isinstance(option_probabilities, Mapping) else option_probabilities)


def targets(
    prediction: Prediction, outputs: Outputs, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Return the explainable outputs: the log-odds of each answer among the options of its question."""
    answers = []
    for feature_index, feature in enumerate(features):
        for question, places in _asked_in(feature, row, context):
            index = read_answer(question, prediction["prediction"][question.name]) or 0

            def score(outputs: Tensors, places: Any = places, index: int = index) -> Any:
                return log_odds(outputs["logits"][:, list(places), 0], index)

            answers.append(Target(f"{question.name}: {question.options[index]}", score, feature=feature_index))
    return answers


def expected_level(probabilities: Sequence[float]) -> float:
    """Return the mean level, counted from 0.

    >>> expected_level([0.25, 0.25, 0.5])
    1.25
    """
    return float(np.dot(probabilities, range(len(probabilities))))


def ranked_probability_score(probabilities: Sequence[float], gold: int) -> float:
    """Compute the ranked probability score of levels (Epstein 1969): 0 is best, 1 is worst.

    >>> ranked_probability_score([0.0, 0.0, 1.0], 0), ranked_probability_score([0.0, 1.0, 0.0], 0)
    (1.0, 0.5)
    """
    # Probabilities [0.25, 0.25, 0.5] add up to [0.25, 0.5, 1]. Gold level 1 has the sums [0, 1, 1]. The squared
    # differences are [0.0625, 0.25, 0], whose sum over 2 is 0.15625.
    differences = np.cumsum(probabilities) - (np.arange(len(probabilities)) >= gold)
    return float(np.square(differences).sum() / max(len(probabilities) - 1, 1))


def compare(predictions: Predictions, rows: Rows, context: TaskContext) -> RowScores:
    """Return arrays (rows, questions): ids of gold and predicted answers, and the errors of levels.

    An answer to a question has the same id in all rows. The errors are NaN if a question has no levels.
    """
    max_questions = max((len(row["answers"]) for row in rows), default=0)
    row_scores = {name: np.full((len(rows), max_questions), NO_ANSWER) for name in ("gold", "predicted")}
    row_scores |= {name: np.full((len(rows), max_questions), np.nan) for name in (_ERROR, _RANKED)}
    # One id per pair of question and answer, over all rows: accuracy and F1 then treat them as labels of one task.
    answer_ids: dict[tuple[str, str], int] = {}
    for row_index, (row, record) in enumerate(zip(rows, predictions, strict=True)):
        for column, (_, question) in enumerate(_questions_to_read(row, context.recipe)):
            gold, raw_answer = row["answers"][question.name], record["prediction"].get(question.name)
            predicted = read_answer(question, raw_answer)
            if predicted is None:
                raise DataError(f"no answer to {question.name!r} is predicted", "predict one", row=row_index + 1)
            for name, option in (("gold", gold), ("predicted", predicted)):
                key = (question.name, question.options[option])
                row_scores[name][row_index, column] = answer_ids.setdefault(key, len(answer_ids))
            if question.type == "score":
                probabilities = _probabilities(question, record)
                row_scores[_ERROR][row_index, column] = abs(expected_level(probabilities) - gold)
                row_scores[_RANKED][row_index, column] = ranked_probability_score(probabilities, gold)
    return row_scores


def count_errors(row_scores: RowScores) -> tuple[Any, Any]:
    """Count the wrong answers of each row, and all."""
    is_answered = row_scores["gold"] != NO_ANSWER
    return (is_answered & (row_scores["gold"] != row_scores["predicted"])).sum(axis=1), is_answered.sum(axis=1)


def fit_baselines(training_rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Learn the most frequent answer to each question."""
    counts: dict[str, Counter[str]] = {}
    for row in training_rows:
        for _, question in _questions_to_read(row, context.recipe):
            answer = question.options[row["answers"][question.name]]
            counts.setdefault(question.name, Counter())[answer] += 1
    return {_FREQUENT: {name: [answer for answer, _ in answers.most_common()] for name, answers in counts.items()}}


def baselines(state: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, list[Prediction]]:
    """Predict the most frequent answer to each question in training, or the first option of a new question."""
    predicted: list[Prediction] = []
    for row in rows:
        answers = {}
        for question in _get_questions(row, context.recipe):
            ranked = state[_FREQUENT].get(question.name, ())
            option = next((question.options.index(answer) for answer in ranked if answer in question.options), 0)
            answers[question.name] = question.value(option)
        predicted.append({"prediction": answers})
    return {_FREQUENT: predicted}


def details(predictions: Predictions, rows: Rows, context: TaskContext) -> TaskReport:
    """Report each question by its name, and the answers as text."""
    verdicts: dict[tuple[str, str], list[tuple[bool, float]]] = {}
    answers = []
    for row, record in zip(rows, predictions, strict=True):
        gold, answered, confidences = [], [], []
        for _, question in _questions_to_read(row, context.recipe):
            right = row["answers"][question.name]
            predicted = read_answer(question, record["prediction"][question.name]) or 0
            probabilities = _probabilities(question, record)
            verdicts.setdefault((question.name, question.type), []).append((right == predicted, max(probabilities)))
            gold.append(f"{question.name}: {question.options[right]}")
            answered.append(f"{question.name}: {question.options[predicted]}")
            confidences.append(max(probabilities))
        answers.append(Answer("; ".join(gold), "; ".join(answered), gold == answered, min(confidences, default=None)))
    table = [
        {
            "question": name,
            "type": kind,
            "accuracy": float(np.mean([is_right for is_right, _ in pairs])),
            "mean confidence": float(np.mean([confidence for _, confidence in pairs])),
            "rows": len(pairs),
        }
        for (name, kind), pairs in sorted(verdicts.items())
    ]
    return TaskReport({"by question": table[:_MAX_QUESTIONS]}, answers=answers)


def _get_questions(row: Row, recipe: Recipe) -> list[Question]:
    """Return the questions of a row, or the recipe's, which are the same for every row."""
    return _read_once(json.dumps(row.get("questions") or _option(recipe, "questions")))


def _questions_to_read(row: Row, recipe: Recipe) -> list[tuple[int, Question]]:
    """Return the questions of a row with their indices; if the row has answers, only the answered questions."""
    questions = enumerate(_get_questions(row, recipe))
    return [(index, item) for index, item in questions if "answers" not in row or item.name in row["answers"]]


@lru_cache(4096)  # Rows usually repeat the questions of other rows.
def _read_once(questions: str) -> list[Question]:
    return read_questions(questions)
