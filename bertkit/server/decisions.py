"""Typed questions over HTTP, in the formats of OpenAI's and TypeSafe's APIs.

A model of typed questions answers any question. A model that classifies texts only answers a choice among its labels.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field, StrictBool
from starlette.exceptions import HTTPException

from bertkit.server.models import ServedModel
from bertkit.server.schemas import Text
from bertkit.tokens.questions import NOUL, Question, as_text, read_request, read_state

_MAX_QUESTIONS = 400  # per request

Content = Text | dict[str, Any] | list[Any]
Decision = Mapping[str, Any]
"""Prediction for one question: an entry of ``decisions``."""
Predict = Callable[[dict[str, Any]], Awaitable[tuple[dict[str, Any], int]]]
"""Function that predicts a row, and returns the prediction and the number of tokens."""


class ChoiceValue(BaseModel):
    """Label of a choice."""

    value: Text | StrictBool
    description: Text | None = None

    @property
    def label(self) -> str:
        """The value as the model reads it."""
        return str(self.value).lower() if isinstance(self.value, bool) else self.value


class Level(BaseModel):
    """Level of a score."""

    label: Text
    description: Text | None = None


class DecisionsQuestion(BaseModel):
    """Question for yes or no (predicate), one of several labels (choice), or one of several ordered levels (score)."""

    type: Literal["predicate", "choice", "score"]
    instructions: Content
    name: Text | None = None
    choices: list[ChoiceValue] = []
    levels: list[Level] = []

    @property
    def record(self) -> dict[str, Any]:
        """The question in TypeSafe's format."""
        choices = {choice.label: choice.description for choice in self.choices}
        levels = [": ".join(filter(None, (level.label, level.description))) for level in self.levels]
        criteria = {"choice": choices, "score": levels}.get(self.type)
        question_type = NOUL if self.type == "predicate" else self.type
        return {"type": question_type, "instructions": self.instructions, "criteria": criteria}

    def format_answer(self, decision: Decision) -> dict[str, Any]:
        """Return the answer in OpenAI's format."""
        if self.type == "predicate":
            return {"probability": decision["probability"]}
        scores = decision["probabilities"]
        if self.type == "choice":
            probabilities = [{"value": choice.value, "probability": scores[choice.label]} for choice in self.choices]
            best = max(self.choices, key=lambda choice: float(scores[choice.label])).value
            return {"choice": best, "confidence": max(scores.values()), "probabilities": probabilities}
        levels = enumerate(zip(self.levels, scores, strict=True))
        probabilities = [{"label": level.label, "value": n, "probability": score} for n, (level, score) in levels]
        return {"score": decision["expected"], "confidence": max(scores), "probabilities": probabilities}


class DecisionsRequest(BaseModel):
    """Questions about a text or messages, as OpenAI's API takes them."""

    input: Text | list[dict[str, Any]]
    model: Text
    questions: list[DecisionsQuestion] = Field(min_length=1, max_length=_MAX_QUESTIONS)

    def read(self) -> tuple[str, list[Question]]:
        """Return the state, and the questions in their order with their indices as names.

        Raises:
            HTTPException: If two choices of a question have the same value.
            DataError: If an input is not text, or the questions are not valid.
        """
        for index, question in enumerate(self.questions):
            if len({choice.label for choice in question.choices}) < len(question.choices):
                raise HTTPException(422, f"questions[{index}].choices: two choices have the same value")
        state = self.input if isinstance(self.input, str) else [_read_message(item) for item in self.input]
        return read_state(state), read_request({str(n): question.record for n, question in enumerate(self.questions)})

    def format_answers(self, decisions: Mapping[str, Decision], tokens: int) -> dict[str, Any]:
        """Return the answers, with a refusal for each question without a decision."""
        answers = []
        for index, question in enumerate(self.questions):
            answer: dict[str, Any] = {"type": "refusal", "name": question.name}
            if decision := decisions.get(str(index)):
                answer |= {"type": question.type, **_abstention(decision), **question.format_answer(decision)}
            answers.append(answer)
        usage: dict[str, Any] = {"input_tokens": tokens, "output_tokens": 0, "total_tokens": tokens}
        usage |= {"input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 0}}
        return {"answers": answers, "usage": usage | {"output_tokens_details": {"reasoning_tokens": 0}}}


class SystemOneQuestion(BaseModel):
    """Question for yes or no (noul), one of several labels (choice), or one of several ordered levels (score)."""

    type: Literal["noul", "choice", "score"]
    instructions: Content | None = None
    criteria: dict[Text, Content | None] | list[Content] | None = None

    def format_answer(self, decision: Decision) -> dict[str, Any]:
        """Return the answer in TypeSafe's format."""
        answer = {"type": self.type}
        if self.type == "noul":
            return answer | {"noul": decision["probability"]}
        scores = decision["probabilities"]
        if self.type == "choice":
            best = max(scores, key=scores.__getitem__)
            confidence = correct_for_chance(list(scores.values()), has_levels=False)
            return answer | {"choice": best, "confidence": confidence, "probabilities": scores}
        return answer | {
            "score": decision["expected"],
            "confidence": correct_for_chance(scores, has_levels=True),
            "legend": {str(level): text for level, text in enumerate(self.criteria or ())},
            "probabilities": {str(level): probability for level, probability in enumerate(scores)},
        }


def correct_for_chance(probabilities: Sequence[float], *, has_levels: bool) -> float:
    """Return the confidence of ``/v1/systemone``: 0 for a guess among the options, 1 for a certain answer.

    For labels, it is the highest probability, corrected for chance. For levels, it is based on the mean distance to the
    most probable level, so probability at a close level costs less than at a distant level.
    `transformers.decision.Question.answer` has the same formulas, but a server may run without transformers.

    >>> correct_for_chance([0.75, 0.25], has_levels=False), correct_for_chance([0.5, 0.5, 0], has_levels=True)
    (0.5, 0.25)
    """
    # `distance` measures the uncertainty of this answer, and `chance_distance` the uncertainty of a guess.
    count, highest = len(probabilities), max(probabilities)
    distance, chance_distance = 1 - highest, 1 - 1 / count
    if has_levels:
        best_level, middle = probabilities.index(highest), (count - 1) / 2
        distance = sum(probability * abs(level - best_level) for level, probability in enumerate(probabilities))
        chance_distance = sum(abs(level - middle) for level in range(count)) / count
    return max(0.0, 1 - distance / chance_distance) if count > 1 else 1.0


class SystemOneRequest(BaseModel):
    """Questions about a state, keyed by name, as TypeSafe's API takes them."""

    state: Content
    model: Text | None = None
    questions: dict[Text, SystemOneQuestion] = Field(min_length=1, max_length=_MAX_QUESTIONS)

    def read(self) -> tuple[str, list[Question]]:
        """Return the state and the questions; raises as `DecisionsRequest.read` does."""
        records = {name: question.model_dump() for name, question in self.questions.items()}
        return read_state(self.state), read_request(records)

    def format_answers(self, decisions: Mapping[str, Decision], tokens: int) -> dict[str, Any]:
        """Return the answers.

        Raises:
            HTTPException: If a question has no decision, because TypeSafe's format has no refusal.
        """
        if name := next((name for name in self.questions if name not in decisions), None):
            raise HTTPException(422, f"questions.{name}: this model only answers a choice among its labels")
        answers = {
            name: {**question.format_answer(decisions[name]), **_abstention(decisions[name])}
            for name, question in self.questions.items()
        }
        return {"answers": answers, "usage": {"input_tokens": tokens, "output_tokens": 0}}


def _read_message(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item of a conversation as a message with a role; function calls and their outputs become JSON."""
    if "content" in item:
        return {"role": item.get("role", ""), "content": as_text(item["content"])}
    content = {key: as_text(value) for key, value in item.items() if key in ("name", "arguments", "input", "output")}
    return {"role": item.get("type", ""), "content": json.dumps(content, ensure_ascii=False)}


async def answer_questions(
    model: ServedModel, request: DecisionsRequest | SystemOneRequest, predict: Predict
) -> dict[str, Any]:
    """Predict the questions that the model can answer, and return the answers in the format of the request."""
    state, questions = request.read()
    decisions, tokens = dict[str, Decision](), 0
    if model.answers_any_question:
        row = {"state": state, "questions": {question.name: question.record for question in questions}}
        prediction, tokens = await predict(row)
        decisions = prediction["decisions"]
    elif choices := [question for question in questions if _is_about_labels(model, question)]:
        # A classifier reads the state only, so one prediction answers all choices among its labels.
        prediction, tokens = await predict({"text": state})
        for question in choices:
            scores = {label: prediction["probabilities"][label] for label in question.options}
            decisions[question.name] = {"probabilities": scores, **_abstention(prediction)}
    return request.format_answers(decisions, tokens)


def _is_about_labels(model: ServedModel, question: Question) -> bool:
    assert model.checkpoint is not None
    return question.type == "choice" and set(question.options) == set(model.checkpoint.context.labels)


def _abstention(decision: Decision) -> dict[str, Any]:
    """Return the key ``abstain`` of a decision if it has one; the APIs of OpenAI and TypeSafe do not have this key."""
    return {"abstain": decision["abstain"]} if "abstain" in decision else {}
