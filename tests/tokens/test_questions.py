"""Typed questions: what may be asked, which answers are taken, and what a state is read as."""

from __future__ import annotations

import pytest

from bertkit.errors import DataError
from bertkit.tokens.questions import read_answer, read_answers, read_question, read_questions, read_state

TEAM = {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "money", "card_lost": None}}
STARS = {"type": "score", "criteria": ["bad", "fair", "good"]}


def test_options_are_read_with_what_they_mean():
    question = read_question("team", TEAM)
    assert (question.options, question.texts) == (("billing", "card_lost"), ("billing: money", "card lost"))
    assert read_question("urgent", {"type": "yes_no"}).options == ("no", "yes")
    spam = read_question("spam", {"type": "yes_no", "criteria": {True: "an advertisement"}})
    assert spam.texts == ("no", "yes: an advertisement")
    noul = {"type": "noul", "criteria": {"true": "an advertisement", "false": None}}
    assert read_question("spam", noul).record == {**noul, "type": "yes_no", "instructions": "spam"}
    assert read_question("spam", noul).texts == spam.texts
    assert read_question("stars", STARS).texts == ("0: bad", "1: fair", "2: good")
    assert read_question("stars", STARS).instructions == "stars"


def test_questions_are_a_mapping_or_its_json():
    assert read_questions('{"urgent": {"type": "yes_no"}}') == read_questions({"urgent": {"type": "yes_no"}})


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ({}, "'{}' is not a question"),
        ("which?", "'which\\?' is not a question"),
        ({"a": {"type": "box"}}, "question 'a' has the type 'box' .* give one of yes_no, choice, score"),
        ({"a": "yes"}, "question 'a' has the type 'yes'"),
        ({"a": {"type": "yes_no", "criterion": {}}}, "question 'a' has the key 'criterion' .* did you mean criteria"),
        ({"a": {"type": "yes_no", "instructions": 3}}, "question 'a' has instructions that are not text"),
        ({"a": {"type": "yes_no", "criteria": {"maybe": "x"}}}, "question 'a' has the criteria"),
        ({"a": {"type": "choice"}}, "question 'a' has the criteria 'None' .* name the labels"),
        ({"a": {"type": "choice", "criteria": []}}, "question 'a' has the criteria"),
        ({"a": {"type": "choice", "criteria": ["x", "x"]}}, "question 'a' has the criteria"),
        ({"a": {"type": "choice", "criteria": [["x"]]}}, "question 'a' has the criteria"),
        ({"a": {"type": "choice", "criteria": {"x": 3}}}, "question 'a' has a label or a description that is not text"),
        (
            {"a": {"type": "score", "criteria": {"0": "x"}}},
            "question 'a' has the criteria .* list a description of each level",
        ),
    ],
)
def test_a_wrong_question_is_told_by_its_name(questions, message):
    with pytest.raises(DataError, match=message) as raised:
        read_questions(questions)
    assert raised.value.column == "questions"


@pytest.mark.parametrize(
    ("asked", "value", "option"),
    [
        ({"type": "yes_no"}, True, 1),
        ({"type": "yes_no"}, "No", 0),
        ({"type": "yes_no"}, 1.0, 1),
        ({"type": "yes_no"}, None, None),
        ({"type": "yes_no"}, float("nan"), None),
        (TEAM, " card_lost ", 1),
        (TEAM, "", None),
        (STARS, 2, 2),
        (STARS, "0", 0),
    ],
)
def test_an_answer_is_the_number_of_an_option(asked, value, option):
    assert read_answer(read_question("a", asked), value) == option


def test_answers_are_given_by_name_or_in_the_order_of_the_questions():
    questions = read_questions({"team": TEAM, "stars": STARS})
    expected = {"team": 0, "stars": 2}
    assert read_answers({"stars": 2, "team": "billing"}, questions) == expected
    assert read_answers('{"stars": 2, "team": "billing"}', questions) == expected
    assert read_answers(["billing", "2"], questions) == expected
    assert read_answers(["billing", None], questions) == {"team": 0}
    assert read_answers("billing", questions[:1]) == {"team": 0}


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"team": "biling"}, "the answer 'biling' to 'team' .* did you mean billing"),
        ({"stars": 3}, "the answer '3' to 'stars'"),
        ({"star": 1}, "an answer to 'star', which is not a question .* did you mean stars"),
        (["billing"], "1 answers to 2 questions"),
    ],
)
def test_a_wrong_answer_is_told(answers, message):
    with pytest.raises(DataError, match=message):
        read_answers(answers, read_questions({"team": TEAM, "stars": STARS}))


def test_a_state_is_text_messages_or_json():
    assert read_state("a text") == "a text"
    messages = [{"role": "user", "content": "help"}, {"role": "agent", "content": "yes"}]
    assert read_state(messages) == "user: help\nagent: yes"
    assert read_state({"amount": 3, "note": "é"}) == '{"amount": 3, "note": "é"}'
    with pytest.raises(DataError, match="None is not a state"):
        read_state(None)
