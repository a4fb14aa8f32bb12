"""The list of faults and bad inputs names tests that exist, and the page shows all of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

from tools.make_reliability_page import ATTACKED, attack_section, count_outcomes, list_entries, read_source

ROOT = Path(__file__).parent.parent
SOURCE = read_source()
ENTRIES = list_entries(SOURCE)
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


@cache
def names_in(file: str) -> set[str]:
    return set(re.findall(r"^def (\w+)\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE))


def test_no_case_occurs_twice():
    cases = [entry["what"] for entry in ENTRIES]
    assert len(cases) == len(set(cases))


def test_an_entry_has_tests_that_exist():
    for entry in ENTRIES:
        assert entry.keys() == {"what", "outcome", "code", "tests"} and entry["tests"], entry
        for test in entry["tests"]:
            file, _, name = test.partition("::")
            assert name in names_in(file), test
    for text in [text for entry in ENTRIES for text in (entry["what"], entry["outcome"])] + SOURCE["gaps"]:
        assert text.endswith(".") and "|" not in text and "\n" not in text, text


def test_the_page_says_what_attacks_have_found():
    section = attack_section()
    assert section in PAGE
    assert [name for name in ("soak", "fuzz", "coverage") if f"\n| {name} |" not in section] == []


def test_each_failure_of_an_attack_was_looked_at():
    content = json.loads(ATTACKED.read_text(encoding="utf-8"))
    assert all(entry["judged"] for figures in content.values() for entry in figures["wrong"])


def test_the_page_has_every_entry_as_it_is_written_here():
    table = PAGE.partition("\n## Attacks")[0]
    rows = re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", table, re.MULTILINE)
    assert [row for row in rows if row[0] != "case"] == [
        (entry["what"], entry["outcome"], str(entry["code"])) for entry in ENTRIES
    ]
    assert re.findall(r"^## (.*)$", table, re.MULTILINE) == [group["title"] for group in SOURCE["groups"]]
    assert re.search(r"^The last run: [\d,]+ passed(, [\d,]+ skipped)?\.$", PAGE, re.MULTILINE)
    gaps = " ".join(PAGE.partition("## Not covered")[2].split())
    assert [gap for gap in SOURCE["gaps"] if gap not in gaps] == []


def test_a_test_that_failed_or_did_not_run_is_named():
    assert count_outcomes({"a": Counter(passed=2), "b": Counter(skipped=1)}) == "2 passed, 1 skipped"
    results = {"a": Counter(passed=2), "b": Counter(failed=1), "c": Counter()}
    assert count_outcomes(results) == "2 passed, 1 failed (`b`, `c`)"
