"""Rows that can be read but may not be meant: what is said about them, and that good rows pass in silence."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from bertkit.data.checks import check_swapped, describe_skew, find_odd_rows, find_suspicious_columns
from bertkit.data.columns import ColumnSpec
from bertkit.data.rows import Split
from bertkit.errors import DataError
from bertkit.recipe import DataConfig, load_recipe

CLASSES = ColumnSpec(inputs=("text",), gold="label", optional=("text_pair",))
TAGS = ColumnSpec(inputs=("tokens",), gold="tags", lists=("tokens",))


def split(rows, name="train"):
    return Split(name, f"{name}.csv", rows, list(range(2, len(rows) + 2)))


def texts(count, labels=("negative", "positive")):
    """Rows with different texts and labels in turn."""
    return [{"text": f"film number {number}", "label": labels[number % len(labels)]} for number in range(count)]


def warnings_of(train, validation=None, columns=CLASSES, names=None):
    splits = {"train": split(train), "validation": split(validation or texts(0), "validation")}
    found = {row[columns.gold] for row in train} if names is None else names
    return find_odd_rows(splits, columns, found_names=sorted(found))


def doubts_about(rows, finds_names=True):
    data = DataConfig(columns={"text": "review", "label": "stars"})
    return find_suspicious_columns(split(rows), CLASSES, data, finds_names=finds_names)


def test_good_rows_pass_in_silence():
    rng = random.Random(0)
    assert warnings_of(texts(2000), [{"text": "another film", "label": "positive"}]) == []
    numbers = [{"text": f"film {number}", "label": rng.random()} for number in range(100)]
    assert warnings_of(numbers, names=()) == []
    assert doubts_about(texts(2000)) == doubts_about(numbers, finds_names=False) == []


@pytest.mark.parametrize("label", ["postive", "Positive", "positvie", "positivee"])
def test_a_rare_label_is_shown_with_the_one_that_may_be_meant(label):
    rows = texts(400)
    rows[7]["label"] = label
    expected = f"The label {label!r} occurs once in 400 training rows (train.csv:9). Is 'positive' meant?"
    assert warnings_of(rows) == [expected]
    assert warnings_of(rows, names=()) == []  # it is declared, so it is meant


def test_labels_that_differ_only_in_case_or_format_are_shown():
    rows = texts(400)
    for row in rows[::3]:
        row["label"] = row["label"].title()
    counts = Counter(row["label"] for row in rows)
    warnings = warnings_of(rows)
    assert len(warnings) == len(counts) // 2 > 1
    name = rows[0]["label"]
    assert warnings[0] == (
        f"The label {name!r} occurs {counts[name]} times in 400 training rows (first in train.csv:2). "
        f"Is {name.lower()!r} meant?"
    )
    assert warnings_of(rows, names=()) == []
    (warning,) = warnings_of([{"text": str(n), "label": ["1", "1.0", "2"][n % 3]} for n in range(30)])
    assert warning.startswith("The label '1' occurs 10 times in 30 training rows")


@pytest.mark.parametrize("label", ["-", "n/a"])
def test_a_label_that_may_mean_none_is_shown_with_the_command_that_drops_it(label):
    (warning,) = warnings_of(texts(300, ("no", label, "yes")))
    assert f"100 of 300 (33.3%) training rows have the label {label!r}" in warning
    assert "--set 'labels=[no, yes]' --set data.empty_label=drop" in warning
    assert warnings_of(texts(300, ("+", "-", "none"))) == []


def test_a_rare_label_that_is_like_no_other_is_shown_where_there_are_many_rows():
    rows = texts(8000)
    rows[5]["label"] = rows[8]["label"] = "#REF!"
    (warning,) = warnings_of(rows)
    assert warning == "The label '#REF!' occurs 2 times in 8,000 training rows (first in train.csv:7)."
    assert warnings_of(rows[:5000]) == []


@pytest.mark.parametrize(
    ("name", "frequent"), [("NNPS", "NNP"), ("class 1", "class 2"), ("A-", "A"), ("unacceptable", "acceptable")]
)
def test_labels_that_only_look_alike_are_not_typos(name, frequent):
    rows = texts(1500, labels=(frequent, "other"))
    rows[3]["label"] = rows[4]["label"] = name
    assert warnings_of(rows) == []


def test_the_types_of_entity_tags_are_compared():
    rows = [{"tokens": ["Anna", str(number)], "tags": ["B-PERSON", "I-PERSON"]} for number in range(300)]
    rows[9]["tags"] = ["B-PRESON", None]
    (warning,) = warnings_of(rows, columns=TAGS, names=["B-PERSON", "B-PRESON", "I-PERSON", "I-PRESON"])
    assert warning == "The label 'PRESON' occurs once in 300 training rows (train.csv:11). Is 'PERSON' meant?"


def test_rows_of_both_splits_are_counted():
    validation = [*texts(1), *({"text": f"new {number}", "label": "positive"} for number in range(199))]
    validation[0]["label"] = "positive"  # the text counts, not the label
    (warning,) = warnings_of(texts(50), validation)
    assert warning == (
        "1 of 200 (0.5%) validation rows are training rows too, such as validation.csv:2, which is train.csv:2. "
        "Scores may be too high."
    )


@pytest.mark.parametrize("label", [str, int, float, lambda number: f"user{number}"])
def test_labels_that_are_ids_are_asked_about(label):
    rows = [{"text": f"film {number}", "label": label(number % 15)} for number in range(20)]
    assert doubts_about(rows) == ["20 training rows have 15 different labels. Is 'stars' the label column?"]
    assert doubts_about(rows, finds_names=False) == []
    assert doubts_about(rows[:9]) == []


def test_numbers_that_count_rows_are_asked_about():
    """Some rows of a file are held out, so that the rest has gaps."""
    rows = [{"text": f"film {number}", "label": float(number)} for number in range(20) if number % 7]
    expected = "The labels are integers in ascending order: 1, 2, 3, ... Is 'stars' the label column?"
    assert doubts_about(rows, finds_names=False) == [expected]
    assert doubts_about(rows[::-1], finds_names=False) == []


def test_texts_that_are_numbers_are_asked_about():
    rows = [{"text": f"{number}-07", "label": "ab"[number % 2]} for number in range(20)]
    assert doubts_about(rows) == ["No training text has a letter; the first is '0-07'. Is 'review' the text column?"]
    rows[-1]["text"] = "\u6620\u753b"
    assert doubts_about(rows) == []


def test_swapped_columns_are_refused_with_the_command_that_swaps_them():
    swapped = [{"text": row["label"], "label": row["text"]} for row in texts(40)]
    with pytest.raises(DataError) as refused:
        check_swapped(split(swapped), CLASSES, DataConfig(columns={"text": "a", "label": "b c"}))
    assert str(refused.value) == (
        "'a' looks like labels ('negative'), 'b c' like texts (train.csv:2) - "
        "add --set 'data.columns.text=b c' --set data.columns.label=a; "
        "or, if this is intended, list the classes under `labels:`"
    )


@pytest.mark.parametrize(
    "rows",
    [
        texts(40),
        [
            {"text": "AI", "text_pair": str(number), "label": ("for", "against", "none")[number % 3]}
            for number in range(9)
        ],
        [{"text": f"film {number}", "label": f"intent {number}"} for number in range(9)],
        [{"text": "film", "label": ["a long label", "another long label"]} for number in range(9)],
    ],
)
def test_columns_that_are_not_swapped_are_not_refused(rows):
    check_swapped(split(rows), CLASSES, DataConfig())


@pytest.mark.parametrize(
    ("labels", "changes", "advice"),
    [
        ("abbbb", {}, "give the other labels more weight (--set training.class_weights=balanced)."),
        ("abbbb", {"training.class_weights": "balanced"}, None),
        ("abbb", {}, None),
        ("bbbbb", {}, None),  # one label alone is another error
        (
            "abbbb",
            {"training.class_weights": "balanced", "best_metric": "accuracy"},
            "select by a metric that weights all labels equally (--set best_metric=f1_macro).",
        ),
        (
            "abbbb",
            {"metrics": ["f1", "accuracy"]},
            "give the other labels more weight (--set training.class_weights=balanced), "
            "and select by a metric that weights all labels equally (--set 'metrics=[f1_macro, f1, accuracy]').",
        ),
        ("baaaa", {"metrics": ["f1"], "training.class_weights": "balanced"}, None),  # it is that of the rare label
    ],
)
def test_skewed_labels_are_told_with_what_the_recipe_lacks(labels, changes, advice):
    rows, recipe = split(texts(20, labels)), load_recipe("classify", changes)
    expected = [f"16 of 20 (80.0%) training rows have the label {labels[-1]!r}: {advice}"] if advice else []
    assert describe_skew(rows, "label", sorted(set(labels)), recipe) == expected
