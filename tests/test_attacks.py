"""The tools that attack bertkit know every command, and what they have found once is never found again."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bertkit.pretraining.objectives import objective_names
from bertkit.recipe import load_pretrain_recipe, load_recipe
from bertkit.tasks import task_names
from tests.analysis.test_explanations import RECIPES
from tests.cli.test_families import every_command
from tools.attack_commands import PRETRAINED, list_commands
from tools.attack_targets import all_targets, try_target, warm_up

FOUND = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""What a reader of bertkit once failed at: the kind of file, its content, and what was wrong."""

DEEP = "[" * 2000  # more than Python's parser goes down

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def store(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    (folder / "run").symlink_to(trained)
    return folder


@pytest.fixture(scope="module")
def targets(store, tmp_path_factory):
    targets = all_targets(tmp_path_factory.mktemp("kept"), store)
    for target in targets.values():
        warm_up(target, store)
    return targets


def test_every_command_family_and_objective_is_soaked():
    commands = list_commands()
    # A server does not end; the fuzzer sends requests to its app.
    names = {name for name in every_command() if name not in ("pretrain recipe", "serve")}
    assert [name for name in sorted(names) if not any(f"{line} ".startswith(f"{name} ") for line in commands)] == []
    finetuned = {load_recipe(name).task for name in RECIPES}
    assert {*task_names()} - finetuned == {"zero_shot"}
    assert {load_pretrain_recipe(name).objective for name in [*PRETRAINED, "mlm"]} == {*objective_names()}


def test_every_kind_of_file_is_read_as_it_was_written(targets, tmp_path):
    assert {name: try_target(target, target.content, tmp_path) for name, target in targets.items()} == dict.fromkeys(
        targets, ("read", None)
    )


@pytest.mark.parametrize("case", FOUND, ids=lambda case: f"{case['target']}: {case['was']}"[:60])
def test_what_was_found_once_is_read_or_refused_in_one_line(case, targets, tmp_path):
    content = case["content"]
    data = content.encode() if "content" in case else base64.b64decode(case["base64"])
    assert try_target(targets[case["target"]], data, tmp_path)[1] is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("words.conll", DEEP + " NNP B-NP B-ORG\n"),
        ("spans.jsonl", json.dumps({"text": "EU rejects it", "spans": DEEP}) + "\n"),
        ("saved/state.json", DEEP),
        ("rows.jsonl", DEEP + "\n"),
    ],
)
def test_json_that_is_nested_too_deep_is_read_as_text_or_refused_in_one_line(name, content, targets, tmp_path):
    assert try_target(targets[name], content.encode(), tmp_path)[1] is None


def replaced(content, picks, value):
    """Return JSON with a value in place of one of its own: `picks` chooses a key, then one below it, and so on."""
    if not picks or not isinstance(content, (dict, list)) or not content:
        return value
    keys = sorted(content) if isinstance(content, dict) else range(len(content))
    key = keys[picks[0] % len(keys)]
    copied = content.copy()
    copied[key] = replaced(content[key], picks[1:], value)
    return copied


@given(file=st.integers(0, 999), picks=st.lists(st.integers(0, 999), min_size=1, max_size=4), value=VALUES)
def test_any_value_in_a_file_is_read_or_refused_in_one_line(targets, tmp_path_factory, file, picks, value):
    names = sorted(name for name in targets if name.endswith((".json", ".jsonl", ".yaml")))
    target = targets[names[file % len(names)]]
    first, _, rest = target.content.partition(b"\n") if target.file.endswith("l") else (target.content, b"", b"")
    if target.file.endswith(".yaml"):
        content = yaml.safe_load(target.content)
        damaged = yaml.safe_dump(replaced(content, picks, value)).encode()
    else:
        damaged = json.dumps(replaced(json.loads(first), picks, value)).encode() + b"\n" + rest
    assert try_target(target, damaged, tmp_path_factory.mktemp("any"))[1] is None


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_line_after_set_is_taken_or_refused_in_one_line(targets, tmp_path_factory, key, value):
    line = f"{key}={value}".encode("utf-8", "surrogatepass")
    assert try_target(targets["changes"], line, tmp_path_factory.mktemp("any"))[1] is None
