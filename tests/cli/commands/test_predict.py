"""How `bertkit predict` reads its row and prints; its predictions are in tests/workflows."""

from __future__ import annotations

import json
import math

import pytest

from bertkit.cli.options import parse_row
from bertkit.cli.output import print_records
from bertkit.cli.terminal import json_output
from bertkit.errors import UsageError


@pytest.mark.parametrize(
    ("text", "assignments", "row"),
    [
        (None, None, None),
        ("Good.", None, {"text": "Good."}),
        ("Good.", ["text_pair=a=b"], {"text": "Good.", "text_pair": "a=b"}),
        (None, ["choices=one", "choices=two", "choices=three"], {"choices": ["one", "two", "three"]}),
    ],
)
def test_a_row_is_read_from_assignments(text, assignments, row):
    assert parse_row(text, assignments) == row


def test_an_assignment_without_a_value_is_refused():
    with pytest.raises(UsageError, match="--row good is not COLUMN=VALUE"):
        parse_row(None, ["good"])


def test_predictions_are_json_lines_or_one_object(capsys):
    records = [{"id": 0, "prediction": "é"}, {"id": 1, "prediction": math.nan}]
    print_records("predictions", iter(records))
    first, second = capsys.readouterr().out.splitlines()
    assert first == '{"id": 0, "prediction": "é"}'
    assert json.loads(second) == {"id": 1, "prediction": None}
    with json_output():
        print_records("predictions", iter(records))
    assert len(json.loads(capsys.readouterr().out)["predictions"]) == 2
