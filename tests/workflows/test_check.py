"""`check`: each fault that is planted is found with its row, and clean rows pass."""

from __future__ import annotations

import json
import random
import sys

import pytest

from bertkit.errors import DataError, UnavailableError, UsageError
from bertkit.recipe import load_recipe
from bertkit.workflows.check import check
from tests.conftest import WORDS, write_jsonl

VOCABULARY = [word for words in WORDS.values() for word in words]
LONG = " ".join(random.Random(0).choices(VOCABULARY, k=40))


def write_rows(count, seed, labels=("negative", "positive")):
    """Rows whose labels nothing predicts, all different."""
    rng = random.Random(seed)
    rows = [{"text": " ".join(rng.choices(VOCABULARY, k=rng.randint(8, 14)))} for _ in range(count)]
    return [{"id": f"row-{rng.randrange(10**9)}", **row, "label": rng.choice(labels)} for row in rows]


def run_check(folder, model, train, validation, settings=(), recipe="classify", **changes):
    """Check rows, whose numbers count from 1; return the result, and name of a finding -> [its level, rows]."""
    write_jsonl(folder / "train.jsonl", train)
    write_jsonl(folder / "validation.jsonl", validation)
    keys = {"data.source": str(folder), "model": str(model), **changes}
    result = check(load_recipe(recipe, keys), **dict(settings))
    found = {}
    for finding in result.findings:
        if finding.count or finding.level != "good":
            entry = found.setdefault(finding.name, [finding.level, set()])
            entry[0] = finding.level if finding.level != "good" else entry[0]
            entry[1] |= {(place.file.removeprefix(f"{folder}/"), place.row) for place in finding.places}
    return result, found


def test_clean_rows_pass(tmp_path, tiny_model):
    columns = {"data.columns": {"text": "text", "label": "label", "id": "id"}}
    result, _ = run_check(tmp_path / "data", tiny_model, write_rows(300, 1), write_rows(80, 2), **columns)
    assert [finding for finding in result.findings if finding.level != "good"] == []
    assert result.rows == {"train": 300, "validation": 80}
    assert {finding.group for finding in result.findings} == {
        "rows",
        "labels",
        "repeats",
        "tokens",
        "shortcuts",
        "splits",
    }


def test_faults_of_single_rows_are_all_found(tmp_path, tiny_model):
    train, validation = write_rows(400, 1), write_rows(80, 2)
    train[3]["text"] = " "
    train[10] = {**train[20], "text": train[20]["text"].upper(), "id": "a"}
    other = {"negative": "positive", "positive": "negative"}
    train[30] = {**train[40], "label": other[train[40]["label"]], "id": "b"}
    train[50]["label"] = "postive"
    train[60]["text"], train[61]["text"] = LONG, f"{LONG} x"
    train[70]["text"] = f"{train[70]['text']} " * 20
    train[80]["text"] = "δ ж ו " + train[80]["text"]
    validation[5]["text"] = train[90]["text"]
    validation[6]["label"] = "POSITIVE"
    _, found = run_check(tmp_path / "data", tiny_model, train, validation)
    assert found["empty_texts"] == ["fail", {("train.jsonl", 4)}]
    assert found["unreadable_rows"] == ["fail", {("validation.jsonl", 7)}]
    assert found["repeated_rows"] == ["good", {("train.jsonl", 21), ("train.jsonl", 11)}]
    assert found["contradictory_labels"] == ["warn", {("train.jsonl", 41), ("train.jsonl", 31)}]
    assert found["misspelled_labels"] == ["warn", {("train.jsonl", 51)}]
    assert found["rare_labels"] == ["warn", {("train.jsonl", 51)}]
    assert found["near_repeats"] == ["good", {("train.jsonl", 61), ("train.jsonl", 62)}]
    assert found["leaked_rows"] == ["warn", {("validation.jsonl", 6), ("train.jsonl", 91)}]
    assert found["truncated"] == ["good", {("train.jsonl", 71)}]
    assert found["unknown_tokens"][0] == "good"


def test_what_all_rows_share_is_found(tmp_path, tiny_model):
    train, validation = write_rows(300, 1), write_rows(80, 2)
    train.sort(key=lambda row: row["label"])
    for number, row in enumerate(train):
        row["id"] = f"{row['label'][:3]}-{number}"
        if row["label"] == "positive" and number % 3:
            row["text"] = f"Review: {row['text']}"
    for row in validation:
        row["text"] = f"Ω {row['text']} Ω zebra zoo"
    columns = {
        "data.columns": {"text": "text", "label": "label", "id": "id"},
        "labels": ["negative", "positive", "mixed"],
    }
    _, found = run_check(tmp_path / "data", tiny_model, train, validation, **columns)
    assert {name for name, (level, _) in found.items() if level == "warn"} >= {
        "ids",
        "row_order",
        "words",
        "shift",
        "unseen_labels",
        "unknown_tokens",
    }
    assert not any(level == "fail" for level, _ in found.values())


def test_many_leaked_rows_and_a_wrong_tokenizer_fail(tmp_path, tiny_model):
    train = [
        {**row, "text": " ".join("жшю" for _ in row["text"].split()) + str(n)}
        for n, row in enumerate(write_rows(99, 1))
    ]
    _, found = run_check(tmp_path / "data", tiny_model, train, train[:20])
    assert found["leaked_rows"][0] == found["unknown_tokens"][0] == "fail"


def test_questions_with_wrong_or_lost_answers(tmp_path, tiny_model):
    context = "a fine book and a lovely song"
    good = [
        {
            "question": f"what is good {n}?",
            "context": f"{context} {n}",
            "answers": {"text": ["lovely song"], "answer_start": [18]},
        }
        for n in range(8)
    ]
    wrong = {**good[3], "answers": {"text": ["lovely song"], "answer_start": [17]}}
    lost = {**good[4], "answers": {"text": [context], "answer_start": [0]}}
    train = [*good[:3], wrong, lost, *good[5:7]]
    _, found = run_check(tmp_path / "data", tiny_model, train, good[7:], recipe="qa", **{"training.max_length": 12})
    assert found["unreadable_rows"] == ["fail", {("train.jsonl", 4)}]
    assert found["lost_gold"] == ["warn", {("train.jsonl", 5)}]


def test_answers_that_are_longer_than_any_prediction(tmp_path, tiny_model):
    context = "a fine book and a lovely song"
    rows = [
        {"question": f"what {n}?", "context": context, "answers": {"text": [context], "answer_start": [0]}}
        for n in range(8)
    ]
    _, found = run_check(tmp_path / "data", tiny_model, rows[:6], rows[6:], recipe="qa")
    assert "lost_gold" not in found
    _, found = run_check(
        tmp_path / "more", tiny_model, rows[:6], rows[6:], recipe="qa", **{"options.max_answer_length": 3}
    )
    assert found["lost_gold"][0] == "warn"


def test_tags_that_break_their_scheme(tmp_path, tiny_model):
    rows = [{"tokens": ["a", "film", str(n)], "ner_tags": ["O", "B-LOC", "I-LOC"]} for n in range(8)]
    train = [
        *rows[:6],
        {"tokens": ["the", "song"], "ner_tags": ["O", "I-PER"]},
        {"tokens": ["so"], "ner_tags": ["O", "O"]},
    ]
    _, found = run_check(tmp_path / "data", tiny_model, train, rows[6:], recipe="ner")
    assert found["unreadable_rows"] == ["fail", {("train.jsonl", 7), ("train.jsonl", 8)}]
    assert found["unseen_labels"][0] == "warn"  # no row has ORG, for one


def test_a_pair_is_told_by_one_text(tmp_path, tiny_model):
    rows = [{**row, "text_pair": f"so {row['label'][:3]}"} for row in write_rows(260, 3)]
    columns = {"data.columns": {"text": "text", "text_pair": "text_pair", "label": "label"}}
    result, found = run_check(tmp_path / "data", tiny_model, rows[:200], rows[200:], **columns)
    assert found["partial_input"][0] == "warn"
    assert any(finding.text.startswith("'text_pair:neg' is in 100%") for finding in result.findings)


def test_a_test_split_needs_no_labels(tmp_path, tiny_model):
    data, rows = tmp_path / "data", write_rows(40, 1)
    write_jsonl(data / "test.jsonl", [{"text": rows[0]["text"]}, {"text": "so fine"}])
    result, found = run_check(data, tiny_model, rows[:30], rows[30:])
    assert result.rows["test"] == 2
    assert found["leaked_rows"] == ["fail", {("test.jsonl", 1), ("train.jsonl", 1)}]
    write_jsonl(data / "test.jsonl", [{"words": "so fine"}])
    result, found = run_check(data, tiny_model, rows[:30], rows[30:])
    assert found["unreadable_rows"][0] == "fail"
    assert "test" not in result.rows


def test_the_copy_lacks_what_can_go(tmp_path, tiny_model):
    train, validation = write_rows(60, 1), write_rows(20, 2)
    train[3]["text"] = ""
    train[10] = dict(train[20])
    validation[5]["text"] = train[30]["text"]
    copy = tmp_path / "copy"
    result, _ = run_check(tmp_path / "data", tiny_model, train, validation, {"fix": copy})
    kept = [json.loads(line) for line in (copy / "train.jsonl").read_text().splitlines()]
    assert kept == [row for number, row in enumerate(train) if number not in (3, 20, 30)]
    assert (copy / "validation.jsonl").read_text() == (tmp_path / "data" / "validation.jsonl").read_text()
    assert list(result.removed.values()) == [1, 1, 1]
    again, _ = run_check(copy, tiny_model, kept, validation)
    assert all(finding.level != "fail" for finding in again.findings)
    with pytest.raises(UsageError, match="exists already, and bertkit does not replace it"):
        run_check(tmp_path / "data", tiny_model, train, validation, {"fix": copy})


def test_what_cannot_be_checked_is_said(tmp_path, tiny_model, monkeypatch):
    rows = write_rows(40, 1)
    missing = "nobody/no-model"
    result, _ = run_check(tmp_path / "data", missing, rows[:30], rows[30:])
    assert result.unavailable[0].startswith("tokens: ")
    assert result.left_out[0].startswith("label errors: ")
    with pytest.raises(UnavailableError):
        run_check(tmp_path / "data", missing, rows[:30], rows[30:], {"needs_model": True})
    monkeypatch.setitem(sys.modules, "cleanlab.filter", None)
    result, _ = run_check(tmp_path / "data", tiny_model, rows[:30], rows[30:], {"label_errors": True})
    (unavailable,) = result.unavailable
    assert unavailable.startswith("label errors: they need the package cleanlab; `pip install ")


def test_data_that_cannot_be_read_at_all_is_refused(tmp_path, tiny_model):
    rows = write_rows(30, 1)
    with pytest.raises(DataError, match="no column 'text'"):
        run_check(tmp_path / "data", tiny_model, [{"words": "a", "label": "b"}], rows)
    result, found = run_check(tmp_path / "data", tiny_model, [{"text": "", "label": "b"}], rows)
    assert found["empty_texts"][0] == "fail"
    assert result.left_out == ["everything else: no training row can be read"]
