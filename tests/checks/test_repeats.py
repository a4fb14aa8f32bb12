"""Repeated rows, within splits and across them."""

from __future__ import annotations

from bertkit.checks.repeats import find_repeats
from bertkit.data.columns import ColumnSpec
from bertkit.data.rows import Split

CLASSES = ColumnSpec(inputs=("text",), gold="label")
QUESTIONS = ColumnSpec(inputs=("question", "context"), gold="answers")
CONTEXT = (
    "The old bridge over the river was built by monks in the year 1250 and burnt down twice before it was made of "
    "stone. Today only carts may cross it, since no engineer knows how much weight its second arch can still bear."
)


def split(rows, name="train"):
    return Split(name, f"{name}.csv", rows, list(range(1, len(rows) + 1)))


def texts(*pairs):
    return [{"text": text, "label": label} for text, label in pairs]


def found_in(train, validation=(), columns=CLASSES):
    splits = {"train": split(train)}
    if validation:
        splits["validation"] = split(validation, "validation")
    repeats = find_repeats(splits, columns)
    findings = {f"{found.name} {found.text.partition(':')[0]}": found for found in repeats.findings}
    return repeats, {name: [str(place) for place in found.places] for name, found in findings.items() if found.places}


def test_repeats_contradictions_and_leaks_are_told_apart():
    train = texts(("one", "a"), ("two", "b"), ("One ", "a"), ("two", "a"), ("three", "a"))
    repeats, places = found_in(train, texts(("three", "b"), ("four", "a"), ("four", "a")))
    assert places == {
        "repeated_rows train": ["train.csv:3", "train.csv:1"],
        "contradictory_labels train": ["train.csv:4", "train.csv:2"],
        "repeated_rows validation": ["validation.csv:3", "validation.csv:2"],
        "leaked_rows validation": ["validation.csv:1", "train.csv:5"],
    }
    assert (repeats.repeated_rows, repeats.leaked_rows) == ([2], [4])
    (leak,) = [found for found in repeats.findings if found.name == "leaked_rows"]
    assert leak.text == "validation: 1 of 3 (33.3%) rows are training rows too, 1 of them with another label"
    assert leak.level == "fail"


def test_rows_that_differ_in_their_last_mark_alone_are_repeats():
    train = texts(("Really?", "a"), ("really!", "b"), ("Well.", "a"), ("Well ...", "a"), ("?", "a"), ("!", "a"))
    _, places = found_in(train)
    assert places == {
        "repeated_rows train": ["train.csv:4", "train.csv:3"],
        "contradictory_labels train": ["train.csv:2", "train.csv:1"],
    }


def test_near_repeats_of_long_texts():
    train = texts((CONTEXT, "a"), (CONTEXT.replace("monks", "monk"), "a"), ("short one", "a"), ("short ones", "a"))
    assert found_in(train)[1] == {"near_repeats train": ["train.csv:2", "train.csv:1"]}
    _, places = found_in(train[1:], texts((CONTEXT, "a")))
    assert places == {"near_leaks train": ["train.csv:1", "validation.csv:1"]}


def test_two_questions_about_one_text_are_no_repeats():
    answers = {"text": ["monks"], "answer_start": [CONTEXT.index("monks")]}
    asked = [{"question": f"who {what}?", "context": CONTEXT, "answers": answers} for what in ("came", "went")]
    assert found_in(asked, columns=QUESTIONS)[1] == {}
    again = {**asked[0], "context": CONTEXT.replace("monks", "monk")}
    assert found_in([*asked, again], columns=QUESTIONS)[1] == {"near_repeats train": ["train.csv:3", "train.csv:1"]}
    other = {**asked[0], "answers": {"text": ["old"], "answer_start": [4]}}
    assert found_in([*asked, other], columns=QUESTIONS)[1] == {}  # a question may have two answers


def test_many_repeats_are_a_warning():
    few = texts(*((f"text {number}", "a") for number in range(200)), ("text 1", "a"))
    levels = [
        [found.level for found in find_repeats({"train": split(rows)}, CLASSES).findings] for rows in (few, few * 2)
    ]
    assert levels == [["good"], ["warn"]]
