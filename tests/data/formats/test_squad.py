import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.files import FORMATS
from bertkit.errors import DataError
from bertkit.recipe.records import DataConfig

LIKE = "write it as in SQuAD"
KEYS = "give every row the same keys, with null for a missing value"


def read(value):
    raw = value if isinstance(value, str) else json.dumps(value)
    return list(FORMATS["json"].read(io.BytesIO(raw.encode()), DataConfig(), "dev.json"))


def answer(text, start):
    return {"text": text, "answer_start": start}


def question(name, *answers, **more):
    return {"id": name, "question": f"What is {name}?", "answers": list(answers), **more}


def article(title, *paragraphs):
    held = [{"context": context, "qas": list(asked)} for context, *asked in paragraphs]
    return {"title": title, "paragraphs": held}


ARTICLES = [
    article("A", ("a b c", question("q1", answer("a", 0), answer("b", 2)), question("q2", answer("c", 4))), ("x",)),
    article("B", ("d e", question("q3", answer("e", 2)))),
]


def row(name, title, context, texts, starts):
    answers = {"text": texts, "answer_start": starts}
    return {"id": name, "title": title, "context": context, "question": f"What is {name}?", "answers": answers}


ROWS = [
    (1, row("q1", "A", "a b c", ["a", "b"], [0, 2])),
    (2, row("q2", "A", "a b c", ["c"], [4])),
    (3, row("q3", "B", "d e", ["e"], [2])),
]


def test_nested_questions_become_rows():
    assert read({"version": "1.1", "data": ARTICLES}) == ROWS
    assert read(ARTICLES) == ROWS
    assert read(json.dumps(ARTICLES, indent=1)) == ROWS


def test_impossible_questions_have_no_answers():
    asked = [
        question("q1", answer("a", 0), is_impossible=False),
        question("q2", is_impossible=True, plausible_answers=[answer("b", 2)]),
        question("q3", answer("b", 2), is_impossible=True),
    ]
    assert [row["answers"] for _, row in read([article("A", ("a b", *asked))])] == [
        {"text": ["a"], "answer_start": [0]},
        {"text": [], "answer_start": []},
        {"text": ["b"], "answer_start": [2]},
    ]


def test_answers_of_questions_that_are_marked_impossible_are_counted(caplog):
    asked = [question("q1", answer("a", 0), is_impossible=True), question("q2", is_impossible=True)]
    with caplog.at_level(logging.INFO, "bertkit"):
        assert [row["answers"]["text"] for _, row in read([article("A", ("a b", *asked))])] == [["a"], []]
    (message,) = caplog.messages
    assert "1 of 2 questions are marked impossible and have answers" in message and "'q1'" in message


def test_paragraphs_without_articles_become_rows():
    paragraphs = [{"context": "a b c", "qas": [question("q1", answer("a", 0))]}, {"context": "d", "qas": []}]
    assert read(paragraphs) == [(1, row("q1", "", "a b c", ["a"], [0]))]
    lines = "".join(f"{json.dumps(paragraph)}\n" for paragraph in paragraphs)
    assert list(FORMATS["jsonl"].read(io.BytesIO(lines.encode()), DataConfig(), "dev.jsonl")) == read(paragraphs)


def test_questions_without_answers_a_title_or_a_name_in_letters():
    asked = [{"id": 7, "question": "a?"}, {"id": "8", "question": "b?"}]
    assert read([{"paragraphs": [{"context": "a b", "qas": asked}]}]) == [
        (1, {"id": "7", "title": "", "context": "a b", "question": "a?"}),
        (2, {"id": "8", "title": "", "context": "a b", "question": "b?"}),
    ]


def test_rows_without_paragraphs_stay_as_they_are():
    flat = [row for _, row in ROWS]
    assert read(flat) == read({"data": flat}) == ROWS


def changed(place, value):
    """Return the articles with another value in one place, or without that place."""
    articles = json.loads(json.dumps(ARTICLES))
    thing = articles
    for key in place[:-1]:
        thing = thing[key]
    if value is None:
        del thing[place[-1]]
    else:
        thing[place[-1]] = value
    return articles


NEXT = [0, "paragraphs", 0, "qas", 1]


@pytest.mark.parametrize(
    ("place", "value", "line"),
    [
        ([1], "B", f"the article must be an object in article 2 (dev.json) - {LIKE}"),
        ([1, "paragraphs"], None, "no 'paragraphs' in article 2 (dev.json) - add the key"),
        ([0, "paragraphs"], {}, f"'paragraphs' must be a list in article 1 (dev.json) - {LIKE}"),
        ([1, "title"], 5, f"'title' must be text in article 2 (dev.json) - {LIKE}"),
        ([0, "paragraphs", 1], [], f"the paragraph must be an object in article 1, paragraph 2 (dev.json) - {LIKE}"),
        ([0, "paragraphs", 1, "context"], None, "no 'context' in article 1, paragraph 2 (dev.json) - add the key"),
        ([0, "paragraphs", 1, "qas"], None, "no 'qas' in article 1, paragraph 2 (dev.json) - add the key"),
        (
            NEXT,
            "x",
            f"the question must be an object in article 1, paragraph 1, question 2 (dev.json:2) - {LIKE}",
        ),
        ([*NEXT, "id"], None, "no 'id' in article 1, paragraph 1, question 2 (dev.json:2) - add the key"),
        ([*NEXT, "id"], True, f"'id' must be text in article 1, paragraph 1, question 2 (dev.json:2) - {LIKE}"),
        (
            [*NEXT, "question"],
            None,
            "no 'question' in article 1, paragraph 1, question 2 (id 'q2') (dev.json:2) - add the key",
        ),
        (
            [*NEXT, "answers"],
            {"text": ["c"], "answer_start": [4]},
            f"'answers' must be a list in article 1, paragraph 1, question 2 (id 'q2') (dev.json:2) - {LIKE}",
        ),
        ([*NEXT, "answers"], None, f"the keys change: no 'answers' (dev.json:2) - {KEYS}"),
        (
            [*NEXT, "is_impossible"],
            "no",
            "'is_impossible' must be true or false in article 1, paragraph 1, question 2 (id 'q2')"
            f" (dev.json:2) - {LIKE}",
        ),
        (
            [1, "paragraphs", 0, "qas", 0, "answers", 0],
            "e",
            "the answer must be an object in article 2, paragraph 1, question 1 (id 'q3'), answer 1"
            f" (dev.json:3) - {LIKE}",
        ),
        (
            [*NEXT, "answers", 0, "answer_start"],
            "4",
            "'answer_start' must be an integer in article 1, paragraph 1, question 2 (id 'q2'), answer 1"
            f" (dev.json:2) - {LIKE}",
        ),
        (
            [*NEXT, "answers", 0, "answer_start"],
            True,
            "'answer_start' must be an integer in article 1, paragraph 1, question 2 (id 'q2'), answer 1"
            f" (dev.json:2) - {LIKE}",
        ),
        (
            [*NEXT, "answers", 0, "text"],
            None,
            "no 'text' in article 1, paragraph 1, question 2 (id 'q2'), answer 1 (dev.json:2) - add the key",
        ),
        (
            [*NEXT, "answers", 0, "text"],
            "c\ud83d",
            "half of a surrogate pair: '\\ud83d' (dev.json:2, column 'answers') - write the whole character",
        ),
        ([*NEXT, "question"], "\0?", "a NUL character (dev.json:2, column 'question') - remove it"),
    ],
)
def test_faults_are_placed(place, value, line):
    with pytest.raises(DataError) as caught:
        read(changed(place, value))
    assert str(caught.value) == line


def test_no_questions():
    for articles in ([article("A")], [article("A", ("a b",))]):
        with pytest.raises(DataError) as caught:
            read({"data": articles})
        assert str(caught.value) == "the file is empty (dev.json) - add rows"


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
answers = st.lists(st.builds(answer, texts, st.integers(0, 10**6)))
asked = st.builds(lambda name, text, given: {"id": name, "question": text, "answers": given}, texts, texts, answers)
articles = st.builds(article, texts, st.builds(lambda text, qas: (text, *qas), texts, st.lists(asked, min_size=1)))


@given(st.lists(articles, min_size=1))
def test_what_is_nested_comes_out_flat(nested):
    flat = [
        {
            "id": each["id"],
            "title": one["title"],
            "context": paragraph["context"],
            "question": each["question"],
            "answers": {key: [answer[key] for answer in each["answers"]] for key in ("text", "answer_start")},
        }
        for one in nested
        for paragraph in one["paragraphs"]
        for each in paragraph["qas"]
    ]
    assert read({"data": nested}) == list(enumerate(flat, 1))
