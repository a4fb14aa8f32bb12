"""Faults of rows as findings: one for each kind, with its rows."""

from __future__ import annotations

from bertkit.checks.faults import describe_faults, describe_refusal
from bertkit.errors import DataError


def fault(what, row, remedy="correct it", column="answers"):
    return DataError(what, remedy, file="a.csv", row=row, column=column)


def test_faults_with_one_remedy_are_one_finding():
    faults = [fault(f"the answer {row} is not there", row) for row in range(1, 6)]
    (finding,) = describe_faults(faults)
    assert finding.text == "5 rows, the first: the answer 1 is not there (column 'answers') - correct it"
    assert (finding.level, finding.count) == ("fail", 5)
    assert list(map(str, finding.places)) == ["a.csv:1", "a.csv:2", "a.csv:3"]


def test_empty_texts_have_a_name_of_their_own():
    names = [found.name for found in describe_faults([fault("no text", 1), fault("no words", 2)])]
    assert names == ["empty_texts", "unreadable_rows"]


def test_rows_without_faults_are_good():
    (finding,) = describe_faults([])
    assert (finding.level, finding.text) == ("good", "every row can be read")


def test_a_refusal_of_a_split():
    finding = describe_refusal(DataError("every row has the same label 'a'", "needs two"), "labels", "label_names")
    assert (finding.level, finding.text, finding.places) == ("fail", "every row has the same label 'a' - needs two", ())
