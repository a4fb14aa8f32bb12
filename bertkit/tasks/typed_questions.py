"""Answer typed questions about a text in one pass: yes or no, a choice among labels, or a score.

The encoder reads the text, the question and all of its options together; each option follows its own mask token. The
logit of an option is computed from the mean hidden state of its words, so it depends on the text, the question and the
other options. The softmax is over the options of a question.

The order in which labels are given changes no answer, because they are read in an order that depends on the text, in
training and in prediction. So training shows the labels of a dataset in many orders.
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
from bertkit.data.labels import make_placeholder_names
from bertkit.errors import DataError, RecipeError
from bertkit.metrics import calibration
from bertkit.metrics.intervals import Metric
from bertkit.metrics.probabilities import softmax
from bertkit.metrics.registry import QUESTION_METRICS
from bertkit.modeling.heads.targets import Outputs as Tensors
from bertkit.modeling.heads.targets import Target, compute_log_odds
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

METRICS: Mapping[str, Metric] = QUESTION_METRICS

_ABSOLUTE, _RANKED = "mean_absolute_error", "ranked_probability_score"
_MAJORITY = "most frequent answer"
_MAX_QUESTIONS = 100  # in the table of questions
# Minimum number of tokens of the text that are read with each question.
_MIN_STATE = 4


def _read_questions_option(value: Any) -> Any:
    try:
        return value if value is None else read_questions(value)
    except DataError as error:
        raise ValueError(f"{error.message}: {error.remedy}") from None


def _for_each_type(name: str) -> Option:
    """Build a calibration option whose value is one number, or one number per type of question."""
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
    "questions": Option(None, read=_read_questions_option),
    "one_pass": False,
}

_option, score = partial(read_option, OPTIONS), partial(score_table, METRICS)
# Values for types that an option with a value per type lacks: always abstain, and take all options into the set.
_UNCALIBRATED = {"temperature": 1.0, "abstain_below": math.inf, "set_above": 0.0}


def get_type_option(recipe: Recipe, kind: str, name: str) -> Any:
    """Return the value of a calibration option for a type of question."""
    value = _option(recipe, name)
    return value.get(kind, _UNCALIBRATED[name]) if isinstance(value, Mapping) else value


def read(row: Row, recipe: Recipe) -> Row | None:
    """Check the questions and the answers; a row without an answer to its questions is left out.

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
    """Load an encoder with one logit per token; only logits at the mask tokens of options are used.

    Raises:
        RecipeError: If ``one_pass`` is set and the encoder computes positions internally.
    """
    from bertkit.modeling.attention import preserve_sliding_window
    from bertkit.modeling.heads.options import build_option_class, takes_position_ids

    model = load_pretrained(build_option_class, folder, context, labels=make_placeholder_names(1), new_head=new_head)
    config = model.config
    # An exported graph has no tokenizer and splits sequences by these ids.
    if new_head:
        config.option_separator = find_template(context.tokenizer, pair=True).between[-1]
        config.option_marker = context.tokenizer.mask_token_id
    if _option(context.recipe, "one_pass") and not takes_position_ids(config):
        message = f"options.one_pass: a {config.model_type} model computes positions internally"
        raise RecipeError(message, "leave it out; each question is then read in a separate sequence")
    preserve_sliding_window(model)
    return model


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode the questions of a row with its text, which is truncated; if a row has answers, only answered questions.

    ``questions`` are the indices of a feature's questions in their row. ``places`` are the positions of the mask tokens
    of all their options: one question after the other, each with its options in order. With ``one_pass``, a sequence
    has several questions, up to ``max_length`` tokens.

    Raises:
        DataError: If a question and its options leave no room for a text.
    """
    tokenizer, template = context.tokenizer, find_template(context.tokenizer, pair=True)
    budget, is_one_pass = token_budget(context, template), bool(_option(context.recipe, "one_pass"))
    # 1. Tokenize each distinct text once, because rows usually repeat the questions of other rows.
    row_questions = [_questions_to_read(row, context.recipe) for row in rows]
    texts = (text for questions in row_questions for _, part in questions for text in (part.instructions, *part.texts))
    ids, state_ids = token_ids(tokenizer, texts), token_ids(tokenizer, (row["state"] for row in rows))
    # 2. Build one sequence per question or, with `one_pass`, as many questions per sequence as fit.
    features: list[Feature] = []
    for row_index, (row, questions) in enumerate(zip(rows, row_questions, strict=True)):
        parts = [lay_out(index, question, row["state"], ids, tokenizer.mask_token_id) for index, question in questions]
        if long := next((part for part in parts if len(part.ids) + _MIN_STATE > budget), None):
            message = f"question {long.question.name!r} and its options take {len(long.ids)} of {budget} tokens"
            raise DataError(message, "give fewer options at once, or describe them in fewer words", row=row_index + 1)
        # Truncate the text equally for all questions of the row.
        state = state_ids[row["state"]][: budget - max(len(part.ids) for part in parts)]
        # With a maximum of 0, each question has its own sequence. A separator follows each question except the last.
        max_tokens = budget - len(state) if is_one_pass else 0
        for group in split_by_size(parts, max_tokens, lambda part: len(part.ids) + 1):
            features.append({"row": row_index, **fill_questions(template, state, group, row.get("answers"))})
    return features


def collator(context: TaskContext) -> Collator:
    """Build the padding collator; ``labels`` are set at the mask tokens of gold options. Shape: (sequences, tokens)."""
    return padding_collator(context, label_per_token=True)


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Return question -> answer and, in ``decisions``, question -> probabilities.

    The latter are the ``probability`` of yes; the ``probabilities`` of all labels, with the highest as ``confidence``;
    or the ``probabilities`` of all levels, with the ``expected`` level.
    """
    records: list[Prediction] = [{"prediction": {}, "decisions": {}} for _ in rows]
    for output, feature in zip(outputs, features, strict=True):
        record = records[feature["row"]]
        for question, positions in _iterate_questions(feature, rows[feature["row"]], context):
            option = partial(get_type_option, context.recipe, question.type)
            probabilities = softmax(output["logits"][positions, 0] / option("temperature"))
            answers = [question.value(option_index) for option_index in range(len(probabilities))]
            record["prediction"][question.name] = answers[int(probabilities.argmax())]
            decision = _describe_answer(question, probabilities.tolist())
            record["decisions"][question.name] = decision | calibration.apply_options(probabilities, answers, option)
    return records


def _iterate_questions(feature: Feature, row: Row, context: TaskContext) -> Iterator[tuple[Question, Any]]:
    """Yield each question of a feature, and the positions of the mask tokens of its options."""
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
    return {"probabilities": dict(zip(question.options, probabilities, strict=True)), "confidence": max(probabilities)}


def gold_probabilities(predictions: Predictions, rows: Rows, context: TaskContext) -> calibration.Decisions:
    """Return the probabilities of the options of all answered questions, 0 for padded options, and the gold options."""
    answers = [
        (row_index, row["answers"][question.name], question.type, _get_probabilities(question, record))
        for row_index, (row, record) in enumerate(zip(rows, predictions, strict=True))
        for _, question in _questions_to_read(row, context.recipe)
    ]
    # Questions have different numbers of options.
    padded = np.zeros((len(answers), max(len(probabilities) for *_, probabilities in answers)))
    for line, (*_, probabilities) in zip(padded, answers, strict=True):
        line[: len(probabilities)] = probabilities
    row_indices, gold, types = (np.array([answer[column] for answer in answers]) for column in range(3))
    return calibration.Decisions(padded, gold, row_indices, "row" if len(answers) == len(rows) else "question", types)


def _get_probabilities(question: Question, record: Prediction) -> list[float]:
    """Return the predicted probability of each option of a question; without probabilities, 1 for the answer."""
    decision = record.get("decisions", {}).get(question.name)
    if decision is None:
        answer = read_answer(question, record["prediction"][question.name])
        return [float(index == answer) for index in range(len(question.options))]
    if question.type == "yes_no":
        return [1 - decision["probability"], decision["probability"]]
    probabilities = decision["probabilities"]
    return list(probabilities.values() if isinstance(probabilities, Mapping) else probabilities)


def targets(
    prediction: Prediction, outputs: Outputs, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Return the explainable outputs: the log-odds of each answer among the options of its question."""
    answers = []
    for feature_index, feature in enumerate(features):
        for question, positions in _iterate_questions(feature, row, context):
            index = read_answer(question, prediction["prediction"][question.name]) or 0

            def score(outputs: Tensors, positions: Any = positions, index: int = index) -> Any:
                return compute_log_odds(outputs["logits"][:, list(positions), 0], index)

            answers.append(Target(f"{question.name}: {question.options[index]}", score, feature=feature_index))
    return answers


def expected_level(probabilities: Sequence[float]) -> float:
    """Return the mean level under the probabilities; levels count from 0.

    >>> expected_level([0.25, 0.25, 0.5])
    1.25
    """
    return float(np.dot(probabilities, range(len(probabilities))))


def ranked_probability_score(probabilities: Sequence[float], gold: int) -> float:
    """Compute the ranked probability score of levels (Epstein 1969), divided by levels - 1: 0 is best, 1 is worst.

    It is the sum of squared differences between the cumulative predicted and gold probabilities.

    >>> ranked_probability_score([0.0, 0.0, 1.0], 0), ranked_probability_score([0.0, 1.0, 0.0], 0)
    (1.0, 0.5)
    """
    # The probabilities [0.25, 0.25, 0.5] have the cumulative sums [0.25, 0.5, 1], and the gold level 1 has [0, 1, 1].
    # The squared differences are [0.0625, 0.25, 0], and their sum, divided by 2, is 0.15625.
    differences = np.cumsum(probabilities) - (np.arange(len(probabilities)) >= gold)
    return float(np.square(differences).sum() / max(len(probabilities) - 1, 1))


def compare(predictions: Predictions, rows: Rows, context: TaskContext) -> RowScores:
    """Return the ids of gold and predicted answers, and the errors of levels. Shape: (rows, questions).

    The errors are NaN for questions without levels.

    Raises:
        DataError: If a question of a row has no predicted answer.
    """
    max_questions = max((len(row["answers"]) for row in rows), default=0)
    row_scores = {name: np.full((len(rows), max_questions), NO_ANSWER) for name in ("gold", "predicted")}
    row_scores |= {name: np.full((len(rows), max_questions), np.nan) for name in (_ABSOLUTE, _RANKED)}
    # Each pair of question and answer has one id in all rows, so that accuracy and F1 treat pairs as labels.
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
                probabilities = _get_probabilities(question, record)
                row_scores[_ABSOLUTE][row_index, column] = abs(expected_level(probabilities) - gold)
                row_scores[_RANKED][row_index, column] = ranked_probability_score(probabilities, gold)
    return row_scores


def count_errors(row_scores: RowScores) -> tuple[Any, Any]:
    """Return the number of wrong answers, and of all answers, of each row. Shape: (rows,)."""
    is_answered = row_scores["gold"] != NO_ANSWER
    return (is_answered & (row_scores["gold"] != row_scores["predicted"])).sum(axis=1), is_answered.sum(axis=1)


def fit_baselines(training_rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Sort the answers to each question by frequency."""
    counts: dict[str, Counter[str]] = {}
    for row in training_rows:
        for _, question in _questions_to_read(row, context.recipe):
            answer = question.options[row["answers"][question.name]]
            counts.setdefault(question.name, Counter())[answer] += 1
    return {_MAJORITY: {name: [answer for answer, _ in answers.most_common()] for name, answers in counts.items()}}


def baselines(state: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, list[Prediction]]:
    """Predict the most frequent training answer to each question, or the first option of a new question."""
    predicted: list[Prediction] = []
    for row in rows:
        answers = {}
        for question in _get_questions(row, context.recipe):
            ranked = state[_MAJORITY].get(question.name, ())
            option = next((question.options.index(answer) for answer in ranked if answer in question.options), 0)
            answers[question.name] = question.value(option)
        predicted.append({"prediction": answers})
    return {_MAJORITY: predicted}


def details(predictions: Predictions, rows: Rows, context: TaskContext) -> TaskReport:
    """Report the scores of each question, and the answers as text; a row has the lowest confidence of its questions."""
    verdicts: dict[tuple[str, str], list[tuple[bool, float]]] = {}
    answers = []
    for row, record in zip(rows, predictions, strict=True):
        gold, predicted, confidences = [], [], []
        for _, question in _questions_to_read(row, context.recipe):
            gold_index = row["answers"][question.name]
            index = read_answer(question, record["prediction"][question.name]) or 0
            confidence = max(_get_probabilities(question, record))
            verdicts.setdefault((question.name, question.type), []).append((gold_index == index, confidence))
            gold.append(f"{question.name}: {question.options[gold_index]}")
            predicted.append(f"{question.name}: {question.options[index]}")
            confidences.append(confidence)
        answers.append(Answer("; ".join(gold), "; ".join(predicted), gold == predicted, min(confidences, default=None)))
    table = [
        {
            "question": name,
            "type": kind,
            "accuracy": float(np.mean([is_correct for is_correct, _ in pairs])),
            "mean confidence": float(np.mean([confidence for _, confidence in pairs])),
            "rows": len(pairs),
        }
        for (name, kind), pairs in sorted(verdicts.items())
    ]
    return TaskReport({"by question": table[:_MAX_QUESTIONS]}, answers=answers)


def _get_questions(row: Row, recipe: Recipe) -> list[Question]:
    """Return the questions of a row or, if it has none, of the recipe."""
    return _read_once(json.dumps(row.get("questions") or _option(recipe, "questions")))


def _questions_to_read(row: Row, recipe: Recipe) -> list[tuple[int, Question]]:
    """Return the index and question of each question of a row; if the row has answers, of each answered question."""
    questions = enumerate(_get_questions(row, recipe))
    return [(index, item) for index, item in questions if "answers" not in row or item.name in row["answers"]]


# Rows usually repeat the questions of other rows.
@lru_cache(4096)
def _read_once(questions: str) -> list[Question]:
    return read_questions(questions)
