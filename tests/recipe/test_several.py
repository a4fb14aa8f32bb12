"""Recipes of several tasks: which keys all tasks share, and which are one task's own."""

from __future__ import annotations

import pytest

from bertkit.errors import RecipeError
from bertkit.recipe import load_recipe, load_several, names_several


@pytest.fixture
def recipe(here) -> str:
    (here / "own.yaml").write_text("extends: tag\ntraining: {max_length: 20, epochs: 9}\n")
    (here / "both.yaml").write_text(
        "model: demo\ntasks: {topic: classify, words: own.yaml}\ndata: {source: demo}\ntraining: {epochs: 2}\n"
    )
    return "both.yaml"


def test_a_task_has_its_own_recipe_and_the_model_data_and_training_of_all(recipe):
    several = load_several(recipe, {"training.learning_rate": 0.25, "words.data.limit": 7})
    topic, words = several.recipes["topic"], several.recipes["words"]
    assert several.recipe.name == "both"
    assert (topic.name, topic.task, words.task) == ("topic", "text_classification", "token_classification")
    assert {one.model for one in (topic, words)} == {one.data.source for one in (topic, words)} == {"demo"}
    assert (topic.data.limit, words.data.limit) == (None, 7)
    # a number of the user's file wins over that of the demo model, as in any other recipe
    assert [one.training.epochs for one in (several.recipe, topic, words)] == [2, 2, 2]
    assert [one.training.learning_rate for one in (several.recipe, topic, words)] == [0.25] * 3
    assert (topic.training.max_length, words.training.max_length) == (128, 20)
    assert not topic.training.cls_only_last_layer


def test_a_maximal_length_for_all_wins_unless_a_task_is_given_one(recipe):
    several = load_several(recipe, {"training.max_length": 50, "topic.training.max_length": 30})
    assert [one.training.max_length for one in several.recipes.values()] == [30, 50]


def test_names_several_tells_it_from_other_recipes(recipe):
    assert names_several(recipe)
    assert not names_several("cola")
    assert not names_several("mlm")


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("tasks: {topic: classify}", {}, "two tasks"),
        ("tasks: {topic: classify, data: tag}", {}, "'data' is not"),
        ("tasks: {topic: classify, a.b: tag}", {}, "'a.b' is not"),
        ("tasks: [classify, tag]", {}, "pairs"),
        ("tasks: {topic: clasify, words: tag}", {}, "clasify"),
        ("tasks: {topic: classify, words: tag}\nsampling: 2", {}, "out of range"),
        ("tasks: {topic: classify, words: tag}", {"topic.training.epochs": 2}, "all tasks share it"),
        ("tasks: {topic: classify, words: tag}", {"topic.model": "demo"}, "all tasks share it"),
        ("tasks: {topic: classify, words: tag}", {"wrds.data.limit": 2}, "unknown key 'wrds'"),
        ("tasks: {topic: classify, words: tag}", {"words.data.streaming": True}, "streamed"),
        ("tasks: {topic: classify, words: tag}", {"training.lora": {"rank": 4}}, "one task at a time"),
        ("tasks: {topic: classify, words: tag}", {"topic.distillation.teachers": ["a"]}, "distillation"),
    ],
)
def test_what_cannot_be_is_refused(here, text, changes, message):
    (here / "both.yaml").write_text(text)
    with pytest.raises(RecipeError, match=message):
        load_several("both.yaml", changes)


def test_other_commands_name_the_remedy(recipe):
    with pytest.raises(RecipeError, match="name the recipe of one task"):
        load_recipe(recipe)
