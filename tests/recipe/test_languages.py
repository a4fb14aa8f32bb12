"""`{language}` in the data of a recipe: what it is replaced by, and what is refused."""

from __future__ import annotations

import pytest

from bertkit.errors import DataError, RecipeError
from bertkit.recipe import load_recipe
from bertkit.recipe.load import fill_language, has_language

RECIPE = """
extends: classify
data: {source: me/set, config: "set.{language}", splits: {validation: "dev_{language}"}, language: en}
"""


def test_the_language_is_put_into_every_key_that_names_it():
    data = {"source": "a/{language}", "config": "{language}_{language}", "files": {"train": "{language}.csv"}, "x": 1}
    filled = fill_language({**data, "splits": {"test": "t"}, "language": "de"}, is_change=True)
    assert filled == {
        "source": "a/de",
        "config": "de_de",
        "files": {"train": "de.csv"},
        "splits": {"test": "t"},
        "x": 1,
        "language": "de",
    }
    assert has_language(data) and not has_language(filled)


def test_an_override_reads_another_language(here):
    (here / "mine.yaml").write_text(RECIPE)
    english, german = load_recipe("mine.yaml").data, load_recipe("mine.yaml", {"data.language": "de"}).data
    assert (english.config, english.splits) == ("set.en", {"validation": "dev_en"})
    assert (german.config, german.splits, german.language) == ("set.de", {"validation": "dev_de"}, "de")


@pytest.mark.parametrize("name", ["xnli", "paws-x", "wikiann"])
def test_other_data_has_no_language_unless_it_names_one(name):
    assert load_recipe(name).data.language == "en"
    for source in ("you/set", "demo"):
        data = load_recipe(name, {"data.source": source}).data
        assert (data.config, data.language) == (None, None)
    assert load_recipe(name, {"data.source": "rows/{language}"}).data.source == "rows/en"


def test_the_recipe_of_a_run_keeps_its_language(here):
    (here / "recipe.yaml").write_text("extends: classify\ndata: {source: rows/en, language: en}\n")
    assert load_recipe("recipe.yaml").data.language == "en"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data.source": "rows", "data.language": "en"},
            r"no \{language\} in rows, so .* has no effect - write e\.g\. --",
        ),
        ({"data.language": "en"}, r"no \{language\} in the recipe's data, so data.language=en has no effect"),
        ({"data.source": "demo", "data.language": "en"}, r"no \{language\} in demo, so"),
        (
            {"data.source": "rows/{language}"},
            r"has \{language\} in its name, but the recipe has no data\.language - add --set ",
        ),
        (
            {"data.source": "rows/{language}", "data.language": "../en"},
            r"data\.language = '\.\./en' is wrong: must be a ",
        ),
        ({"data.source": "rows/{language}", "data.language": 1}, r"data\.language = 1 is wrong: must be text"),
    ],
)
def test_a_language_that_goes_nowhere_is_refused(here, changes, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("classify", changes)


def test_a_folder_tells_the_languages_that_it_has(here):
    for name in ("rows/de.csv", "rows/en.csv", "rows/notes.txt", "each/en/x/dev.csv", "each/fr/dev.csv"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).touch()

    def load(source):
        return load_recipe("classify", {"data.source": source, "data.language": "sw"}).data.source

    with pytest.raises(DataError, match=r"no language 'sw' in rows/\{language\}\.csv - there are: de, en$"):
        load("rows/{language}.csv")
    with pytest.raises(DataError, match=r"no language 'sw' in each/\{language\}/x - there are: en$"):
        load("each/{language}/x")
    assert load("me/{language}") == "me/sw"  # a name of the hub
