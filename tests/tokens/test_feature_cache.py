"""Cached features: those that were just encoded, for every task family, and never those of other rows."""

from __future__ import annotations

import json
import logging
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bertkit
from bertkit.data.rows import Split
from bertkit.data.sources import read_splits
from bertkit.recipe import load_recipe
from bertkit.storage.cache import log_once
from bertkit.storage.disk import ArrayWriter
from bertkit.tasks import load_task
from bertkit.tokens import feature_cache
from bertkit.tokens.feature_cache import (
    FeatureColumns,
    add_values,
    content_key,
    encode_split,
    get_lengths,
    get_max_lengths,
    get_row_indices,
    get_used_token_ids,
)
from bertkit.tokens.features import TaskContext, count_tokens, get_max_text_length
from bertkit.workflows.finetune_data import find_labels
from tests.conftest import make_tokenizer

TOKENIZER = make_tokenizer()
FAMILIES = (
    "cola",
    "mrpc",
    "stsb",
    "ner",
    "pos",
    "squad",
    "squad2",
    "swag",
    "choose",
    "wsd",
    "rerank",
    "similarity",
    "similarity-triples",
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """Keep even small splits, in a folder of the test's own."""
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(feature_cache, "_MIN_ROWS", 1)
    log_once.cache_clear()
    return tmp_path / "cache" / "features"


def parts_in(folder: Path) -> list[Path]:
    """Return the folders of complete features."""
    return [manifest.parent for manifest in folder.glob("*/manifest.json")]


def prepared(name: str, rows: int = 24, **changes: object):
    """Return the task, the training split and the setup of a recipe on demo rows."""
    recipe = load_recipe(name, {"data.source": "demo", "data.limit": rows, **changes})
    task = load_task(recipe)
    splits = read_splits(recipe, task.COLUMNS, lambda row: task.read(row, recipe), lambda split: split == "train")
    labels, splits = find_labels(recipe, task, splits)
    return task, splits["train"], TaskContext(recipe, TOKENIZER, labels)


def several_labels(count: int = 24):
    """The same for rows with several labels at once."""
    recipe = load_recipe("classify", {"options": {"multi_label": True}, "labels": ["a", "b", "c"]})
    rows = [{"text": "a good film"[: 3 + row % 8], "label": ["a", "b", "c"][: row % 4]} for row in range(count)]
    return (
        load_task(recipe),
        Split("train", "here", rows, list(range(count))),
        TaskContext(recipe, TOKENIZER, ("a", "b", "c")),
    )


def plain(value):
    """Return a value of a feature with lists instead of arrays."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(each) for each in value] if isinstance(value, list) else value


def as_lists(features):
    return [{name: plain(value) for name, value in feature.items()} for feature in features]


class Counting:
    """An encode function of bertkit that counts its calls."""

    def __init__(self, task) -> None:
        self.encode, self.calls = task.encode, 0
        self.__module__ = task.__name__

    def __call__(self, rows, context):
        self.calls += 1
        return self.encode(rows, context)


def every_family():
    return [*FAMILIES, "several labels"]


def family(name: str):
    return several_labels() if name == "several labels" else prepared(name)


@pytest.mark.parametrize("name", every_family())
def test_kept_features_are_those_that_were_encoded(name, folder):
    task, split, context = family(name)
    fresh = task.encode(split.rows, context)
    encode = Counting(task)
    for _ in range(2):
        cached = encode_split(split, context, encode)
        assert isinstance(cached, FeatureColumns)
        assert as_lists(cached) == as_lists(fresh)
        assert [type(value) for value in cached[0].values() if not isinstance(value, np.ndarray)] == [
            type(value) for name, value in fresh[0].items() if not isinstance(cached[0][name], np.ndarray)
        ]
        assert all(
            value.dtype in (np.int64, np.float64) for value in cached[0].values() if isinstance(value, np.ndarray)
        )
    assert encode.calls == len(parts_in(folder)) == 1


@pytest.mark.parametrize("name", every_family())
def test_kept_features_make_the_same_batches_and_predictions(name):
    task, split, context = family(name)
    fresh, cached = task.encode(split.rows, context), encode_split(split, context, task.encode)
    collate = task.collator(context)
    expected, batch = collate(fresh), collate(list(cached))
    assert expected.keys() == batch.keys()
    for key, values in expected.items():
        assert values.dtype == batch[key].dtype
        assert torch.equal(values, batch[key])
    random = np.random.default_rng(0)
    outputs = [make_outputs(feature, context, random) for feature in fresh]
    predictions = [
        [json.dumps(prediction, default=str) for prediction in task.decode(outputs, features, split.rows, context)]
        for features in (fresh, cached)
    ]
    assert predictions[0] == predictions[1]


def make_outputs(feature, context, random):
    """Make random outputs of any head for a feature."""
    ids = feature["input_ids"]
    shape = (len(ids), len(context.labels)) if "positions" in feature else (len(context.labels) or 9,)
    spans = {name: random.standard_normal(len(ids)) for name in ("start_logits", "end_logits")}
    return {"logits": random.standard_normal(shape), "vectors": random.standard_normal((len(ids), 8)), **spans}


@pytest.mark.parametrize("name", ["cola", "squad", "swag"])
def test_lengths_are_known_without_a_look_at_any_feature(name, monkeypatch):
    task, split, context = prepared(name)
    fresh, cached = task.encode(split.rows, context), encode_split(split, context, task.encode)
    monkeypatch.setattr(FeatureColumns, "__getitem__", None)
    for features in (fresh, cached):
        assert get_lengths(features).tolist() == [count_tokens(feature) for feature in fresh]
        assert get_max_lengths(features).tolist() == [get_max_text_length(feature) for feature in fresh]


def test_rows_are_found_as_in_a_list():
    task, split, context = prepared("cola")
    cached = encode_split(split, context, task.encode)
    assert [each["row"] for each in cached[3:9:2]] == [3, 5, 7]
    assert cached[-1]["row"] == cached[np.int64(23)]["row"] == 23
    with pytest.raises(IndexError):
        _ = cached[24]


def test_a_key_is_added_to_all_features_or_none():
    task, split, context = prepared("cola")
    for features in (task.encode(split.rows, context), encode_split(split, context, task.encode)):
        add_values(features, "double", [2 * number for number in range(24)])
        assert features[5]["double"] == 10
    with pytest.raises(TypeError):
        features[5]["lost"] = 1


# --- many rows


@pytest.mark.parametrize("name", ["cola", "squad", "swag"])
@pytest.mark.parametrize("cache", [True, False])
def test_features_of_many_rows_are_those_of_one_tokenizer_call(name, cache, folder, monkeypatch):
    task, split, context = prepared(name, **{"data.cache": cache})
    fresh = task.encode(split.rows, context)
    monkeypatch.setattr(feature_cache, "IN_MEMORY", 7)
    encode = Counting(task)
    for calls in (4, 4 if cache else 8):
        cached = encode_split(split, context, encode)
        assert isinstance(cached, FeatureColumns) and encode.calls == calls
        assert as_lists(cached) == as_lists(cached[index] for index in range(len(cached))) == as_lists(fresh)
        assert (
            get_row_indices(cached).tolist() == get_row_indices(fresh).tolist() == [feature["row"] for feature in fresh]
        )
        assert get_lengths(cached).tolist() == get_lengths(fresh).tolist()
        assert get_used_token_ids(cached).tolist() == get_used_token_ids(fresh).tolist()
    assert len(parts_in(folder)) == 4 if cache else not folder.exists()


def test_texts_become_what_the_tokenizer_makes_of_each(monkeypatch):
    _, split, context = prepared("cola")
    monkeypatch.setattr(feature_cache, "IN_MEMORY", 5)
    features = encode_split(split, context, load_task(context.recipe).encode)
    for row, feature in zip(split.rows, features, strict=True):
        assert feature["input_ids"].tolist() == TOKENIZER(row["text"], truncation=True, max_length=64)["input_ids"]


def test_a_killed_tokenization_goes_on_at_its_last_file(folder, monkeypatch):
    task, split, context = prepared("cola")
    monkeypatch.setattr(feature_cache, "IN_MEMORY", 6)
    encode, killed = Counting(task), Counting(task)

    def stop(rows, context):
        if killed.calls == 2:
            raise KeyboardInterrupt
        return killed(rows, context)

    stop.__module__ = task.__name__
    with pytest.raises(KeyboardInterrupt):
        encode_split(split, context, stop)
    assert len(parts_in(folder)) == 2
    assert as_lists(encode_split(split, context, encode)) == as_lists(task.encode(split.rows, context))
    assert encode.calls == 2


def test_encoded_rows_are_no_python_lists():
    """Rows take what their numbers take, and not the six kilobytes a row of lists in dictionaries."""
    _, _, context = prepared("cola")
    words = ["the", "same", "that", "this", "near", "behind", "some", "these"]
    rows = [{"text": " ".join(words[number % 7 :]), "label": context.labels[number % 2]} for number in range(2_000)]
    split = Split("train", "here", rows, range(2_000))
    encode = load_task(context.recipe).encode
    encode(rows[:2], context)
    tracemalloc.start()
    try:
        features = encode_split(split, context, encode)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(features) == 2_000
    assert size < 100 * 2_000


# --- the key


CHANGES = {
    "max_length": {"training.max_length": 32},
    "options": {"options.overlap": 3},
    "columns": {"data.columns": {"id": "number"}},
}


@pytest.mark.parametrize("name", CHANGES)
def test_settings_change_the_key(name):
    _, split, context = prepared("ner")
    other = load_recipe("ner", {"data.source": "demo", **CHANGES[name]})
    assert content_key(split, context) != content_key(split, replace(context, recipe=other))


def test_rows_labels_and_family_change_the_key():
    _, split, context = prepared("ner")
    tagged = context.recipe.model_copy(update={"task": "word_sense"})
    keys = {
        content_key(split, context),
        content_key(replace(split, rows=split.rows[1:]), context),
        content_key(replace(split, rows=split.rows[::-1]), context),
        content_key(split, replace(context, labels=context.labels[::-1])),
        content_key(split, replace(context, recipe=tagged)),
    }
    assert len(keys) == 5


def test_another_tokenizer_changes_the_key():
    _, split, context = prepared("ner")
    keys = {content_key(split, context)}
    cased, shorter, left, more = (make_tokenizer() for _ in range(4))
    cased.backend_tokenizer.normalizer = type(cased.backend_tokenizer.normalizer)(lowercase=False)
    shorter.model_max_length = 63
    left.truncation_side = "left"
    more.add_tokens(["superfilm"])
    for tokenizer in (cased, shorter, left, more):
        keys.add(content_key(split, replace(context, tokenizer=tokenizer)))
    assert len(keys) == 5


@pytest.mark.parametrize("what", ["__version__", "_SCHEMA", "package_fingerprint", "tokenizers", "transformers"])
def test_other_code_changes_the_key(what, monkeypatch):
    _, split, context = prepared("ner")
    before = content_key(split, context)
    version = feature_cache.metadata.version
    if what == "__version__":
        monkeypatch.setattr(bertkit, what, "99")
    elif what == "_SCHEMA":
        monkeypatch.setattr(feature_cache, what, 99)
    elif what == "package_fingerprint":
        monkeypatch.setattr(feature_cache, what, lambda: "other")
    else:
        monkeypatch.setattr(feature_cache.metadata, "version", lambda name: "99" if name == what else version(name))
    assert content_key(split, context) != before


def test_what_the_tokenizer_did_last_and_where_rows_lie_does_not_change_the_key():
    _, split, context = prepared("ner")
    before = content_key(split, context)
    TOKENIZER(["a good film"] * 2, truncation=True, max_length=5, padding=True)
    moved = context.recipe.model_copy(update={"data": context.recipe.data.model_copy(update={"source": "elsewhere"})})
    assert content_key(replace(split, source="elsewhere"), replace(context, recipe=moved)) == before


# --- files that are not what they were, or cannot be


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "missing", "foreign", "no manifest"])
def test_damaged_features_are_noticed_and_encoded_again(damage, folder, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    task, split, context = prepared("cola")
    encode = Counting(task)
    expected = as_lists(encode_split(split, context, encode))
    (part,) = parts_in(folder)
    file = part / ("manifest.json" if damage == "no manifest" else "input_ids.1.npy")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.unlink()  # other features are mapped from it
    if damage in ("cut", "flipped", "empty", "foreign"):
        file.write_bytes({"cut": content[:-100], "flipped": content, "foreign": b"x" * 5000}.get(damage, b""))
    assert as_lists(encode_split(split, context, encode)) == expected
    line = f"the numbers in {part} are damaged and are computed again"
    assert caplog.messages == [line] * (damage != "no manifest")
    assert as_lists(encode_split(split, context, encode)) == expected
    assert encode.calls == 2


def test_a_folder_that_cannot_be_written_costs_the_cache_and_one_line(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    (tmp_path / "file").touch()
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "file"))
    task, split, context = prepared("cola")
    for each in (split, replace(split, rows=split.rows[1:])):
        assert as_lists(encode_split(each, context, task.encode)) == task.encode(each.rows, context)
    assert len(caplog.records) == 1
    assert caplog.records[0].message.startswith("features are not cached: ")
    assert caplog.records[0].message.endswith("; set BERTKIT_CACHE to use another folder")


def test_a_full_disk_costs_the_cache_until_there_is_room(folder, monkeypatch):
    append = ArrayWriter.append

    def full(writer, name, values):
        if name == "input_ids.1":
            raise OSError(28, "No space left on device")
        append(writer, name, values)

    task, split, context = prepared("cola")
    with monkeypatch.context() as patched:
        patched.setattr(ArrayWriter, "append", full)
        assert as_lists(encode_split(split, context, task.encode)) == task.encode(split.rows, context)
    assert parts_in(folder) == []
    assert as_lists(encode_split(split, context, task.encode)) == task.encode(split.rows, context)
    assert len(parts_in(folder)) == 1


def ids(count: int):
    return [{"row": row, "input_ids": [1, 2]} for row in range(count)]


@pytest.mark.parametrize(
    "odd",
    ["text", True, None, [1, 2.5], [True], 2**63, np.arange(3), np.zeros((2, 3)), (1, 2), {"a": 1}, [[1], 2]],
    ids=str,
)
def test_what_a_file_cannot_hold_stays_as_it_is(odd, folder):
    _, split, context = prepared("cola")
    for features in ([{**each, "odd": odd} for each in ids(3)], [*ids(2), {**ids(1)[0], "odd": 1}]):

        def encode(rows, context, features=features):
            return features

        encode.__module__ = "bertkit.tasks.odd"
        assert all(kept is each for kept, each in zip(encode_split(split, context, encode), features, strict=True))
    assert not folder.exists()


PAIRS = [np.zeros((0, 2), np.int64), np.arange(4).reshape(2, 2)]


@pytest.mark.parametrize(
    "values",
    [
        [[], []],
        [[], [1]],
        [[2**40], [-1]],
        [[0.1, float("inf")], []],
        [[[]], []],
        [127, 128],
        PAIRS,
        [PAIRS[0], PAIRS[0]],
    ],
    ids=str,
)
def test_every_number_comes_back(values):
    _, split, context = prepared("cola")

    def encode(rows, context):
        return [{**each, "values": value} for each, value in zip(ids(2), values, strict=True)]

    encode.__module__ = "bertkit.tasks.odd"
    cached = encode_split(split, context, encode)
    assert isinstance(cached, FeatureColumns)
    assert [plain(each["values"]) for each in cached] == plain(values)
    assert [np.shape(each["values"]) for each in cached] == [np.shape(value) for value in values]


def test_no_features_at_all_are_no_file(folder):
    _, split, context = prepared("cola")

    def encode(rows, context):
        return []

    encode.__module__ = "bertkit.tasks.odd"
    assert encode_split(split, context, encode) == []
    assert not folder.exists()


def test_nothing_is_kept_of_small_splits_of_foreign_families_or_where_it_is_not_wanted(folder, monkeypatch):
    task, split, context = prepared("cola")
    unwanted = prepared("cola", **{"data.cache": False})[2]
    assert isinstance(encode_split(split, unwanted, task.encode), FeatureColumns)
    assert isinstance(encode_split(split, context, lambda rows, context: task.encode(rows, context)), list)
    monkeypatch.setattr(feature_cache, "_MIN_ROWS", len(split.rows) + 1)
    assert isinstance(encode_split(split, context, task.encode), list)
    assert not folder.exists()


# --- whole runs


@pytest.mark.slow
def test_runs_with_and_without_kept_features_are_the_same(run, tiny_model, tmp_path, folder):
    records = []
    for number, cache in enumerate(("true", "true", "false")):
        options = ["--data", "demo", "--limit", "16", "--epochs", "1", "--set", "training.precision=fp32"]
        options += ["--set", f"data.cache={cache}", "--output", tmp_path / f"run{number}"]
        ended = run("finetune", "squad", "--model", tiny_model, *options)
        assert ended.code == 0, ended.err
        records.append(json.loads((tmp_path / f"run{number}" / "run.json").read_text()))
    first, second, without = [(each["results"][0]["scores"], each["identity"]) for each in records]
    assert first == second == without
    predictions = {(tmp_path / f"run{number}" / "predictions.jsonl").read_text() for number in range(3)}
    assert len(predictions) == 1
    assert len(parts_in(folder)) == 2
    ended = run("eval", "squad", "--model", tmp_path / "run2", "--data", "demo", "--limit", "16", "--json")
    assert json.loads(ended.out)["results"][0]["scores"] == without[0]
