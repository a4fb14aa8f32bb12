"""`bertkit recipes list`."""

from __future__ import annotations

import json
import re
from pathlib import Path


def test_every_shipped_recipe_is_listed_with_what_it_is_about(run):
    printed = json.loads(run("recipes", "list", "--json").out)["recipes"]
    folder = Path(__file__).parents[4] / "recipes"
    assert sorted(printed) == sorted(file.stem for file in folder.glob("*/*.yaml"))
    assert all(printed.values())


def test_the_list_has_fine_tuning_before_pretraining_on_whole_lines(run):
    lines = run("recipes", "list").out.splitlines()
    assert any(len(line) > 80 for line in lines)  # whole, for grep
    fine_tuning, pretraining = lines.index("Fine-tuning"), lines.index("Pretraining")
    names = [line.split()[0] for line in lines[pretraining + 1 :]]
    assert fine_tuning == 0 and lines[pretraining - 1] == "" and "clm" in names and "cola" not in names
    assert any(re.match("cola +Is this English sentence grammatical[?]", line) for line in lines)
