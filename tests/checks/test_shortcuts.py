"""What predicts labels without reading."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bertkit.checks.shortcuts import Gain, find_shift, find_shortcuts, get_classes, measure_numbers, measure_words
from bertkit.data.columns import ColumnSpec
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


def test_gold_values_as_classes():
    assert get_classes(["b", "a"] * 30) == [1, 0] * 30
    assert get_classes([2, 10] * 30) == [1, 0] * 30
    assert get_classes([0.5, 4.0] * 30) == [0, 1] * 30
    assert get_classes(["a"] * 60) is None
    assert get_classes([["a"], ["b"]] * 30) is None
    assert get_classes(list(map(str, range(60)))) is None
    assert get_classes(["b", "a"]) is None


def test_a_gain_counts_beyond_chance():
    assert Gain(0.75, 0.5, 10_000).error_reduction == pytest.approx(0.5)
    assert Gain(0.51, 0.5, 1000).error_reduction == 0


def test_words_that_tell_and_words_that_do_not():
    rng = random.Random(0)
    classes = [rng.randrange(2) for _ in range(200)]
    noise = [{rng.choice("abcdef")} for _ in classes]
    assert measure_words(noise, classes).error_reduction == 0
    telling = [{*row, f"w{label}"} for row, label in zip(noise, classes, strict=True)]
    assert measure_words(telling, classes).accuracy == 1
    most_frequent = max(np.bincount(classes)) / 200
    assert measure_words([set()] * 200, classes).accuracy == pytest.approx(most_frequent, abs=0.05)
    assert measure_words([{f"{number}"} for number in range(60)], [0] * 57 + [1] * 3).accuracy == 0.95


def test_numbers_that_tell_and_numbers_that_do_not():
    rng = random.Random(0)
    classes = [rng.randrange(3) for _ in range(200)]
    noise = np.array([[rng.random()] for _ in classes])
    assert measure_numbers(noise, classes).error_reduction == 0
    assert measure_numbers(noise + np.array(classes)[:, None], classes).accuracy > 0.95


CLASSES = ColumnSpec(inputs=("text",), gold="label")


def split(letters, name, count=100):
    rng = random.Random(name)
    rows = [{"text": " ".join(rng.choices(letters, k=9)), "label": "x"} for _ in range(count)]
    return Split(name, f"{name}.csv", rows, list(range(1, count + 1)))


def test_splits_of_one_kind_pass():
    splits = {name: split("abcdefgh", name) for name in ("train", "validation")}
    (finding,) = find_shift(splits, CLASSES)
    assert finding.level == "good"
    assert finding.text.endswith("(by chance 0.42 to 0.58)")


def test_splits_with_words_of_their_own_are_shown():
    splits = {"train": split("abcdefgh", "train"), "test": split("abcdefgz", "test"), "small": split("z", "small", 9)}
    (finding,) = find_shift(splits, CLASSES)
    assert finding.level == "warn"
    assert finding.text.startswith("test: its words separate it from train with an AUC of 0.9")
