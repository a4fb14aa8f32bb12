"""How `bertkit embed` reads its options and prints; its vectors are in tests/workflows."""

from __future__ import annotations

import json

import pytest

from bertkit.cli.output import json_output, print_records
from tests.kills import HEAVY, slow_unless


def test_vectors_are_json_lines_or_one_object(capsys):
    records = [{"id": "é", "embedding": [0.5]}]
    print_records("vectors", iter(records))
    assert capsys.readouterr().out == '{"id": "é", "embedding": [0.5]}\n'
    with json_output():
        print_records("vectors", iter(records))
    assert json.loads(capsys.readouterr().out)["vectors"] == records


@pytest.mark.parametrize(
    "arguments",
    slow_unless(
        [("rows.csv", "--model", "demo", "--column", "txt")],
        [
            ("rows.csv", "--model", "demo", "--column", "txt"),
            ("rows.csv", "--model", "demo", "-o", "out.csv"),
            ("rows.csv", "--model", "demo", "--prompt", "query"),
        ],
    ),
    ids=" ".join,
)
def test_mistakes_are_answered_before_torch_is_imported(arguments, tmp_path, light_zygote):
    (tmp_path / "rows.csv").write_text("text\nfine\n")
    assert HEAVY & light_zygote.imports(tmp_path, ["embed", *arguments]) <= {"numpy", "pyarrow"}
