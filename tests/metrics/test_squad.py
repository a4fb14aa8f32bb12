"""Answers: scored like SQuAD's own evaluations, which are written anew here; every form of gold answers read.

`BERTKIT_SQUAD` names folders with SQuAD's Parquet files (`squad` and `squad_v2`, joined as in PATH).
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import string
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertkit.data.formats.squad import read_questions
from bertkit.errors import DataError
from bertkit.metrics import squad
from bertkit.recipe import load_recipe
from bertkit.tasks import question_answering as task
from bertkit.tokens.features import TaskContext

# --- the official evaluations in other words


def official_text(answer: str) -> str:
    """Lower case, then no punctuation, then no articles, then single spaces."""
    lowered = answer.lower()
    bare = "".join(character for character in lowered if character not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def official_f1(gold: str, predicted: str, *, empty_counts: bool) -> float:
    gold_words, predicted_words = official_text(gold).split(), official_text(predicted).split()
    if empty_counts and (not gold_words or not predicted_words):
        return float(gold_words == predicted_words)
    same = sum((Counter(predicted_words) & Counter(gold_words)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted_words), same / len(gold_words)
    return 2 * precision * recall / (precision + recall)


def all_questions(nested: dict) -> list[dict]:
    return [qa for article in nested["data"] for paragraph in article["paragraphs"] for qa in paragraph["qas"]]


def official_raw(nested: dict, predictions: dict[str, str], version: str) -> dict[str, tuple[float, float]]:
    """Exact match and F1 of each question: 1.1 takes golds as they are, 2.0 only those that say something."""
    scores = {}
    for qa in all_questions(nested):
        golds = [answer["text"] for answer in qa["answers"]]
        if version == "2.0":
            golds = [gold for gold in golds if official_text(gold)] or [""]
        said = predictions[qa["id"]]
        exact = max(float(official_text(gold) == official_text(said)) for gold in golds)
        f1 = max(official_f1(gold, said, empty_counts=version == "2.0") for gold in golds)
        scores[qa["id"]] = (exact, f1)
    return scores


def official_best(
    scores: dict[str, float], predictions: dict[str, str], odds: dict[str, float], answerable: dict[str, bool]
) -> tuple[float, float]:
    """From "nothing is answered" on, let one question more be answered at a time, the surest first."""
    total = best = sum(not has_answer for has_answer in answerable.values())
    threshold = 0.0
    for name in sorted(odds, key=lambda name: odds[name]):
        if answerable[name]:
            total += scores[name]
        elif predictions[name]:
            total -= 1
        if total > best:
            best, threshold = total, odds[name]
    return 100 * best / len(scores), threshold


def score_at(
    threshold: float,
    scores: dict[str, float],
    predictions: dict[str, str],
    odds: dict[str, float],
    answerable: dict[str, bool],
) -> float:
    """Score every question anew, with no answer where the odds are above the threshold."""
    total = 0.0
    for name in scores:
        silent = odds[name] > threshold
        if answerable[name]:
            total += 0 if silent else scores[name]
        else:
            total += silent or not predictions[name]
    return 100 * total / len(scores)


def searched_best(
    scores: dict[str, float], predictions: dict[str, str], odds: dict[str, float], answerable: dict[str, bool]
) -> tuple[float, float]:
    """Try each threshold, from below the least of the odds to above the greatest; the lowest of the best counts."""
    tried = sorted({min(odds.values()) - 1, *odds.values(), max(odds.values()) + 1})
    reached = [score_at(threshold, scores, predictions, odds, answerable) for threshold in tried]
    return max(reached), next(tried[n] for n, score in enumerate(reached) if score >= max(reached) - 1e-9)


def official_scores(nested: dict, predictions: dict[str, str], odds: dict[str, float] | None = None) -> dict:
    """Return what evaluate-v1.1.py prints, or with null odds evaluate-v2.0.py, under bertkit's names."""
    raw = official_raw(nested, predictions, "1.1" if odds is None else "2.0")

    def mean(names, which: int) -> float:
        return 100 * sum(raw[name][which] for name in names) / len(names) if names else math.nan

    everything = list(raw)
    found = {"exact_match": mean(everything, 0), "f1": mean(everything, 1)}
    if odds is None:
        return found
    answerable = {qa["id"]: bool(qa["answers"]) for qa in all_questions(nested)}
    for kind, has_answer in (("HasAns", True), ("NoAns", False)):
        names = [name for name in everything if answerable[name] == has_answer]
        found |= {f"{kind}_exact": mean(names, 0), f"{kind}_f1": mean(names, 1)}
    for which, name in enumerate(("best_exact", "best_f1")):
        one = {key: pair[which] for key, pair in raw.items()}
        best, threshold = searched_best(one, predictions, odds, answerable)
        # The official search takes 0 for "answer nothing", and lets one of two questions of equal odds be answered.
        if len(set(odds.values())) == len(odds):
            official, official_threshold = official_best(one, predictions, odds, answerable)
            assert official == pytest.approx(best)
            if official_threshold:
                assert score_at(official_threshold, one, predictions, odds, answerable) == pytest.approx(best)
        found[name], found[f"{name}_thresh"] = best, threshold
    return found


# --- bertkit beside it


def setup_of(version: str) -> TaskContext:
    names = [name for name in task.METRICS if version == "2.0" or name in ("exact_match", "f1")]
    return TaskContext(load_recipe("squad2" if version == "2.0" else "squad", {"metrics": names}), None, ())


SETUPS = {version: setup_of(version) for version in ("1.1", "2.0")}


def check_scores(nested: dict, predictions: dict[str, str], odds: dict[str, float] | None = None) -> None:
    """Check each question and all metrics."""
    version = "1.1" if odds is None else "2.0"
    context, expected = SETUPS[version], official_raw(nested, predictions, version)
    rows = [row for number, article in enumerate(nested["data"], 1) for row in read_questions(article, number, 0)]
    for row in rows:
        pair = squad.score_question(row["answers"]["text"], predictions[row["id"]], no_answer=odds is not None)
        assert pair == pytest.approx(expected[row["id"]])
    records = [
        {"prediction": predictions[row["id"]], **({} if odds is None else {"null_odds": odds[row["id"]]})}
        for row in rows
    ]
    row_scores = task.compare(records, rows, context)
    assert list(zip(row_scores["exact"], row_scores["f1"], strict=True)) == [
        pytest.approx(expected[row["id"]]) for row in rows
    ]
    assert task.score(row_scores, context) == pytest.approx(official_scores(nested, predictions, odds), nan_ok=True)


def nested_of(golds: list[list[str]]) -> dict:
    """The official nested JSON of questions with these gold answers, two a paragraph."""
    paragraphs = []
    for first in range(0, len(golds), 2):
        context, qas = "", []
        for number, texts in enumerate(golds[first : first + 2], first):
            found = []
            for text in texts:
                found.append({"text": text, "answer_start": len(context)})
                context += f"{text} "
            qas.append({"id": f"q{number}", "question": "what?", "answers": found, "is_impossible": not found})
        paragraphs.append({"context": context, "qas": qas})
    return json.loads(json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": paragraphs}]}))


SAID = (
    "the a an The AN cat Cat cat's cats! dog, (dog) eiffel-tower état ÉTAT e\u0301tat İstanbul straße STRASSE "
    "“cat” ‘the’ x_the_y a.m. 3.14 314 東京 的 кот ... - ! \u200b thé"
)
some_text = st.lists(st.sampled_from([*SAID.split(" "), "\u00a0", "", "\n"]), max_size=4).map(" ".join)
some_odds = st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0]) | st.floats(-20, 20)


@given(st.lists(st.tuples(st.lists(some_text, min_size=1, max_size=3), some_text), min_size=1, max_size=8))
@settings(deadline=None)
@example([(["the"], "a"), (["..."], "")])  # alike once normalized, and still without a word in common
def test_scores_are_those_of_evaluate_v1(cases):
    nested = nested_of([golds for golds, _ in cases])
    check_scores(nested, {f"q{number}": said for number, (_, said) in enumerate(cases)})


@given(st.lists(st.tuples(st.lists(some_text, max_size=3), some_text, some_odds), min_size=1, max_size=12))
@settings(deadline=None)
@example([([], "cat", -1.0), (["cat"], "cat", -1.0)])
@example([(["the"], "", 0.0), (["the", "cat"], "the", 1.0), ([], "the", 2.0)])
def test_scores_and_thresholds_are_those_of_evaluate_v2(cases):
    nested = nested_of([golds for golds, _, _ in cases])
    predictions = {f"q{number}": said for number, (_, said, _) in enumerate(cases)}
    check_scores(nested, predictions, {f"q{number}": odds for number, (_, _, odds) in enumerate(cases)})


@given(some_text)
@settings(deadline=None)
def test_answers_are_normalized_as_there(text):
    assert squad.normalize(text) == official_text(text)


def test_two_empty_answers_are_alike_only_where_there_may_be_none():
    assert squad.score_question(["the"], "a!", no_answer=False) == (1.0, 0.0)
    assert squad.score_question(["the"], "a!", no_answer=True) == (1.0, 1.0)
    assert squad.score_question([], "", no_answer=True) == (1.0, 1.0)
    assert squad.score_question([], "the cat", no_answer=True) == (0.0, 0.0)
    assert squad.score_question(["cat sat", "the cat"], "a cat", no_answer=False) == (1.0, 1.0)


@pytest.mark.parametrize(("f1", "is_share"), [([1.0, 1.0, 0.0], True), ([1.0, 0.5, 0.0], False)])
def test_a_mean_of_right_and_wrong_answers_is_a_share(f1, is_share):
    row_scores = {"exact": np.array([1.0, 0.0, 0.0]), "f1": np.array(f1), "has_answer": np.array([True, True, False])}
    assert (squad.METRICS["f1"].counts(row_scores) == (2, 3)) == is_share
    exact = squad.METRICS["HasAns_exact"]
    assert (exact.compute(row_scores), exact.counts(row_scores), exact.to_score(0.5)) == (50.0, (1, 2), 50.0)


def find_best_threshold(scores, empty, odds, answerable):
    return squad.find_best_threshold(np.array(scores), np.array(empty), np.array(odds), np.array(answerable))


def test_the_threshold_lets_the_good_answers_through():
    answerable = [True, False, True, False]
    assert find_best_threshold([1.0, 0.0, 1.0, 0.0], [False] * 4, [-3.0, 5.0, -1.0, 4.0], answerable) == (1.0, -1.0)
    assert find_best_threshold([0.5, 1.0], [False] * 2, [2.0, 3.0], [True, True]) == (0.75, 3.0)


def test_where_no_answer_is_best_the_threshold_lets_none_through():
    odds = [-3.0, -7.0, -1.0, -4.0]
    assert find_best_threshold([0.0] * 4, [False] * 4, odds, [True, False, True, False]) == (0.5, -8.0)


def test_questions_of_equal_odds_are_answered_together():
    assert find_best_threshold([1.0, 0.0], [False] * 2, [-1.0, -1.0], [True, False]) == (0.5, -2.0)


def test_of_equally_good_thresholds_the_lowest_is_taken():
    assert find_best_threshold([1.0, 0.0, 1.0], [False] * 3, [1.0, 2.0, 3.0], [True, False, True]) == (2 / 3, 1.0)


SQUAD = [Path(folder) for folder in os.environ.get("BERTKIT_SQUAD", "").split(os.pathsep) if folder]


@pytest.mark.skipif(not SQUAD, reason="BERTKIT_SQUAD names no folder with SQuAD's Parquet files")
@pytest.mark.parametrize("folder", SQUAD, ids=str)
def test_scores_on_squad_itself(folder):
    from pyarrow import parquet

    rng = random.Random(0)
    golds, predictions, odds = [], {}, {}
    for number, row in enumerate(parquet.read_table(folder / "validation.parquet").to_pylist()):
        words = row["context"].split()
        begin = rng.randrange(len(words))
        spans = [*row["answers"]["text"], " ".join(words[begin : begin + rng.randint(1, 5)]), ""]
        golds.append(row["answers"]["text"])
        predictions[f"q{number}"] = rng.choice(spans)
        odds[f"q{number}"] = round(rng.gauss(-1 if golds[-1] else 1, 3), 1)
    unanswerable = any(not texts for texts in golds)
    check_scores(nested_of(golds), predictions, odds if unanswerable else None)


# --- gold answers, whichever way they are written

CONTEXT = "Ā dull film, a 🎬 great film."  # one character of two bytes, one of two UTF-16 units


def row_of(value, context: str = CONTEXT, **more) -> dict:
    return {"question": "which?", "context": context, "answers": value, **more}


SQUAD_FORM = {"text": ["dull", "great"], "answer_start": [2, 17]}
HAS_LABEL_NAMES = [{"text": "dull", "answer_start": 2}, {"text": "great", "answer_start": 17}]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (SQUAD_FORM, (["dull", "great"], [2, 17])),
        (json.dumps(SQUAD_FORM), (["dull", "great"], [2, 17])),
        (HAS_LABEL_NAMES, (["dull", "great"], [2, 17])),
        ([{**each, "answer_end": 9} for each in HAS_LABEL_NAMES], (["dull", "great"], [2, 17])),
        (" " + json.dumps(HAS_LABEL_NAMES), (["dull", "great"], [2, 17])),
        ({"text": "great", "answer_start": 17}, (["great"], [17])),
        ({"text": ("great",), "answer_start": np.array([17])}, (["great"], [17])),
        (["great", 17], (["great"], [17])),
        (("great", "17"), (["great"], [17])),
        ('["great", 17]', (["great"], [17])),
        ("great", (["great"], [17])),
        ("", ([], [])),
        ("  ", ([], [])),
        (["", 0], ([], [])),
        ([], ([], [])),
        ("[]", ([], [])),
        ({"text": [], "answer_start": []}, ([], [])),
    ],
    ids=repr,
)
def test_answers_are_read_from_every_form(value, expected):
    assert squad.read_answers(row_of(value)) == expected
    read = task.read(row_of(value), load_recipe("squad2"))
    assert read["answers"] == dict(zip(("text", "answer_start"), expected, strict=True))


NOT_SQUAD = (
    'the answers are not in the form of SQuAD (column \'answers\') - write {"text": ["..."], "answer_start": [17]}'
)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("film", "the answer 'film' occurs 2 times in the context (column 'answers') - add its answer_start"),
        ("great ", None),
        ("Great", "the answer 'Great' is not in the context (column 'answers') - copy it from there"),
        ('{"text": ["dull"', "the answers are not valid JSON (column 'answers') - correct them"),
        ({"text": ["dull"]}, NOT_SQUAD),
        ({"text": ["dull"], "answer_start": []}, NOT_SQUAD),
        ({"text": ["dull"], "answer_start": [2, 7]}, NOT_SQUAD),
        ({"text": [7], "answer_start": [2]}, NOT_SQUAD),
        ({"text": ["dull"], "answer_start": ["here"]}, NOT_SQUAD),
        ({"text": ["dull"], "answer_start": [None]}, NOT_SQUAD),
        ([{"text": "dull"}], NOT_SQUAD),
        ([{"answer": "dull", "start": 2}], NOT_SQUAD),
        (["dull", "great"], NOT_SQUAD),
        (["dull"], NOT_SQUAD),
        ("[2]", NOT_SQUAD),
        (None, NOT_SQUAD),
        (17, NOT_SQUAD),
    ],
    ids=repr,
)
def test_other_answers_are_refused_in_one_line(value, message):
    if message is None:
        assert squad.read_answers(row_of(value)) == (["great"], [17])
        return
    with pytest.raises(DataError) as raised:
        squad.read_answers(row_of(value))
    assert str(raised.value) == message
    with pytest.raises(DataError) as raised:
        squad.read_answers(row_of(value, id="x1"))
    assert str(raised.value) == f"question x1: {message}"


@pytest.mark.parametrize(
    ("text", "start", "what"),
    [
        ("film", 9, "the answer 'film' is not at 9 ('lm, ' is); the nearest is at 7"),
        ("film", 20, "the answer 'film' is not at 20 ('at f' is); the nearest is at 23"),
        ("film", -1, "the answer 'film' is not at -1 ('Ā du' is); the nearest is at 7"),
        ("film", 99, "the answer 'film' is not at 99 ('' is); the nearest is at 23"),
        ("dull", 3, "the answer 'dull' is not at 3 ('ull ' is); answer_start counts bytes, not characters"),
        ("great", 21, "the answer 'great' is not at 21 ('t fil' is); answer_start counts bytes, not characters"),
        ("great", 18, "the answer 'great' is not at 18 ('reat ' is); answer_start counts UTF-16 units, not characters"),
        ("Great", 17, "the answer 'Great' is not at 17 ('great' is), nor anywhere else in the context"),
        ("x" * 99, 2, f"the answer '{'x' * 60}' is not at 2 ('{CONTEXT[2:]}' is), nor anywhere else in the context"),
    ],
)
def test_an_answer_that_is_elsewhere_says_where(text, start, what):
    with pytest.raises(DataError) as raised:
        task.read(row_of({"text": [text], "answer_start": [start]}, id=7), load_recipe("squad"))
    assert str(raised.value) == f"question 7: {what} (column 'answers') - correct it"


def test_every_answer_is_checked_not_only_the_first():
    value = {"text": ["dull", "great"], "answer_start": [2, 16]}
    with pytest.raises(DataError, match=r"the answer 'great' is not at 16 .* the nearest is at 17"):
        task.read(row_of(value), load_recipe("squad2"))


# --- the same through the command line


def write_squad(folder: Path, qas: list[dict], context: str = CONTEXT) -> Path:
    folder.mkdir()
    good = {"id": "d1", "question": "which?", "answers": HAS_LABEL_NAMES}
    for name, these in (("train-v1.1.json", [{**good, "id": "t1"}, *qas]), ("dev-v1.1.json", [good])):
        paragraphs = [{"context": CONTEXT, "qas": these[:1]}, {"context": context, "qas": these[1:]}]
        content = {"version": "1.1", "data": [{"title": "films", "paragraphs": paragraphs}]}
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("question", "context", "expected"),
    [
        (
            {"id": "t2", "answers": []},
            CONTEXT,
            "question t2: no answer, but this recipe expects one for every question",
        ),
        (
            {"id": "t2", "answers": [{"text": "", "answer_start": 0}]},
            CONTEXT,
            "question t2: an answer has no text",
        ),
        ({"id": "t2", "answers": HAS_LABEL_NAMES}, " ", None),
        (
            {"id": "t2", "answers": [{"text": "film", "answer_start": 9}]},
            CONTEXT,
            "question t2: the answer 'film' is not at 9 ('lm, ' is); the nearest is at 7",
        ),
        (
            {"id": "t2", "answers": [{"text": "great", "answer_start": 18}]},
            CONTEXT,
            "question t2: the answer 'great' is not at 18 ('reat ' is); answer_start counts UTF-16 units",
        ),
        ({"id": "t1", "answers": HAS_LABEL_NAMES}, CONTEXT, "the id 't1' is also the id of line 1"),
    ],
    ids=["unanswerable", "without text", "empty context", "elsewhere", "utf-16", "duplicate id"],
)
def test_mistakes_in_a_file_end_in_one_line(run, tiny_model, tmp_path, question, context, expected):
    folder = write_squad(tmp_path / "squad", [{"question": "which?", **question}], context)
    ended = run("finetune", "squad", "--model", tiny_model, "--data", folder)
    assert ended.code == 3
    assert [line.startswith("error: ") for line in ended.err.splitlines()] == [False, False, True]  # files, then why
    assert f"{folder / 'train-v1.1.json'}:2" in ended.last
    assert ended.last.startswith(f"error: {expected or 'no text'}")
    assert not Path("runs").exists()


def test_unanswerable_questions_are_read_where_there_may_be_some(run, tiny_model, tmp_path):
    folder = write_squad(tmp_path / "squad", [{"id": "t2", "question": "why?", "answers": [], "is_impossible": True}])
    ended = run("finetune", "squad2", "--model", tiny_model, "--data", folder, "--dry-run")
    assert ended.code == 0, ended.err
    assert "rows     train 2, validation 1" in ended.out
