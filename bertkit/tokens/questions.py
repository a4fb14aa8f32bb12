"""Typed questions about a text, and their answers.

A question is ``yes_no``, a ``choice`` of one label, or a ``score``, one of several ordered levels from 0. The type
``noul``, as transformers and TypeSafe call ``yes_no``, is read as that:

>>> record = {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "money", "other": None}}
>>> question = read_question("team", record)
>>> question.options, question.texts
(('billing', 'other'), ('billing: money', 'other'))
>>> read_answer(question, "other"), read_answer(read_question("urgent", {"type": "yes_no"}), True)
(1, 1)
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bertkit.data.formats.json import parse_json
from bertkit.data.labels import label_to_str
from bertkit.data.rows import is_missing
from bertkit.errors import DataError, did_you_mean
from bertkit.tokens.features import IGNORE_INDEX, Feature, SpecialTokenTemplate, Tokenizer, tokenize_texts

TYPES = ("yes_no", "choice", "score")
NOUL = "noul"
YES_NO = ("no", "yes")
NOMINAL, ORDINAL = 0, 1
"""Label at the mask token of the gold option: NOMINAL for a choice of labels, ORDINAL for ordered levels."""
_FIELDS = ("type", "instructions", "criteria")
_SPELLINGS = {"true": 1, "yes": 1, "1": 1, "false": 0, "no": 0, "0": 0}


@dataclass(frozen=True)
class Question:
    """A question with the options of its answer, which the model sees as `texts`."""

    name: str
    type: str
    instructions: str
    options: tuple[str, ...]
    """Labels of a choice, ``no`` and ``yes``, or the indices of levels."""
    texts: tuple[str, ...]
    criteria: Any = None

    @property
    def record(self) -> dict[str, Any]:
        """Record that `read_question` reads."""
        return {"type": self.type, "instructions": self.instructions, "criteria": self.criteria}

    def value(self, option: int) -> Any:
        """Return the answer of an option: a boolean, a label, or a level."""
        return {"yes_no": bool(option), "score": option}.get(self.type, self.options[option])


def read_questions(value: object) -> list[Question]:
    """Read questions by name, given as a mapping or as its JSON.

    Raises:
        DataError: If there is no question, or one is wrong.
    """
    questions = parse_json(value)
    if not isinstance(questions, Mapping) or not questions:
        remedy = 'give them by name: {"urgent": {"type": "yes_no"}}'
        raise DataError(f"{str(value)[:60]!r} is not a question", remedy, column="questions")
    return [read_question(str(name), record) for name, record in questions.items()]


def read_request(questions: Mapping[str, Mapping[str, Any]]) -> list[Question]:
    """Read questions by name, whose instructions and descriptions `as_text` reads; raises as `read_questions` does."""
    fields = dict[str, Any]()
    for name, record in questions.items():
        criteria = record.get("criteria")
        if isinstance(criteria, dict):
            criteria = {label: as_text(text) for label, text in criteria.items()}
        elif criteria is not None:
            criteria = list(map(as_text, criteria))
        fields[name] = {**record, "instructions": as_text(record.get("instructions")), "criteria": criteria}
    return read_questions(fields)


def as_text(content: Any) -> str | None:
    """Return a text, the joined texts of a list of parts, or other JSON as text; None stays None.

    Raises:
        DataError: If a part is an image, or anything other than text.
    """
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    if not all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in parts):
        return json.dumps(content, ensure_ascii=False)
    for part in parts:
        if "text" not in part and "refusal" not in part:
            raise DataError(f"a part of the type {part['type']!r}: only text can be read")
    return " ".join(str(part.get("text", part.get("refusal"))) for part in parts)


def read_question(name: str, record: object) -> Question:
    """Read a question; raises as `read_questions` does."""
    kind = record.get("type") if isinstance(record, Mapping) else record
    kind = "yes_no" if kind == NOUL else kind
    if not isinstance(record, Mapping) or kind not in TYPES:
        raise _question_error(name, f"the type {str(kind)[:40]!r}", f"give one of {', '.join(TYPES)}")
    if unknown := next((key for key in record if key not in _FIELDS), None):
        raise _question_error(name, f"the key {unknown!r}", did_you_mean(str(unknown), _FIELDS))
    instructions, criteria = record.get("instructions") or "", record.get("criteria")
    if not isinstance(instructions, str):
        raise _question_error(name, "instructions that are not text", "give a sentence")
    descriptions = _describe_options(name, kind, criteria)
    # A label such as card_arrival is read as separate words.
    texts = tuple(f"{option}: {text}" if text else option.replace("_", " ") for option, text in descriptions.items())
    return Question(name, kind, instructions or name, tuple(descriptions), texts, criteria)


def _describe_options(name: str, kind: str, value: Any) -> dict[str, str]:
    """Return the options of a question, in order, with their descriptions."""
    criteria: Any = value
    if kind == "score":
        remedy = "list a description of each level, from 0 on"
        criteria = dict(zip(map(str, range(len(value))), value, strict=True)) if is_list(value) else None
    elif kind == "yes_no":
        remedy = "describe yes and no, or leave it out"
        if isinstance(value, Mapping) or value is None:
            spellings = {str(label_to_str(option)): text for option, text in (value or {}).items()}
            criteria = {**dict.fromkeys(YES_NO), **{_yes_or_no(option): text for option, text in spellings.items()}}
    else:
        remedy = "name the labels, with a description or without"
        is_flat = is_list(value) and all(isinstance(label, (str, int, float)) for label in value)
        if is_flat and len(set(map(str, value))) == len(value):
            criteria = dict.fromkeys(value)
    if not isinstance(criteria, Mapping) or not criteria or (kind == "yes_no" and len(criteria) > 2):
        raise _question_error(name, f"the criteria {str(value)[:60]!r}", remedy)
    descriptions = {str(label_to_str(option) or ""): text for option, text in criteria.items()}
    if "" in descriptions or any(not (text is None or isinstance(text, str)) for text in descriptions.values()):
        raise _question_error(name, "a label or a description that is not text", remedy)
    return {option: (text or "").strip() for option, text in descriptions.items()}


def _yes_or_no(option: str) -> str:
    option_index = _SPELLINGS.get(option.lower())
    return option if option_index is None else YES_NO[option_index]


def read_answers(value: object, questions: list[Question]) -> dict[str, int]:
    """Read answers by name, or in the order of the questions; return name -> option index of answered questions.

    Raises:
        DataError: If an answer is not an option, or does not belong to a question.
    """
    answers = parse_json(value)
    if not isinstance(answers, Mapping):
        answer_list = answers if is_list(answers) else [answers]
        if len(answer_list) != len(questions):
            message = f"{len(answer_list)} answers to {len(questions)} questions"
            raise DataError(message, "give them by name", column="answers")
        answers = {question.name: answer for question, answer in zip(questions, answer_list, strict=True)}
    names = [question.name for question in questions]
    if unknown := next((name for name in answers if name not in names), None):
        message = f"an answer to {unknown!r}, which is not a question"
        raise DataError(message, did_you_mean(str(unknown), names), column="answers")
    options = {question.name: read_answer(question, answers.get(question.name)) for question in questions}
    return {name: option for name, option in options.items() if option is not None}


def read_answer(question: Question, value: object) -> int | None:
    """Return the index of an answer's option, or None if the answer is missing."""
    if is_missing(value):
        return None
    spelling = str(label_to_str(value)).strip()
    if question.type == "yes_no":
        option = _SPELLINGS.get(spelling.lower())
    else:
        option = question.options.index(spelling) if spelling in question.options else None
    if option is None:
        names = ("yes", "no") if question.type == "yes_no" else question.options
        raise DataError(
            f"the answer {spelling!r} to {question.name!r}", did_you_mean(spelling, names), column="answers"
        )
    return option


def read_state(value: Any) -> str:
    """Return a text, the messages of a conversation with their roles, or any other JSON, as text."""
    if isinstance(value, str):
        return value
    if is_list(value) and all(isinstance(message, Mapping) and "content" in message for message in value):
        return "\n".join(f"{message.get('role', '')}: {message['content']}".removeprefix(": ") for message in value)
    if value is None or isinstance(value, float):
        raise DataError(f"{value!r} is not a state", "give a text, messages or JSON", column="state")
    return json.dumps(value, ensure_ascii=False)


def is_list(value: object) -> bool:
    """Return whether a value from JSON or a table is a list."""
    return isinstance(value, (list, tuple))


def _question_error(name: str, problem: str, remedy: str) -> DataError:
    return DataError(f"question {name!r} has {problem}", remedy, column="questions")


class QuestionIds(NamedTuple):
    """A question and its options as token ids."""

    question_index: int
    """Index of the question in its row."""
    ids: list[int]
    positions: list[int]
    """Position of the mask token of each option."""
    question: Question


def lay_out(index: int, question: Question, state: str, ids: Mapping[str, list[int]], marker: int) -> QuestionIds:
    """Join the token ids of a question's instructions and options, each option after a marker.

    The text "b" puts the second option first; the positions stay in the order of the options:

    >>> question = read_question("team", {"type": "choice", "criteria": ["billing", "other"]})
    >>> lay_out(0, question, "b", {"team": [20, 21], "billing": [30], "other": [31, 32]}, marker=4)[1:3]
    ([20, 21, 4, 31, 32, 4, 30], [5, 2])
    """
    tokens, positions = list(ids[question.instructions]), [0] * len(question.options)
    for option in _order(question, state):
        positions[option] = len(tokens)
        tokens += [marker, *ids[question.texts[option]]]
    return QuestionIds(index, tokens, positions, question)


def _order(question: Question, state: str) -> list[int]:
    """Return the order in which the model reads options: levels in order, labels in an order seeded by the text."""
    indices = range(len(question.options))
    if question.type != "choice":
        return list(indices)
    # A checksum instead of a random generator: the same text and options have the same order on every machine.
    return sorted(indices, key=lambda index: (zlib.crc32(f"{state}\0{question.options[index]}".encode()), index))


def fill_questions(
    template: SpecialTokenTemplate, state: list[int], parts: Sequence[QuestionIds], answers: Mapping[str, int] | None
) -> Feature:
    """Build the feature of a state followed by questions, with a separator between two questions."""
    # With the state [7, 8] before one question, its marker at position 2 of its ids is token 6 of the sequence
    # [CLS] 7 8 [SEP] 20 21 [MASK] ..., so `first` is 4. Labels are set at the marker of the gold option only.
    second, positions, gold = list[int](), list[int](), dict[int, int]()
    first = len(template.before) + len(state) + len(template.between)
    for part in parts:
        second += [*template.between[-1:], *part.ids] if second else part.ids
        start = first + len(second) - len(part.ids)
        positions += [start + position for position in part.positions]
        if answers is not None:
            kind = ORDINAL if part.question.type == "score" else NOMINAL
            gold[start + part.positions[answers[part.question.name]]] = kind
    indices = [part.question_index for part in parts]
    feature = {"questions": indices, "places": positions, **template.fill(state, second)}
    if answers is not None:
        feature["labels"] = [gold.get(position, IGNORE_INDEX) for position in range(len(feature["input_ids"]))]
    return feature


def token_ids(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[str, list[int]]:
    """Tokenize texts, repeated ones only once."""
    unique = list(dict.fromkeys(texts))
    encodings = tokenize_texts(tokenizer, unique) if unique else []
    return {text: encoding.ids for text, encoding in zip(unique, encodings, strict=True)}
