"""The inputs of a pretraining run: what is part of its identity, and mistakes that end before text is read."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch

from bertkit.errors import ModelError, RecipeError
from bertkit.recipe import load_pretrain_recipe
from bertkit.workflows.pretrain_data import PretrainData, read_pretrain_data

DEMO = Path(__file__).parents[2] / "bertkit" / "data" / "demo" / "model"


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Read the inputs of a small run on a text file, with changes to its recipe."""
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("".join(f"The cat number {n} sleeps.\n\n" for n in range(60)))
    shape = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    settings = {
        "size": "tiny",
        "model_options": shape,
        "tokenizer": str(DEMO),
        "data.source": str(text),
        "training.max_length": 32,
        "training.steps": 4,
    }

    def read_with(**changes: object) -> PretrainData:
        named = {name.replace("__", "."): value for name, value in changes.items()}
        return read_pretrain_data(load_pretrain_recipe("mlm", {**settings, **named}), tmp_path / "run")

    return read_with


def test_what_makes_a_run_the_one_it_is(read, tmp_path):
    identity = read().plan.identity
    assert read(training__workers=2, about="another text").plan.identity == identity
    assert read(training__keep_all_checkpoints=True).plan.identity == identity
    assert read(training__keep_optimizer=True).plan.identity == identity
    assert read(training__seed=7).plan.identity != identity
    assert read(options__mask_random_keep=[1, 0, 0]).plan.identity != identity
    copy = tmp_path / "copy.txt"
    copy.write_text((tmp_path / "text.txt").read_text())
    assert read(data__source=str(copy)).plan.identity == identity  # text counts by content, not by name
    copy.write_text(copy.read_text() + "\n\nOne sentence more.\n")
    assert read(data__source=str(copy)).plan.identity != identity


def test_the_weights_of_a_new_model_follow_from_the_seed(read):
    first, same, other = (read(training__seed=seed).load_model().state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(values, same[name]) for name, values in first.items())
    assert not all(torch.equal(values, other[name]) for name, values in first.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": None}, "a new model needs a tokenizer - add --tokenizer DIR"),
        ({"model": "demo"}, "a checkpoint brings its own tokenizer - leave --tokenizer out"),
        ({"model": "demo", "tokenizer": None}, "model_options shape a new model, not a checkpoint"),
    ],
)
def test_a_model_and_a_tokenizer_that_do_not_go_together(read, changes, message):
    with pytest.raises(RecipeError) as mistake:
        read(data__source="nothing.txt", **changes)  # which is not looked for yet
    assert str(mistake.value).startswith(message)
    assert not Path("run").exists()


def change_config(folder: Path, **changes: int) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize("objective", ["mlm", "distil"])
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"pad_token_id": 4}, "pad_token_id is 0 for the tokenizer and 4 for the model"),
        ({"cls_token_id": 7}, "cls_token_id is 2 for the tokenizer and 7 for the model"),
        ({"mask_token_id": 7}, "mask_token_id is 4 for the tokenizer and 7 for the model"),
        ({"vocab_size": 90}, "the tokenizer knows 594 more tokens than the model"),
    ],
)
def test_a_checkpoint_with_a_tokenizer_of_another_is_refused(read, tmp_path, objective, config, message):
    folder = Path(shutil.copytree(DEMO, tmp_path / "mixed"))
    change_config(folder, **config)
    with pytest.raises(ModelError) as mistake:
        read(model=str(folder), objective=objective, tokenizer=None, model_options={})
    assert (str(mistake.value).startswith(message), mistake.value.exit_code) == (True, 4)


def test_a_checkpoint_whose_tokenizer_does_not_know_the_text_is_one_warning(read, tmp_path, caplog):
    folder = Path(shutil.copytree(DEMO, tmp_path / "copy"))
    caplog.set_level(logging.WARNING, "bertkit")
    read(model=str(folder), tokenizer=None, model_options={}).load_model()
    assert caplog.messages == []
    (tmp_path / "text.txt").write_text("".join(f"Привет {n} мир, как дела.\n\n" for n in range(60)))
    read(model=str(folder), tokenizer=None, model_options={}).load_model()
    (line,) = caplog.messages
    assert "documents are unknown: is this the model's tokenizer" in line


def test_texts_longer_than_the_model_reads_are_refused(read):
    with pytest.raises(RecipeError, match=r"training.max_length 9000 exceeds the model's \d+ - use --max-length \d+"):
        read(training__max_length=9000)


def test_a_shipped_length_gives_way_to_a_model_that_reads_less(here, caplog):
    (here / "text.txt").write_text("".join(f"The cat number {n} sleeps. It is old.\n\n" for n in range(60)))
    settings = {"model": "demo", "data.source": "text.txt"}
    training = read_pretrain_data(load_pretrain_recipe("bert", settings), None).context.recipe.training
    assert (training.max_length, training.short_length) == (128, None)
    assert "the model reads 128 tokens, so training.max_length is 128, not 512" in caplog.text
    with pytest.raises(RecipeError, match=r"training\.max_length 200 exceeds the model's 128 - use --max-length 128"):
        read_pretrain_data(load_pretrain_recipe("bert", {**settings, "training.max_length": 200}), None)
    with pytest.raises(RecipeError, match=r"training\.short_length 256 exceeds the model's 128 - use --max-length 128"):
        read_pretrain_data(load_pretrain_recipe("bert", {**settings, "training.short_length": 256}), None)
