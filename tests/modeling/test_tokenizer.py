"""Tokenizers of models: bounded by what the model reads, and refused if they are of another model."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    PreTrainedTokenizerFast,
)

from bertkit.errors import ModelError
from bertkit.modeling.sentence.folder import SentenceModules
from bertkit.modeling.tokenizer import (
    check_vocabulary,
    fit_tokenizer,
    load_sentence_tokenizer,
    load_tokenizer,
    warn_about_tokens,
)
from bertkit.storage.hub import find_model
from tests.conftest import finetune, make_tokenizer
from tests.kills import slow_unless
from tests.modeling.test_load import SMALL, edit_config, save_family

OWN_SIZES = {
    "convbert": {"embedding_size": 16, "num_groups": 1},
    "fnet": {"use_tpu_fourier_optimizations": False},
    "longformer": {"attention_window": 4},
    "luke": {"entity_vocab_size": 10, "entity_emb_size": 8},
    "xmod": {"default_language": "en_XX"},
}


@pytest.fixture
def copy(tiny_model, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "copy"))


def test_the_tokenizer_ends_where_the_positions_end(tmp_path):
    folder = save_family("roberta", tmp_path / "roberta")
    edit_config(folder, max_position_embeddings=34)
    assert load_tokenizer(folder).model_max_length == 33  # the padding id is 0, so positions begin at 1


@pytest.mark.parametrize("padding", [1, 4])
@pytest.mark.parametrize(
    "model_type",
    slow_unless(
        ("bert", "roberta", "mpnet", "longformer", "esm", "nystromformer"),
        [
            *("bert", "roberta", "camembert", "mpnet", "data2vec-text", "ibert", "luke", "longformer", "esm"),
            *("electra", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod", "nystromformer", "convbert"),
        ],
    ),
)
def test_a_text_as_long_as_the_bound_is_read_and_a_longer_one_is_not(model_type, padding):
    sizes = {**SMALL, **OWN_SIZES.get(model_type, {}), "max_position_embeddings": 24, "pad_token_id": padding}
    config = AutoConfig.for_model(model_type, vocab_size=60, mask_token_id=5, **sizes)
    config.position_embedding_type = "absolute"  # ESM's default has no bound
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = int(1e30)
    fit_tokenizer(tokenizer, config)
    assert 24 - padding - 1 <= tokenizer.model_max_length <= 24
    model = AutoModelForSequenceClassification.from_config(config).eval()

    def read(length: int) -> torch.Tensor:
        return model(torch.full((1, length), 7), attention_mask=torch.ones(1, length, dtype=torch.long)).logits

    assert read(tokenizer.model_max_length).isfinite().all()
    with pytest.raises((IndexError, RuntimeError)):
        read(tokenizer.model_max_length + 1)


@pytest.mark.parametrize(("types", "is_read"), [(1, False), (2, True)])
def test_a_tokenizer_makes_token_types_only_for_a_model_with_several(types, is_read, tmp_path):
    sizes = {**SMALL, "max_position_embeddings": 24, "type_vocab_size": types, "pad_token_id": 0}
    tokenizer = AutoTokenizer.from_pretrained(find_model("demo"))
    config = AutoConfig.for_model("bert", vocab_size=len(tokenizer), **sizes)
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    load_tokenizer(tmp_path).save_pretrained(tmp_path)
    pair = AutoTokenizer.from_pretrained(tmp_path)("good film", "bad film")
    assert ("token_type_ids" in pair) == is_read


def test_a_tokenizer_that_does_not_fit_the_embeddings(copy):
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["one", "two"])
    tokenizer.save_pretrained(copy)
    with pytest.raises(ModelError, match="the tokenizer knows 2 more tokens than the model"):
        load_tokenizer(copy)


def test_a_tokenizer_without_its_fast_version_is_refused(copy):
    (copy / "tokenizer.json").unlink()
    (copy / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    with pytest.raises(ModelError, match="the tokenizer does not load: Couldn't instantiate the backend tokenizer"):
        load_tokenizer(copy)


def test_a_tokenizer_without_a_padding_token_is_refused(copy):
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    settings.pop("pad_token")
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(
        ModelError, match=r"the tokenizer has no padding token .* - name one as pad_token in tokenizer_"
    ):
        load_tokenizer(copy)


def tokenizer_of(size: int) -> PreTrainedTokenizerFast:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([f"word{number}" for number in range(size - len(tokenizer))])
    return tokenizer


def check(tokenizer: PreTrainedTokenizerFast, size: int, folder: Path, **saved: int) -> None:
    (folder / "config.json").write_text(json.dumps(saved))
    check_vocabulary(tokenizer, BertConfig(vocab_size=size), folder)


def warnings_of(tokenizer: PreTrainedTokenizerFast, size: int, folder: Path, caplog) -> list[str]:
    with caplog.at_level(logging.WARNING, "bertkit"):
        check(tokenizer, size, folder)
    return caplog.messages


@pytest.mark.parametrize(("known", "size"), [(100, 128), (900, 1024), (2900, 3000), (100, 100)])
def test_a_padded_vocabulary_is_usual(known, size, tmp_path, caplog):
    assert not warnings_of(tokenizer_of(known), size, tmp_path, caplog)


def test_a_vocabulary_that_is_far_smaller_than_the_embeddings_is_suspect(tmp_path, caplog):
    (line,) = warnings_of(tokenizer_of(800), 3052, tmp_path, caplog)
    assert line == "the tokenizer may not be the model's: it has 800 tokens for 3,052 embeddings"


def test_more_tokens_than_embeddings_are_refused(tmp_path):
    with pytest.raises(ModelError, match="the tokenizer knows 20 more tokens than the model"):
        check(tokenizer_of(120), 100, tmp_path)


@pytest.mark.parametrize("name", ["pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id"])
def test_special_tokens_with_other_ids_than_in_the_config_are_refused(name, tmp_path):
    tokenizer = make_tokenizer()
    check(tokenizer, 200, tmp_path, **{name: getattr(tokenizer, name)})
    with pytest.raises(ModelError, match=rf"{name} is \d for the tokenizer and 9 for the model"):
        check(tokenizer, 200, tmp_path, **{name: 9, "bos_token_id": 7})


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
        warn_about_tokens(tokenizer, features)
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


@pytest.mark.parametrize(("asked", "length"), [(None, 64), (16, 16), (1000, 64)])
def test_texts_are_as_long_as_the_modules_say_and_the_model_reads(tiny_model, asked, length):
    tokenizer = load_sentence_tokenizer(tiny_model, SentenceModules(max_length=asked), decoders=False)
    assert tokenizer.model_max_length == length


def test_texts_may_be_put_in_lower_case(tiny_model):
    tokenizer = load_sentence_tokenizer(tiny_model, SentenceModules(lowercase=True), decoders=False)
    assert tokenizer.backend_tokenizer.normalizer.normalize_str("The FILM") == "the film"
