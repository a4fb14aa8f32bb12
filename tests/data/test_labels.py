from __future__ import annotations

import logging

import pytest

from bertkit.data.labels import (
    add_unseen_names,
    find_names,
    get_label_name,
    label_to_str,
    log_label_indices,
    match_names,
    replace_raw_labels,
)
from bertkit.data.rows import Split, find_joined_labels
from bertkit.errors import DataError, ModelError
from bertkit.recipe import DataConfig, load_recipe
from bertkit.workflows.finetune_data import read_rows

NAMES = ["unacceptable", "acceptable"]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("acceptable", "acceptable"),
        (1, "acceptable"),
        (0.0, "unacceptable"),
        ("1", "acceptable"),
        (-1, None),
        (None, None),
    ],
)
def test_a_value_means_a_name_or_counts_them(value, name):
    assert get_label_name(value, NAMES) == name


def test_a_name_that_looks_like_a_number_is_a_name():
    assert [get_label_name(value, ["1", "2", "3"]) for value in (1, "3", 2.0)] == ["1", "3", "2"]


@pytest.mark.parametrize("value", [2, "postive", 0.5, "Acceptable"])
def test_anything_else_is_refused(value):
    with pytest.raises(DataError, match="is not one of the 2 labels"):
        get_label_name(value, NAMES)


def test_names_are_found_in_the_order_a_reader_expects():
    assert find_names([10, 9, 1]) == ["1", "9", "10"]
    assert find_names(["pos", "neg", "pos"]) == ["neg", "pos"]
    assert find_names([["b", "a"], [], ["c"]]) == ["a", "b", "c"]
    assert find_names([True, False]) == ["false", "true"]


def test_one_label_or_a_thousand_are_no_classes():
    with pytest.raises(DataError, match="every row has the same label 'x'"):
        find_names(["x", "x"])
    with pytest.raises(DataError, match="for numbers, use the recipe `regress`"):
        find_names([number / 7 for number in range(1, 1000)])


def test_checkpoint_and_recipe_are_matched_by_name():
    assert match_names(["ACCEPTABLE", "Unacceptable"], NAMES) == ["acceptable", "unacceptable"]


def test_names_that_do_not_match_are_both_shown():
    with pytest.raises(ModelError) as refused:
        match_names(["LABEL_0", "LABEL_1"], NAMES)
    assert str(refused.value) == (
        "the checkpoint's labels (LABEL_0, LABEL_1) are not the recipe's (unacceptable, acceptable) - "
        "if you know what its outputs mean, list them in this order: "
        "--set 'model_labels=[unacceptable, acceptable]'"
    )
    with pytest.raises(ModelError, match="use the recipe that the checkpoint was trained with"):
        match_names(["a", "b", "c"], NAMES)


def test_exact_names_win_before_those_that_differ_in_case_or_format():
    assert match_names(["pos", "neg", "Pos"], ["Pos", "neg", "pos"]) == ["pos", "neg", "Pos"]
    assert match_names(["Pos", "POS"], ["Pos", "pos"]) == ["Pos", "pos"]
    assert match_names(["true", "FALSE"], ["False", "True"]) == ["True", "False"]
    for unclear in (["POS", "pOS"], ["Pos", "neg"]):
        with pytest.raises(ModelError, match="are not the recipe's"):
            match_names(unclear, ["Pos", "pos"])


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ((True, "False", "true"), ["True", "False", "True"]),
        ((1.0, "2.0", "1"), ["1.0", "2.0", "1.0"]),
        ((1, "1.0", 2.0), ["1", "1", "2"]),
        (("0.0", 1.0, "-1.0"), ["no", "yes", None]),
        (("1", "1.0"), ["1", "1.0"]),
    ],
)
def test_a_label_means_the_same_in_every_format(values, names):
    declared = sorted({name for name in names if name}, key=lambda name: (len(name), name))
    assert [get_label_name(value, declared) for value in values] == names


def test_names_that_are_decimal_numbers_are_never_counted():
    with pytest.raises(DataError, match="label '0' is not one of the 2 labels"):
        get_label_name(0, ["1.0", "2.0"])


def test_rows_without_label_are_listed():
    split = Split("test", "t.csv", [{"label": value} for value in (1, -1, None, -1)], [2, 3, 4, 5])
    with pytest.raises(DataError) as refused:
        replace_raw_labels(split, "label", NAMES, DataConfig())
    assert str(refused.value) == (
        "no label (also in lines 4, 5) (t.csv:3, column 'label') - fill it in, or --set data.empty_label=drop"
    )


def test_a_number_that_is_no_name_never_counts_names_that_are_numbers():
    with pytest.raises(DataError, match="label '0' is not one of the 4 labels"):
        get_label_name(0, ["1", "2", "3", "4"])
    assert get_label_name(-1, ["-1", "1"]) == "-1"


def test_a_name_of_thousands_of_digits_is_text():
    assert get_label_name("9" * 5000, ["9" * 5000, "b"]) == "9" * 5000
    with pytest.raises(DataError, match="is not one of the 2 labels"):
        get_label_name("9" * 5000, ["a", "b"])


@pytest.mark.parametrize(
    ("names", "values", "all_names"),
    [
        (["bad", "good"], ["good", "mixed"], ["bad", "good", "mixed"]),
        (["1", "5"], [1, 5.0, 3, None], ["1", "3", "5"]),
        (["bad", "good"], [["good", "mixed"], ["bad"]], ["bad", "good", "mixed"]),
        (["B-PER", "I-PER", "O"], [["O", "B-PER"], ["O", "B-LOC"]], ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]),
        (["bad", "good"], ["good", "Good", " good ", "not  good"], ["bad", "good", "not  good"]),  # a mistake, a label
        (["not good", "good"], ["good", "Not  good"], ["not good", "good"]),
        (["bad", "good"], [0, 1, -1, "good"], ["bad", "good"]),  # they count the names
        (["bad", "good"], ["good", 7], ["bad", "good"]),  # counts none
        (["bad", "good"], ["positive", "negative"], ["bad", "good"]),  # none in common
        (["B-PER", "I-PER", "O"], [["O", "B-person"]], ["B-PER", "I-PER", "O"]),
    ],
)
def test_labels_that_no_training_row_has_join_the_names_unless_they_are_mistakes(names, values, all_names):
    assert add_unseen_names(names, values) == all_names


def test_a_label_in_another_case_is_met_with_the_one_that_is_meant():
    with pytest.raises(DataError) as caught:
        get_label_name("GOOD", ["bad", "good"])
    assert caught.value.remedy == "did you mean good?"


@pytest.mark.parametrize(
    ("values", "names", "said"),
    [
        ([0, "1", 1.0, None, -1], ["bad", "good"], ["labels are numbers, which are read as: 0 bad, 1 good"]),
        (["bad", 1], ["bad", "good"], ["labels are numbers, which are read as: 0 bad, 1 good"]),
        (["bad", "good"], ["bad", "good"], []),
        ([1, 2], ["1", "2"], []),  # numbers are the names
        ([1, 2], ["bad", "good"], []),  # 2 is refused
        (["fine", 1], ["bad", "good"], []),
    ],
)
def test_numbers_that_count_labels_are_said_to(values, names, said, caplog):
    with caplog.at_level(logging.INFO, "bertkit"):
        log_label_indices(values, names)
    assert caplog.messages == said


def test_rows_without_a_label_are_dropped_and_counted_where_that_is_asked_for(caplog):
    split = Split("train", "t.csv", [{"label": name} for name in ("good", "-1", None, "bad")], [2, 3, 4, 5])
    with caplog.at_level(logging.INFO, "bertkit"):
        named = replace_raw_labels(split, "label", ["bad", "good"], DataConfig(empty_label="drop"))
    assert (list(named.lines), caplog.messages) == ([2, 5], ["rows of t.csv without a label, left out: 2"])


def test_a_wrong_label_names_the_column_of_the_user_the_row_and_its_id_and_quotes_commas():
    split = Split("train", "t.csv", [{"label": "goood", "id": "T-7"}], [9])
    with pytest.raises(DataError) as caught:
        replace_raw_labels(split, "label", ["bad, very", "good"], DataConfig(columns={"label": "Queue"}))
    where = "(t.csv:9, id 'T-7', column 'Queue')"
    what = "label 'goood' is not one of the 2 labels (0 \"bad, very\", 1 good)"
    assert str(caught.value) == f"{what} {where} - did you mean good?"


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        (["a|b", "a", "b", None], "add --set options.multi_label=true"),
        (["sports, news", "news, health", "sports"], "add --set options.multi_label=true --set 'options.separator=,'"),
        (["a|b", "a", "c"], None),
        (["1,5", "1", "5"], None),
        (["a, b", ["a", "b"], "b"], None),
    ],
)
def test_labels_that_are_several(values, remedy):
    found = find_joined_labels(values)
    assert (found and found[1]) == remedy
    if remedy:
        with pytest.raises(DataError, match=r"looks like several labels - add --set options.multi_label=true.*; if it"):
            find_names(values)


def test_rows_without_a_label_beside_rows_with_several(here):
    rows = "".join(f"text {number},{label}\n" for number, label in enumerate(["a|b", "a", "", "b"]))
    (here / "rows.csv").write_text(f"text,label\n{rows}")
    with pytest.raises(
        DataError, match=r"no label \(rows.csv:4, .* - 'a\|b' looks like several labels: add --set opt"
    ) as caught:
        read_rows(load_recipe("classify", {"data.source": "rows.csv"}))
    assert "drop" not in caught.value.remedy and "none of these labels" in caught.value.remedy


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        ([["a; b"], ["b; a"], [], ["a"]], "separator=;"),
        ([["a", "b"], ["c; d"], ["c"], ["d"]], "write one separator in all rows"),
    ],
)
def test_lists_that_were_split_at_another_separator(values, remedy):
    with pytest.raises(DataError, match=f"looks like several labels - .*{remedy}"):
        find_names(values)


@pytest.mark.parametrize(
    "values",
    [
        [["Head, Neck", "Head"], ["Arm, Neck"], ["Head"]],  # "Neck" is no label
        [["NN|JJ", "NN", "NN"], ["JJ", "NN|JJ"]],  # tags of words
    ],
)
def test_names_with_separators_stay_whole(values):
    assert set(find_names(values)) == {name for value in values for name in value}


@pytest.mark.parametrize("vector", [["1", "0"], ["0", "1"]])
def test_vectors_of_two_labels_are_refused(vector):
    split = Split("train", "t.jsonl", [{"label": ["1", "0"]}, {"label": vector}], [1, 2])
    with pytest.raises(DataError, match=r"a 0/1 vector instead of labels \(t.jsonl, column 'label'\)"):
        replace_raw_labels(split, "label", ["bad", "good"], DataConfig())


def test_indices_of_labels_are_no_vectors():
    split = Split("train", "t.jsonl", [{"label": ["0", "1"]}, {"label": ["1"]}, {"label": []}], [1, 2, 3])
    assert [row["label"] for row in replace_raw_labels(split, "label", ["a", "b"], DataConfig()).rows] == [
        ["a", "b"],
        ["b"],
        [],
    ]


def test_forms_of_unicode_are_one_label():
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    assert find_names([composed, decomposed, "tea"]) == [composed, "tea"]
    # A checkpoint or a recipe may have either form.
    assert get_label_name(composed, [decomposed, "tea"]) == decomposed
    assert get_label_name(decomposed, [composed, "tea"]) == composed
    assert match_names([composed, "tea"], ["tea", decomposed]) == [decomposed, "tea"]


@pytest.mark.parametrize(
    ("value", "names", "name"),
    [
        ("-", ["no", "yes"], None),
        ("N/A", ["no", "yes"], None),
        (-1, ["0", "1", "2"], None),
        ("-", ["-", "no", "yes"], "-"),
        ("-", ["-", "+"], "-"),
    ],
)
def test_a_placeholder_that_is_no_name_means_no_label(value, names, name):
    assert get_label_name(value, names) == name


@pytest.mark.parametrize("value", [{"a": 1}, [["a"]], b"a"])
def test_what_cannot_be_a_name_is_refused(value):
    with pytest.raises(DataError, match="is not a name"):
        label_to_str(value)
