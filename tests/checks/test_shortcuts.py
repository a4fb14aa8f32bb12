"""What predicts labels without reading."""

from __future__ import annotations

import random

from bertkit.checks.shortcuts import find_shortcuts
from bertkit.data.rows import Split
from bertkit.recipe import load_recipe
from bertkit.tasks import load_task


def warned(rows, recipe="classify", validation=None):
    chosen = load_recipe(recipe)
    splits = {"train": Split("train", "t.csv", rows, list(range(1, len(rows) + 1)))}
    if validation is not None:
        splits["validation"] = Split("validation", "v.csv", validation, list(range(1, len(validation) + 1)))
    found = find_shortcuts(splits, load_task(chosen), chosen, sorted({str(row.get("label")) for row in rows}))
    return {finding.name: [place.row for place in finding.places] for finding in found if finding.level == "warn"}


def rows_of(count=120, seed=0):
    rng = random.Random(seed)
    return [{"text": " ".join(rng.choices("abcdefgh", k=9)), "label": rng.choice("xy")} for _ in range(count)]


def test_rows_without_shortcuts_pass():
    assert warned(rows_of()) == {}


def test_a_word_is_named_with_its_rows():
    rows = rows_of()
    for row in rows[2:]:
        row["text"] += " Zebra" if row["label"] == "x" else ""
    first = [number for number, row in enumerate(rows, 1) if "Zebra" in row["text"]][:3]
    assert warned(rows)["words"] == first


def test_common_words_are_no_shortcuts_where_most_rows_have_one_label():
    """Of rows of which 95% are `x`, 95% of the rows with any word are."""
    rng = random.Random(3)
    labels = ["x"] * 380 + ["y"] * 20
    rng.shuffle(labels)
    rows = [{**row, "label": label} for row, label in zip(rows_of(400), labels, strict=True)]
    assert warned(rows) == {}
    rows = [{**row, "text": row["text"] + " zebra" * (row["label"] == "x")} for row in rows]
    assert list(warned(rows)) == ["words", "length"]


def test_lengths():
    rows = rows_of()
    for row in rows:
        row["text"] += " a b c" * (row["label"] == "y")
    assert "length" in warned(rows)


def test_the_order_of_rows():
    rows = rows_of()
    assert list(warned(sorted(rows, key=lambda row: row["label"]))) == ["row_order"]
    alternate = [{**row, "label": "xy"[number % 2]} for number, row in enumerate(rows)]
    assert list(warned(alternate)) == ["row_order"]


def test_ids():
    rows, rng = rows_of(), random.Random(1)
    named = [{**row, "id": f"{row['label']}{rng.randrange(10**6)}"} for row in rows]
    assert list(warned(named)) == ["ids"]
    numbered = [{**row, "id": str(rng.randrange(100) + 100 * (row["label"] == "x"))} for row in rows]
    assert list(warned(numbered)) == ["ids"]
    assert warned([{**row, "id": str(rng.randrange(10**6))} for row in rows]) == {}


def test_a_part_of_the_input():
    rng = random.Random(0)
    rows = [
        {"context": "a b", "choices": [f"right {rng.random()}", f"wrong {rng.random()}"][:: rng.choice((1, -1))]}
        for _ in range(120)
    ]
    rows = [{**row, "label": int(row["choices"][1].startswith("right"))} for row in rows]
    assert list(warned(rows[:80], "choose", rows[80:])) == ["partial_input"]


def test_a_part_of_the_input_is_no_shortcut_where_few_rows_are_right_by_accident():
    rng = random.Random(5)
    rows = [
        {"context": "a b", "choices": [rng.choice("cdefg"), rng.choice("hijkl")], "label": rng.randrange(2)}
        for _ in range(120)
    ]
    assert not any(warned(rows[:40], "choose", rows[start : start + 10]) for start in range(40, 120, 10))


def test_gold_values_that_are_no_labels_are_left_alone():
    rows = [{"question": "a?", "context": "b", "answers": {"text": ["b"], "answer_start": [0]}}] * 60
    assert warned(rows, "qa", rows) == {}
