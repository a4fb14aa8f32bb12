"""The catalog of published encoders agrees with itself, with the named sizes, and with its page."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from bertkit.modeling.sizes import find_size
from bertkit.storage.hub.encoders import FACTS, as_table, list_encoders

ROOT = Path(__file__).parents[3]


def test_entries_are_whole_and_named_once():
    encoders = list_encoders()
    assert len({one.name for one in encoders}) == len(encoders)
    for one in encoders:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", one.name)
        assert one.use and not one.use.endswith(".")
        assert isinstance(one.languages, int) or all(re.fullmatch("[a-z]{2}", code) for code in one.languages)


def test_every_fact_says_where_it_is_from():
    for one in list_encoders():
        assert tuple(one.sources) == FACTS
        license = one.sources["license"]
        assert license.startswith("https://") or license == one.license == "unknown"
        others = [one.sources[fact] for fact in FACTS if fact != "license"]
        assert all(source in ("memory", "counted") or source.startswith("https://") for source in others)
        assert (one.sources["parameters"] == "counted") == (one.size is not None)


def test_parameters_are_those_of_the_named_sizes():
    sized = [one for one in list_encoders() if one.size]
    assert len(sized) > 15
    for one in sized:
        assert one.parameters == pytest.approx(find_size(one.size).parameters / 1e6, rel=0.04, abs=0.6), one.name


def test_conditions_narrow_the_list():
    names = {one.name for one in list_encoders(language="de", min_tokens=1024, vectors=False)}
    assert names == {"jhu-clsp/mmBERT-small", "jhu-clsp/mmBERT-base", "EuroBERT/EuroBERT-210m"}
    assert all("NC" not in one.license and one.license != "unknown" for one in list_encoders(license="open"))
    assert [one.name for one in list_encoders(license="unknown")] == ["dmis-lab/UltraBERT-150M"]
    assert {one.license for one in list_encoders(license="mit")} == {"MIT"}
    assert [one.name for one in list_encoders(max_parameters=25, vectors=True)] == [
        "sentence-transformers/all-MiniLM-L6-v2"
    ]
    assert as_table(list_encoders(language="zh", vectors=False, license="apache"))[0]["languages"] == "15"


def test_the_page_has_the_table_of_the_catalog():
    spec = importlib.util.spec_from_file_location("make_encoders_table", ROOT / "tools" / "make_encoders_table.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = (ROOT / "docs" / "encoders.md").read_text(encoding="utf-8")
    assert tool.with_table(page) == page, "run `make docs`"
    assert page.count("| `answerdotai/ModernBERT-base` |") == 1
