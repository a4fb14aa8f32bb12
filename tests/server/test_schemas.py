"""Schemas of rows and predictions, of every task family."""

from __future__ import annotations

from importlib import import_module

import pytest
from pydantic import ValidationError

from bertkit.recipe import load_recipe
from bertkit.server.schemas import (
    classifies_texts,
    column_types,
    explain_errors,
    form_fields,
    pair_to_rank,
    row_schema,
)
from bertkit.tasks import load_task, task_names


def of(name):
    recipe = load_recipe(name)
    return load_task(recipe), recipe


@pytest.mark.parametrize(
    "name, row, wrong",
    [
        ("sst2", {"text": "a"}, {"text": 1}),
        ("stsb", {"text": "a", "text_pair": "b"}, {"text": "a"}),
        ("ner", {"tokens": ["a", "b"]}, {"tokens": "a b"}),
        ("ner", {"text": "a b"}, {"tokens": [1]}),
        ("squad", {"question": "a", "context": "b"}, {"question": "a"}),
        ("rerank", {"query": "a", "passage": "b"}, {"query": "a", "passage": None}),
        ("swag", {"context": "a", "stem": "", "choices": ["b", "c"]}, {"context": "a", "choices": "b"}),
        ("wsd", {"text": "a bank", "target": [2, 6], "word": "bank"}, {"text": "a", "target": "x", "word": "b"}),
        ("similarity-triples", {"anchor": "a", "positive": "b", "negative": ["c"]}, {"anchor": "a"}),
    ],
)
def test_rows_of_a_family_fit_its_schema(name, row, wrong):
    schema = row_schema("m", *of(name))
    assert schema.model_validate({"instances": [row]}).instances[0].model_dump(exclude_none=True) == row
    for bad in (wrong, {**row, "extra": 1}):
        with pytest.raises(ValidationError):
            schema.model_validate({"instances": [bad]})


@pytest.mark.parametrize("name", task_names())
def test_every_family_names_the_type_of_its_prediction(name):
    assert "prediction" in import_module(f"bertkit.tasks.{name}").TYPES


def test_addresses_of_other_servers_are_for_those_who_answer_alike():
    families = {name: of(name)[0] for name in ("sst2", "ner", "rerank", "similarity", "squad", "stsb", "few-shot")}
    assert [name for name, task in families.items() if classifies_texts(task)] == ["sst2", "few-shot"]
    pairs = {name: pair for name, task in families.items() if (pair := pair_to_rank(task))}
    assert pairs == {"rerank": ("query", "passage"), "similarity": ("text", "text_pair")}


def test_columns_that_stand_for_each_other_are_both_optional():
    assert {name: required for name, (_, required) in column_types(*of("ner")).items()} == {
        "tokens": False,
        "text": False,
    }
    assert form_fields(*of("wsd"))[1] == {"name": "target", "type": "json", "required": True}


def test_the_first_fault_is_described():
    fault = {"loc": ("body",), "msg": "no", "type": "dict_type"}
    assert explain_errors([fault]).detail == "no"
    inside = {"loc": ("body", "inputs", "list[str]", 3), "msg": "bad", "type": "string_type"}
    error = explain_errors([{**fault, "loc": ("body", "inputs", "str")}, inside])
    assert (error.status_code, error.detail) == (422, "inputs[3]: bad")
