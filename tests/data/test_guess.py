"""A recipe that is guessed from rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bertkit.data.guess import guess_recipe
from bertkit.errors import DataError
from tests.conftest import toy_rows, write_csv, write_jsonl

TEXTS = [f"a text of several words number {number}" for number in range(30)]


def rows(**columns):
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


WORDS = [["Anna", "sleeps"], ["Oslo", "is", "cold"]] * 15
FILES = {
    "classes": (
        rows(id=range(30), review=TEXTS, stars=[1, 5, 3] * 10),
        ("classify", {"text": "review", "label": "stars"}),
    ),
    "pairs": (
        rows(premise=TEXTS, hypothesis=TEXTS[::-1], label=["yes", "no"] * 15, source=["web", "book", "web"] * 10),
        ("classify", {"text": "premise", "text_pair": "hypothesis", "label": "label"}),
    ),
    "numbers": (
        rows(Text=TEXTS, score=[number / 7 for number in range(30)]),
        ("regress", {"text": "Text", "label": "score"}),
    ),
    "tags": (
        rows(tokens=WORDS, lemmas=WORDS, ner_tags=[[1, 0], [2, 0, 0]] * 15),
        ("tag", {"tokens": "tokens", "tags": "ner_tags"}),
    ),
    "spans": (
        rows(text=TEXTS, entities=[[{"start": 0, "end": 1, "label": "X"}], []] * 15),
        ("tag", {"text": "text", "spans": "entities"}),
    ),
    "answers": (
        rows(id=range(30), question=TEXTS, context=TEXTS, answers=["text"] * 30),
        ("qa", {"question": "question", "context": "context", "answers": "answers"}),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_columns_are_found_by_their_names_and_values(name, tmp_path):
    given, expected = FILES[name]
    write_jsonl(tmp_path / "rows.jsonl", given)
    guess = guess_recipe(str(tmp_path / "rows.jsonl"))
    assert (guess.extends, guess.columns) == expected
    assert set(guess.reasons) == set(guess.columns)
    others = {"pairs": ["source (2 values)"], "tags": ["lemmas (5 values)"]}
    assert guess.alternatives == others.get(name, [])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (rows(text=TEXTS, url=[f"u{number}" for number in range(30)]), "no column looks like a label: url"),
        (rows(word=["a", "b"], label=[0, 1]), "no column looks like text: word, label"),
    ],
)
def test_a_file_without_text_or_label_is_refused(given, message, tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", given)
    with pytest.raises(DataError, match=message):
        guess_recipe(str(tmp_path / "rows.jsonl"))


def test_the_recipe_is_printed_with_its_reasons_and_trains(run, tiny_model):
    write_csv(Path("reviews.csv"), [{"review": row["text"], "stars": row["label"]} for row in toy_rows(60, seed=1)])
    printed = run("recipes", "guess", "reviews.csv")
    assert printed.code == 0 and "# label is 'stars': 2 values: bad, good" in printed.out
    assert run("recipes", "guess", "reviews.csv", "--output", "reviews.yaml").code == 0
    assert yaml.safe_load(Path("reviews.yaml").read_text())["extends"] == "classify"
    assert run("finetune", "reviews.yaml", "--model", tiny_model, "--dry-run").code == 0
    refused = run("recipes", "guess", "reviews.csv", "--output", "reviews.yaml")
    assert refused.code == 2 and "reviews.yaml exists already" in refused.last
    assert run("recipes", "guess", "nowhere.csv").code != 0
