"""A tokenizer of another model: refused where that can be known, a warning where it can be suspected."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path

import pytest
from transformers import BertConfig, PreTrainedTokenizerFast

from bertkit.errors import ModelError
from bertkit.tokens.vocabulary import refuse_foreign, report_tokens
from tests.conftest import finetune, make_tokenizer


def tokenizer_of(size: int) -> PreTrainedTokenizerFast:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([f"word{number}" for number in range(size - len(tokenizer))])
    return tokenizer


def warnings_of(tokenizer: PreTrainedTokenizerFast, size: int, caplog) -> list[str]:
    with caplog.at_level(logging.WARNING, "bertkit"):
        refuse_foreign(tokenizer, BertConfig(vocab_size=size), {}, Path("folder"))
    return caplog.messages


@pytest.mark.parametrize(("known", "size"), [(100, 128), (900, 1024), (2900, 3000), (100, 100)])
def test_a_padded_vocabulary_is_usual(known, size, caplog):
    assert not warnings_of(tokenizer_of(known), size, caplog)


def test_a_vocabulary_that_is_far_smaller_than_the_embeddings_is_suspect(caplog):
    (line,) = warnings_of(tokenizer_of(800), 3052, caplog)
    assert line == "the tokenizer may not be the model's: it has 800 tokens for 3,052 embeddings"


def test_more_tokens_than_embeddings_are_refused():
    with pytest.raises(ModelError, match="the tokenizer knows 20 more tokens than the model"):
        refuse_foreign(tokenizer_of(120), BertConfig(vocab_size=100), {}, Path("folder"))


@pytest.mark.parametrize("name", ["pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id"])
def test_special_tokens_with_other_ids_than_in_the_config_are_refused(name):
    tokenizer = make_tokenizer()
    saved = {name: getattr(tokenizer, name)}
    refuse_foreign(tokenizer, BertConfig(vocab_size=200), saved, Path("folder"))
    saved = {name: 9, "bos_token_id": 7}
    with pytest.raises(ModelError, match=rf"{name} is \d for the tokenizer and 9 for the model"):
        refuse_foreign(tokenizer, BertConfig(vocab_size=200), saved, Path("folder"))


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["the film was very good and the song is lovely"] * 3, None),
        (["ein Zug fuhr schnell davon"] * 3, r"\d+% of the tokens of the first 3 rows are single letters: is this"),
        (["Привет мир, как дела"] * 3, "of the first 3 rows are unknown: is this the model's tokenizer"),
        ([], None),
        (["!!! ... ??"], None),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_rows_of_unknown_tokens_or_single_letters_are_suspect(texts, says, nested, caplog):
    tokenizer = make_tokenizer()
    ids = [tokenizer(text)["input_ids"] for text in texts]
    features = [{"input_ids": [one, one] if nested else one} for one in ids]
    with caplog.at_level(logging.WARNING, "bertkit"):
        report_tokens(tokenizer, features)
    assert len(caplog.messages) == (says is not None)
    if says:
        assert re.search(says, caplog.text)


def test_a_tokenizer_of_another_vocabulary_is_not_trained_on_in_silence(run, tiny_model, toy_data, tmp_path):
    folder = Path(shutil.copytree(tiny_model, tmp_path / "mixed"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "pad_token_id": 4}))
    ended = finetune(run, folder, toy_data, "--epochs", 1)
    assert ended.code == 4
    assert ended.last.startswith("error: pad_token_id is 0 for the tokenizer and 4 for the model")


def test_a_run_whose_config_named_no_padding_token_is_read_again(run, tiny_model, toy_data, tmp_path):
    folder = Path(shutil.copytree(tiny_model, tmp_path / "silent"))
    config = json.loads((folder / "config.json").read_text())
    config.pop("pad_token_id")
    (folder / "config.json").write_text(json.dumps(config))
    text = (folder / "tokenizer_config.json").read_text().replace('"pad_token": "[PAD]"', '"pad_token": "[MASK]"')
    (folder / "tokenizer_config.json").write_text(text)
    assert finetune(run, folder, toy_data, "--epochs", 1).code == 0
    assert json.loads(Path("runs/classify/config.json").read_text())["pad_token_id"] == 4
    ended = run("predict", "runs/classify/recipe.yaml", "--model", "runs/classify", "--text", "a good film")
    assert ended.code == 0, ended.err
