"""Mistakes in rows of words, questions, choices and senses: each one line that says what, where and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def lines(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def words(tokens: object, tags: object) -> dict:
    return {"tokens": tokens, "tags": tags}


def question(context: str, text: str | None, start: int = 0, name: str = "q1", asked: str = "Who?") -> dict:
    texts = [] if text is None else [text]
    return {
        "id": name,
        "question": asked,
        "context": context,
        "answers": {"text": texts, "answer_start": [start] * len(texts)},
    }


OK = words(["EU", "rejects"], ["B-ORG", "O"])
LABELS = "(0 O, 1 B-PER, 2 I-PER, 3 B-ORG, 4 I-ORG, 5 B-LOC, 6 I-LOC, 7 B-MISC, 8 I-MISC)"

MISTAKES = {
    "half a character": (
        "ner",
        "d.jsonl",
        lines(OK) + '{"tokens": ["EU \\ud800"], "tags": ["O"]}\n',
        "half of a surrogate pair: '\\ud800' (d.jsonl:2, column 'tokens') - write the whole character",
    ),
    "fewer tags than words": (
        "ner",
        "d.jsonl",
        lines(OK, words(["EU", "rejects"], ["O"])),
        "2 words but 1 tags (d.jsonl:2, column 'tags') - write one tag per word",
    ),
    "unknown tag": (
        "ner",
        "d.jsonl",
        lines(OK, words(["EU"], ["B-ORGG"])),
        f"word 1 'EU': label 'B-ORGG' is not one of the 9 labels {LABELS} (d.jsonl:2, column 'tags')"
        " - did you mean B-ORG or I-ORG?; the recipe `tag` takes the types of your rows, which ner does not",
    ),
    "inside of nothing": (
        "ner",
        "d.jsonl",
        lines(OK, words(["in", "Rome"], ["O", "I-LOC"])),
        "word 2 'Rome': I-LOC after O is not IOB2 (d.jsonl:2, column 'tags') - add --set options.scheme=iob1",
    ),
    "tag without a type": (
        "ner",
        "d.jsonl",
        lines(OK, words(["Rome"], ["B-"])),
        "word 1 'Rome': the tag 'B-' has no type (d.jsonl:2, column 'tags') - correct the row",
    ),
    "another scheme": (
        "ner",
        "d.jsonl",
        lines(OK, words(["Rome"], ["S-LOC"])),
        "word 1 'Rome': the tag 'S-LOC' is not IOB2 (d.jsonl:2, column 'tags')"
        " - add --set options.scheme=bioes if they are BIOES",
    ),
    "tags that are no entities": (
        "tag",
        "d.jsonl",
        lines(words(["a", "dog"], ["DET", "NOUN"])),
        "word 1 'a': the tag 'DET' is not an entity tag (d.jsonl:1, column 'tags') - if these are not entity tags,"
        " --set options.scheme=none --set metrics=[accuracy,f1_macro]",
    ),
    "a column too few": (
        "ner",
        "d.conll",
        "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n  \nGerman\tJJ\tB-NP\tB-MISC\ncall NN I-NP",
        "3 columns, but 4 in line 3: 'call NN I-NP' (d.conll:7) - give every word the same columns",
    ),
    "an answer elsewhere": (
        "squad",
        "d.jsonl",
        lines(question("Ann met Ann.", "Ann", 7)),
        "question q1: the answer 'Ann' is not at 7 (' An' is); the nearest is at 8 (d.jsonl:1, column 'answers')"
        " - correct it",
    ),
    "an answer nowhere": (
        "squad",
        "d.jsonl",
        lines(question("Ann came.", "Bob")),
        "question q1: the answer 'Bob' is not at 0 ('Ann' is), nor anywhere else in the context"
        " (d.jsonl:1, column 'answers') - correct it",
    ),
    "an offset in bytes": (
        "squad",
        "d.jsonl",
        lines(question("é Ann came.", "Ann", 3)),
        "question q1: the answer 'Ann' is not at 3 ('nn ' is); answer_start counts bytes, not characters"
        " (d.jsonl:1, column 'answers') - correct it",
    ),
    "an offset in UTF-16": (
        "squad",
        "d.jsonl",
        lines(question("\U0001f600 Ann came.", "Ann", 3)),
        "question q1: the answer 'Ann' is not at 3 ('nn ' is); answer_start counts UTF-16 units, not characters"
        " (d.jsonl:1, column 'answers') - correct it",
    ),
    "no answer in SQuAD 1.1": (
        "squad",
        "d.jsonl",
        lines(question("Ann came.", None)),
        "question q1: no answer, but this recipe expects one for every question (d.jsonl:1, column 'answers')"
        " - use the recipe squad2, or --set options.no_answer=true",
    ),
    "an id twice": (
        "squad",
        "d.jsonl",
        lines(question("Ann came.", "Ann"), question("Bob came.", "Bob")),
        "the id 'q1' is also the id of line 1 (d.jsonl:2) - give each row a different id",
    ),
    "no context": (
        "squad",
        "d.jsonl",
        lines(question("", "Ann")),
        "no text (d.jsonl:1, id 'q1', column 'context') - fill it in, or --set data.empty_text=drop (or keep)",
    ),
    "a label beyond the choices": (
        "choose",
        "d.jsonl",
        lines({"context": "a", "choices": ["b", "c"], "label": 2}),
        "label '2' is not one of the 2 choices (d.jsonl:1, column 'label') - count them from 0 to 1",
    ),
    "one choice": (
        "choose",
        "d.jsonl",
        lines({"context": "a", "choices": ["b"], "label": 0}),
        "a row needs two or more choices, got 1 (d.jsonl:1, column 'choices') - add choices, or leave the row out",
    ),
    "a target beyond the words": (
        "wsd",
        "d.jsonl",
        lines({"tokens": ["a", "bank"], "word_pos": 2, "word": "bank", "label_name": "river"}),
        "the target 2 is beyond the 2 words (d.jsonl:1, column 'word_pos') - count words from 0",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_has_its_line(run, tiny_model, mistake):
    recipe, name, content, expected = MISTAKES[mistake]
    Path(name).write_text(content)
    columns = ["--set", "data.columns.tags=tags"] if recipe == "ner" and name.endswith("jsonl") else []
    ended = run("finetune", recipe, "--model", tiny_model, "--data", name, "--dry-run", *columns)
    assert (ended.code, ended.last) == (3, f"error: {expected}")


def test_sentences_without_a_tag_are_left_out_and_counted(run, tiny_model):
    rows = [OK, words(["x"], [-100]), *[words(["EU", f"w{n}"], ["B-ORG", "O"]) for n in range(8)]]
    Path("d.jsonl").write_text(lines(*rows))
    options = ["--set", "data.columns.tags=tags", "--dry-run", "--json"]
    ended = run("finetune", "ner", "--model", tiny_model, "--data", "d.jsonl", *options)
    assert ended.code == 0, ended.err
    assert sum(json.loads(ended.out)["rows"].values()) == 9
    assert "rows of d.jsonl without labels, left out: 1" in ended.err


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("options.scheme=iob3", "options.scheme is 'iob3' - did you mean iob2 or iob1?"),
        ("options.overlap=.inf", "options.overlap is inf - give an integer of at least 0"),
        ("options.overlap=-1", "options.overlap is -1 - give an integer of at least 0"),
        ("options.sceme=iob1", "unknown key 'options.sceme' - did you mean scheme?"),
        ("metrics=[exact_match]", "no metric is called 'exact_match' - there are: f1, "),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(run, setting, expected):
    ended = run("finetune", "ner", "--data", "nowhere.jsonl", "--set", setting)
    assert ended.code == 2
    assert ended.last.startswith(f"error: {expected}")
