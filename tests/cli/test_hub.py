"""Whole commands with a hub on the loopback: what they ask for, and what they say where it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertkit.storage import hub
from bertkit.storage.hub import repositories
from tests.conftest import LEARN, toy_rows
from tests.loopback_hub import Hub

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])

SMALL = ["config.json", "tokenizer.json", "tokenizer_config.json"]
PARQUET = {split: f"data/{split}-00000-of-00001.parquet" for split in ("train", "validation", "test")}
COMMAND = ["finetune", "classify", "--model", "me/tiny", "--data", "me/toy", *LEARN, "--epochs", 1]


def fill(loopback: Hub, model: Path, folder: Path) -> None:
    """Put the model into a hub, beside weights that are never read, and a data set of Parquet files."""
    import shutil

    import datasets

    shutil.copytree(model, folder / "model")
    for name in ("pytorch_model.bin", "tf_model.h5", "README.md"):
        (folder / "model" / name).write_bytes(b"not read" * 1000)
    (folder / "set" / "data").mkdir(parents=True)
    for seed, (split, file) in enumerate(PARQUET.items()):
        rows = toy_rows(96 if split == "train" else 40, seed=seed)
        datasets.Dataset.from_list(rows).to_parquet(folder / "set" / file)
    loopback.add("models", "me/tiny", folder / "model")
    loopback.add("datasets", "me/toy", folder / "set")


@pytest.fixture
def filled(loopback, tiny_model, tmp_path):
    fill(loopback, tiny_model, tmp_path / "served")
    return loopback


def begin_again():
    """Forget what the hub has answered, as a new process would."""
    repositories._look_up.cache_clear()


@pytest.mark.slow
def test_a_dry_run_fetches_config_tokenizer_and_rows(filled, run):
    ended = run(*COMMAND, "--dry-run", "--json")
    assert ended.code == 0, ended.err
    assert filled.fetched() == sorted([*SMALL, *PARQUET.values()])
    weights = next(iter(filled.commits["models", "me/tiny"].values()))["model.safetensors"]
    assert json.loads(ended.out)["disk_bytes"] > len(weights)  # their size is known
    assert "the run will download weights (0.1 MB)" in ended.err
    assert list(Path().iterdir()) == []


def test_a_run_fetches_the_weights_too_and_then_needs_no_hub(filled, run):
    ended = run(*COMMAND)
    assert ended.code == 0, ended.err
    assert filled.fetched() == sorted([*SMALL, "model.safetensors", *PARQUET.values()])
    filled.forget()
    filled.fail("*", 503)
    begin_again()
    ended = run(*COMMAND, "--restart")
    assert ended.code == 0, ended.err
    lines = [line for line in ended.err.splitlines() if "is read from the cache" in line]
    assert [line.split()[0] for line in lines] == ["me/tiny", "me/toy"]
    assert all(line.endswith("the Hub failed (503 Service Unavailable)") for line in lines)
    assert filled.fetched() == []


def test_eval_fetches_a_dataset_once(filled, run, trained):
    for expected in (sorted(PARQUET.values()), []):
        ended = run("eval", "classify", "--model", trained, "--data", "me/toy")
        assert ended.code == 0, ended.err
        assert filled.fetched() == expected
        filled.forget()


@pytest.mark.slow
def test_a_run_that_was_uploaded_serves_as_checkpoint_and_as_teacher(filled, run, trained):
    of_a_run = ("run.json", "recipe.yaml", "training_rows.npy")
    filled.add("models", "me/run", trained)
    ended = run("distill", "classify", "--teacher", "me/run", "--model", "me/tiny", "--data", "me/toy", "--dry-run")
    assert ended.code == 0, ended.err
    assert filled.fetched() == sorted([*SMALL, *of_a_run, *PARQUET.values()])
    ended = run("eval", "classify", "--model", "me/run", "--data", "me/toy")
    assert ended.code == 0, ended.err
    assert filled.fetched() == sorted([*SMALL, *of_a_run, "model.safetensors", *PARQUET.values()])


def test_a_data_set_may_be_named_with_its_revision(filled, run, tmp_path):
    first = filled.main["datasets", "me/toy"]
    (tmp_path / "served" / "set" / PARQUET["train"]).write_bytes(b"damaged")
    filled.add("datasets", "me/toy", tmp_path / "served" / "set")
    pinned = ("--data", f"me/toy@{first}", "--dry-run")
    ended = run("finetune", "classify", "--model", "me/tiny", *pinned, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["rows"]["train"] == 96
    ended = run("finetune", "classify", "--model", "me/tiny", *pinned, "--set", "data.revision=main")
    assert (ended.code, ended.last) == (
        3,
        f"error: data.revision main contradicts the revision in me/toy@{first} - leave one of them out: "
        "--set data.revision=null",
    )


def test_the_data_of_a_shipped_recipe_gives_way_to_another_data_set(filled, run):
    ended = run("finetune", "sst2", "--model", "me/tiny", "--data", "me/toy", "--dry-run")
    assert (ended.code, ended.last) == (
        3,
        "error: no column 'sentence'; there are 'text', 'label' (me/toy:train) - add --set data.columns.text=COLUMN",
    )
    columns = ["--set", "data.columns={text: text, label: label}", "--set", "labels=[bad, good]"]
    ended = run("finetune", "sst2", "--model", "me/tiny", "--data", "me/toy", "--dry-run", *columns)
    assert ended.code == 0, ended.err


@pytest.mark.slow
def test_a_tokenizer_is_fetched_without_the_weights_beside_it(filled, run):
    command = ["pretrain", "mlm", "--data", "demo", "--tokenizer", "me/tiny", "--size", "tiny", "--limit", 20]
    command += ["--max-length", 16, "--steps", 2, "--output", "run", "--set", "training.precision=fp32"]
    ended = run(*command)
    assert ended.code == 0, ended.err
    assert filled.fetched() == SMALL
    hub.find_model("me/tiny")  # the weights arrive beside it, which makes no other tokenizer of it
    ended = run(*command)
    assert ended.code == 0, ended.err


@pytest.mark.parametrize("refused", ["*/models/*", "*/datasets/*"])
def test_a_refusal_ends_in_one_line(filled, run, monkeypatch, refused):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    filled.fail(refused, 403, headers={"X-Error-Code": "GatedRepo"})
    ended = run(*COMMAND, "--json")
    assert ended.code == 5
    assert len(ended.err.splitlines()) == 1 or "downloading" in ended.err
    assert "nor in the cache, and it is gated (403) - request access on its page on the Hub" in ended.last
    assert json.loads(ended.out)["error"]["code"] == 5
    assert "hf_secret" not in ended.out + ended.err


def in_a_process(url: str, folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    """Run a command as a user does, with the address of the hub in the environment and a cache of its own."""
    own = {"HF_ENDPOINT": url, "HF_HOME": str(folder / "home"), "BERTKIT_CACHE": str(folder / "bertkit")}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    command = [sys.executable, "-m", "bertkit", *map(str, arguments)]
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**inherited, **own, **path, **environment}
    )


@pytest.mark.slow
def test_time_outs_of_the_environment_are_kept(filled, tmp_path):
    filled.fail("*", seconds=3)
    ended = in_a_process(filled.url, tmp_path, *COMMAND[:4], "--data", "demo", HF_HUB_ETAG_TIMEOUT="1")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (5, 1)
    assert "nor in the cache, and the Hub cannot be reached (timed out) - the cache is empty; or name" in ended.stderr
    assert len(filled.requests) == 1


@pytest.mark.slow
def test_the_story_of_a_hub_that_fails_and_goes_away(tmp_path):
    from tests.hub_story import tell

    tell(tmp_path, print)
