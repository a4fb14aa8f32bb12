"""Typed questions over HTTP, in the two shapes that clients send: those of OpenAI and of TypeSafe.

A model of typed questions answers any question. One that classifies texts answers a choice among its own labels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictBool
from starlette.exceptions import HTTPException

from bertkit.server.schemas import Text
from bertkit.server.service import ServedModel
from bertkit.tokens.questions import Question, read_questions, read_state

_MOST = 400  # questions of a request

Content = Text | dict[str, Any] | list[Any]
Decision = dict[str, Any]
"""What a prediction says of one question, in ``decisions``."""


class _Asked(BaseModel):
    instructions: Content
    name: Text | None = None


class Predicate(_Asked):
    """A question for yes or no, as OpenAI's API takes it."""

    type: Literal["predicate"]


class ChoiceValue(BaseModel):
    """One of the labels of a choice."""

    value: Text | StrictBool
    description: Text | None = None


class Choice(_Asked):
    """A question for one of several labels, as OpenAI's API takes it."""

    type: Literal["choice"]
    choices: list[ChoiceValue] = Field(min_length=1)

    @property
    def values(self) -> list[str | bool]:
        """The values that may be chosen."""
        return [choice.value for choice in self.choices]


class Level(BaseModel):
    """One level of a score."""

    label: Text
    description: Text | None = None


class Score(_Asked):
    """A question for one of several ordered levels, as OpenAI's API takes it."""

    type: Literal["score"]
    levels: list[Level] = Field(min_length=1)


class DecisionsRequest(BaseModel):
    """Questions about a text or messages, as OpenAI's API takes them."""

    input: Text | list[dict[str, Any]]
    model: Text
    questions: list[Annotated[Predicate | Choice | Score, Field(discriminator="type")]] = Field(
        min_length=1, max_length=_MOST
    )

    def read(self) -> tuple[str, list[Question]]:
        """Return the state and the questions in their order, with their numbers for names.

        Raises:
            HTTPException: If an input is not text, or two options have the same name.
            DataError: If the questions are not valid.
        """
        asked: dict[str, Any] = {}
        for number, question in enumerate(self.questions):
            criteria: Any = None
            if isinstance(question, Choice):
                criteria = {_label(choice.value): choice.description for choice in question.choices}
                if len(criteria) < len(question.choices):
                    raise HTTPException(422, f"questions[{number}].choices: two have one value")
            elif isinstance(question, Score):
                criteria = [": ".join(filter(None, (level.label, level.description))) for level in question.levels]
            kind = "yes_no" if isinstance(question, Predicate) else question.type
            asked[str(number)] = {"type": kind, "instructions": as_text(question.instructions), "criteria": criteria}
        state = self.input if isinstance(self.input, str) else [_as_message(item) for item in self.input]
        return _read_request(state, asked)

    def show(self, decisions: Mapping[str, Decision], tokens: int) -> dict[str, Any]:
        """Return what an answer has beside the model; a question without a decision is refused, and others are not."""
        answers = [_show_decision(decisions.get(str(number)), each) for number, each in enumerate(self.questions)]
        usage: dict[str, Any] = {"input_tokens": tokens, "output_tokens": 0, "total_tokens": tokens}
        usage |= {"input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 0}}
        return {"answers": answers, "usage": usage | {"output_tokens_details": {"reasoning_tokens": 0}}}


class Noul(BaseModel):
    """A question for yes or no, as TypeSafe's API takes it."""

    instructions: Content | None = None
    type: Literal["noul"]
    criteria: dict[Literal["true", "false"], Content | None] | None = None


class NamedChoice(BaseModel):
    """A question for one of several labels, as TypeSafe's API takes it."""

    instructions: Content | None = None
    type: Literal["choice"]
    criteria: dict[Text, Content | None] = Field(min_length=1)


class Rating(BaseModel):
    """A question for one of several ordered levels, as TypeSafe's API takes it."""

    instructions: Content | None = None
    type: Literal["score"]
    criteria: list[Content] = Field(min_length=1)


class SystemOneRequest(BaseModel):
    """Questions about a state, by their names, as TypeSafe's API takes them."""

    state: Content
    model: Text | None = None
    questions: dict[Text, Annotated[Noul | NamedChoice | Rating, Field(discriminator="type")]] = Field(
        min_length=1, max_length=_MOST
    )

    def read(self) -> tuple[str, list[Question]]:
        """Return the state and the questions; raises as `DecisionsRequest.read` does."""
        asked = {}
        for name, question in self.questions.items():
            criteria: Any = question.criteria
            if isinstance(criteria, dict):
                criteria = {label: as_text(text) for label, text in criteria.items()}
            elif criteria is not None:
                criteria = list(map(as_text, criteria))
            kind = "yes_no" if isinstance(question, Noul) else question.type
            asked[name] = {"type": kind, "instructions": as_text(question.instructions), "criteria": criteria}
        return _read_request(self.state, asked)

    def show(self, decisions: Mapping[str, Decision], tokens: int) -> dict[str, Any]:
        """Return what an answer has beside the model.

        Raises:
            HTTPException: If a question has no decision, because this shape cannot express it.
        """
        if unknown := next((name for name in self.questions if name not in decisions), None):
            raise HTTPException(422, f"questions.{unknown}: this model only answers a choice among its labels")
        answers = {
            name: {**_show_system_one(decisions[name], each), **_abstention(decisions[name])}
            for name, each in self.questions.items()
        }
        return {"answers": answers, "usage": {"input_tokens": tokens, "output_tokens": 0}}


def _read_request(state: Any, asked: Mapping[str, Any]) -> tuple[str, list[Question]]:
    return read_state(state), read_questions(asked)


def _label(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value


def as_text(content: Any) -> str | None:
    """Return a text, the texts of a list of parts, or other JSON, as text; None where there is none.

    Raises:
        HTTPException: If a part is an image, or anything other than text.
    """
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    if not all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in parts):
        return json.dumps(content, ensure_ascii=False)
    for part in parts:
        if "text" not in part and "refusal" not in part:
            raise HTTPException(422, f"a part of the type {part['type']!r}: only text can be read")
    return " ".join(str(part.get("text", part.get("refusal"))) for part in parts)


def _as_message(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item of a conversation as a message with a role; calls of functions and their outputs as JSON."""
    if "content" in item:
        return {"role": item.get("role", ""), "content": as_text(item["content"])}
    content = {key: as_text(value) for key, value in item.items() if key in ("name", "arguments", "input", "output")}
    return {"role": item.get("type", ""), "content": json.dumps(content, ensure_ascii=False)}


def can_answer(model: ServedModel, question: Question) -> bool:
    """Return whether a model answers a question: any typed question, or a choice among its own labels."""
    return model.answers_any or (question.type == "choice" and set(model.labels) == set(question.options))


def row_of(model: ServedModel, state: str, questions: Sequence[Question]) -> dict[str, Any]:
    """Build the row by which a model is asked."""
    if not model.answers_any:
        return {"text": state}
    return {"state": state, "questions": {question.name: question.record for question in questions}}


def decision_of(model: ServedModel, prediction: Mapping[str, Any], question: Question) -> Decision:
    """Return what a prediction says of a question."""
    if model.answers_any:
        decision: Decision = prediction["decisions"][question.name]
        return decision
    probabilities = {label: prediction["probabilities"][label] for label in question.options}
    return {"probabilities": probabilities, "confidence": max(probabilities.values()), **_abstention(prediction)}


def _show_decision(decision: Decision | None, asked: Any) -> dict[str, Any]:
    """Return an answer in OpenAI's shape; without a decision, a refusal."""
    if decision is None:
        return {"type": "refusal", "name": asked.name}
    answer: dict[str, Any] = {"type": asked.type, "name": asked.name, **_abstention(decision)}
    if isinstance(asked, Predicate):
        return answer | {"probability": decision["probability"]}
    if isinstance(asked, Choice):
        of_labels = decision["probabilities"]
        probabilities = [{"value": value, "probability": of_labels[_label(value)]} for value in asked.values]
        best = max(asked.values, key=lambda value: float(of_labels[_label(value)]))
        return answer | {"choice": best, "confidence": decision["confidence"], "probabilities": probabilities}
    levels = zip(asked.levels, decision["probabilities"], strict=True)
    probabilities = [{"label": of.label, "value": n, "probability": p} for n, (of, p) in enumerate(levels)]
    confidence = max(decision["probabilities"])
    return answer | {"score": decision["expected"], "confidence": confidence, "probabilities": probabilities}


def _abstention(decision: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether the model abstains, where that is decided; neither client's API has a word for it."""
    return {"abstain": decision["abstain"]} if "abstain" in decision else {}


def _show_system_one(decision: Decision, asked: Any) -> dict[str, Any]:
    """Return an answer in TypeSafe's shape."""
    if isinstance(asked, Noul):
        return {"type": "noul", "noul": decision["probability"]}
    if isinstance(asked, NamedChoice):
        of_labels = decision["probabilities"]
        best = max(of_labels, key=of_labels.__getitem__)
        return {"type": "choice", "choice": best, "confidence": decision["confidence"], "probabilities": of_labels}
    of_levels = decision["probabilities"]
    return {
        "type": "score",
        "score": decision["expected"],
        "confidence": max(of_levels),
        "legend": {str(level): text for level, text in enumerate(asked.criteria)},
        "probabilities": {str(level): probability for level, probability in enumerate(of_levels)},
    }
