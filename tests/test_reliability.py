"""The list of faults and bad inputs is complete, names tests that exist, and is the one of the docs."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from tools.make_reliability_page import ATTACKED, attack_section

ROOT = Path(__file__).parent.parent
ENTRIES = yaml.safe_load((ROOT / "tests" / "reliability.yaml").read_text(encoding="utf-8"))
ALL = [entry for group in ENTRIES.values() for entry in group]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")

# Numbers that no fault or input has, so that every id keeps its meaning.
UNUSED = {"F": {29, 41, 54, 62, 65, 66, 78, 79}, "I": {17, 63, 79}}


@cache
def names_in(file: str) -> set[str]:
    return set(re.findall(r"^def (\w+)\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize(("group", "letter", "last"), [("faults", "F", 84), ("inputs", "I", 101)])
def test_every_number_occurs_once_and_in_order(group, letter, last):
    numbers = []
    for entry in ENTRIES[group]:
        first, _, end = entry["id"].replace(letter, "").partition("-")
        numbers += range(int(first), int(end or first) + 1)
    assert numbers == [number for number in range(1, last + 1) if number not in UNUSED[letter]]


def test_an_entry_has_tests_that_exist_or_a_reason():
    for entry in ALL:
        assert set(entry) - {"tests", "not_covered"} == {"id", "what", "outcome", "code"}, entry
        assert entry.get("tests") or entry.get("not_covered"), entry
        for test in entry.get("tests", []):
            file, _, name = test.partition("::")
            assert name in names_in(file), test
        for text in (entry["what"], entry["outcome"], entry.get("not_covered", ".")):
            assert text.endswith(".") and "|" not in text and "\n" not in text, text


def test_the_page_says_what_attacks_have_found():
    section = attack_section()
    assert section in PAGE
    assert [name for name in ("soak: kill", "soak: damage", "fuzz: files") if f"| {name} |" not in section] == []


def test_each_failure_of_an_attack_was_looked_at():
    content = json.loads(ATTACKED.read_text(encoding="utf-8"))
    assert all(entry["judged"] for figures in content.values() for entry in figures["wrong"])


def test_the_page_has_every_entry_as_it_is_written_here():
    rows = dict(re.findall(r"^\| ([FI]\d+(?:-F\d+)?) \| (.*) \|$", PAGE, re.MULTILINE))
    assert list(rows) == [entry["id"] for entry in ALL]
    for entry in ALL:
        what, outcome, code, names, result = rows[entry["id"]].split(" | ")
        assert (what, outcome, code) == (entry["what"], entry["outcome"], str(entry["code"]))
        assert [f"`{test.rpartition('/')[2]}`" for test in entry.get("tests", [])] == [
            n for n in names.split("<br>") if n
        ]
        assert "failed" not in result and "not run" not in result
    gaps = " ".join(PAGE.partition("## What is not covered")[2].split())
    assert [entry["id"] for entry in ALL if entry.get("not_covered", "") not in gaps] == []
