"""`bertkit version`."""

from __future__ import annotations

import json
import platform


def test_versions_are_printed_in_two_columns_or_as_json(run):
    lines = run("version").out.splitlines()
    assert lines[0].split() == ["python", platform.python_version()]
    printed = json.loads(run("version", "--json").out)["versions"]
    assert [line.split()[0] for line in lines] == list(printed)
    assert {"torch", "transformers"} <= set(printed)
