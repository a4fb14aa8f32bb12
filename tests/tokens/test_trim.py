"""Trimmed tokenizers split the texts that they are trimmed to as before, and need no token of others."""

from __future__ import annotations

import json
import random

import pytest

from bertkit.errors import ModelError
from bertkit.modeling.tokenizer import read_tokenizer
from bertkit.tokens.features import tokenize_texts
from bertkit.tokens.train import TOKENIZER_TYPES, make_spec, train_from_texts
from bertkit.tokens.trim import check_unchanged, collect_tokens, trim, trim_files

SYLLABLES = ["ba", "be", "do", "ka", "kat", "lo", "mi", "nas", "ra", "tor", "un", "ze"]


def make_texts(count, seed):
    rng = random.Random(seed)
    return [
        " ".join("".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(rng.randint(3, 9)))
        for _ in range(count)
    ]


def train_tokenizer(tokenizer_type):
    spec = make_spec(tokenizer_type, vocabulary_size=420, lowercase=True, max_length=64)
    return train_from_texts(spec, lambda: make_texts(300, seed=0))


@pytest.mark.parametrize("tokenizer_type", TOKENIZER_TYPES)
def test_texts_of_the_corpus_have_the_tokens_of_before(tokenizer_type, tmp_path):
    tokenizer = train_tokenizer(tokenizer_type)
    corpus = [*make_texts(12, seed=1), "bakat \u0416 lo", "unQ do", "", "  ", "kat[MASK]kat"]
    tokenizer.save_pretrained(tmp_path)
    kept = trim_files(tmp_path, tokenizer, collect_tokens(tokenizer, corpus))
    trimmed = read_tokenizer(tmp_path)
    assert len(trimmed) == len(kept) < len(tokenizer)
    assert check_unchanged(tokenizer, trimmed, kept, corpus) == len(corpus)
    for text in corpus:  # with special tokens, one text or two
        for pair in (None, corpus[0]):
            old, new = (one(text, pair)["input_ids"] for one in (tokenizer, trimmed))
            assert old == [kept[number] for number in new]
    for name in tokenizer.special_tokens_map:
        if name.endswith("_token"):
            number = getattr(trimmed, f"{name}_id")
            assert kept[number] == getattr(tokenizer, f"{name}_id")
    assert trimmed.unk_token_id not in trimmed("bakatlo unze", add_special_tokens=False)["input_ids"]  # other words


def test_a_word_that_is_unknown_stays_so():
    """`abX` is unknown since nothing matches `X` behind `ab`; without `ab`, `a` and `##bX` would match it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {token: number for number, token in enumerate(["[PAD]", "[UNK]", "a", "ab", "##bX", "c"])}
    backend = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")
    content = json.loads(backend.to_str())
    corpus = ["abX", "a", "cbX"]
    used = {*collect_tokens(tokenizer, corpus), ids["##bX"]}
    trimmed, _ = trim(content, used)
    assert Tokenizer.from_str(json.dumps(trimmed)).encode("abX").tokens == ["[UNK]"]
    without_prefixes, _ = trim(content, used - {ids["ab"]})
    assert Tokenizer.from_str(json.dumps(without_prefixes)).encode("abX").tokens == ["a", "##bX"]


def test_merges_that_make_another_token_on_the_way_are_kept():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokens = ["<unk>", "a", "b", "c", "d", "ab", "abc", "cd", "bc"]
    ids = {token: number for number, token in enumerate(tokens)}
    merges = [("a", "b"), ("c", "d"), ("b", "c"), ("ab", "c")]
    backend = Tokenizer(models.BPE(ids, merges, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<unk>", unk_token="<unk>")
    kept_content, kept = trim(json.loads(backend.to_str()), collect_tokens(tokenizer, ["abc"]))
    assert set(kept_content["model"]["vocab"]) == {"<unk>", "a", "b", "c", "d", "ab", "abc"}  # d as a byte of its own
    assert kept_content["model"]["merges"] == [["a", "b"], ["ab", "c"]]
    assert Tokenizer.from_str(json.dumps(kept_content)).encode("abc").tokens == ["abc"]
    assert kept == [0, 1, 2, 3, 4, 5, 6]


def test_ids_that_positions_count_from_stay(tmp_path):
    tokenizer = train_tokenizer("bpe")
    tokenizer.save_pretrained(tmp_path)
    assert trim_files(tmp_path, tokenizer, [], first=2)[:2] == [0, 1]


def test_another_split_is_refused(tmp_path):
    tokenizer = train_tokenizer("wordpiece")
    tokenizer.save_pretrained(tmp_path)
    kept = trim_files(tmp_path, tokenizer, collect_tokens(tokenizer, ["ba"]))
    other = "katnas katnas"
    assert len(tokenize_texts(tokenizer, [other])[0].ids) > 0
    with pytest.raises(ModelError, match="splits 'katnas katnas' into other tokens"):
        check_unchanged(tokenizer, read_tokenizer(tmp_path), kept, ["ba", other])


def test_other_types_are_refused():
    content = {"model": {"type": "Odd", "vocab": {}}, "added_tokens": []}
    with pytest.raises(ModelError, match="a Odd tokenizer cannot be trimmed"):
        trim(content, [])


def test_templates_of_all_kinds_get_the_new_ids():
    processor = {
        "type": "Sequence",
        "processors": [
            {"type": "RobertaProcessing", "sep": ["</s>", 4], "cls": ["<s>", 2], "trim_offsets": True},
            {"type": "TemplateProcessing", "special_tokens": {"<s>": {"id": "<s>", "ids": [2], "tokens": ["<s>"]}}},
        ],
    }
    added = [{"id": number, "content": token} for number, token in ((2, "<s>"), (4, "</s>"))]
    words = {"type": "WordLevel", "vocab": {"x": 0, "y": 1, "<s>": 2, "z": 3, "</s>": 4}, "unk_token": "x"}
    content = {"model": words, "added_tokens": added, "post_processor": processor, "padding": {"pad_id": 4}}
    trimmed, kept = trim(content, [1])
    assert kept == [0, 1, 2, 4]
    first, second = trimmed["post_processor"]["processors"]
    assert (first["sep"], first["cls"]) == (["</s>", 3], ["<s>", 2])
    assert second["special_tokens"]["<s>"]["ids"] == [2] and trimmed["padding"] == {"pad_id": 3}
    assert [token["id"] for token in trimmed["added_tokens"]] == [2, 3]
