"""The demo's rows are the same everywhere, its splits share nothing, and its model knows the grammar's words."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path
from random import Random

import pytest
import torch

import bertkit
from bertkit.data.demo import DEMO_KINDS, SIZES, demo_rows, demo_text
from bertkit.data.grammar import BREAKS, minimal_pair
from bertkit.errors import DataError
from bertkit.recipe import load_recipe, recipe_names

MODEL = Path(bertkit.__file__).parent / "demo_model"


def test_every_recipe_has_demo_data():
    assert sorted(DEMO_KINDS) == recipe_names()


def test_rows_are_the_same_in_every_process():
    rows = [demo_rows(kind, "validation", 20) for kind in DEMO_KINDS]
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    assert digest[:16] == "8eaaa596f7b7ec5f"


@pytest.mark.parametrize("kind", DEMO_KINDS)
def test_splits_share_no_text_and_hold_every_label(kind):
    splits = {split: demo_rows(kind, split) for split in SIZES}
    texts = {split: {row["text"] for row in rows} for split, rows in splits.items()}
    assert {split: len(texts[split]) for split in SIZES} == SIZES
    assert not texts["train"] & (texts["validation"] | texts["test"])
    labels = load_recipe(kind).labels
    if labels:
        counts = Counter(row["label"] for row in splits["train"])
        assert set(counts) == set(labels)
        assert min(counts.values()) > 0.25 * SIZES["train"]


def test_the_mismatched_split_is_about_something_else():
    matched, mismatched = (demo_rows("mnli", f"validation{suffix}") for suffix in ("", "_mismatched"))
    assert not {row["text"] for row in matched} & {row["text"] for row in mismatched}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_sentence_differs_little_from_a_good_one(name):
    for seed in range(20):
        good, broken = minimal_pair(Random(seed), name)
        assert good != broken
        words = [re.findall(r"\w+", text) for text in (good, broken)]
        assert SequenceMatcher(None, *words).ratio() > 0.5, (good, broken)


def test_what_there_is_not_is_refused():
    with pytest.raises(DataError, match="no demo data is called 'colla' - did you mean cola"):
        demo_rows("colla", "train")
    with pytest.raises(DataError, match="has no split 'dev'"):
        demo_rows("cola", "dev")


@pytest.fixture(scope="module")
def tokenizer():
    from bertkit.models import load_tokenizer

    return load_tokenizer(MODEL)


def test_the_model_is_small_and_says_what_it_is():
    assert sum(file.stat().st_size for file in MODEL.iterdir()) < 2_000_000
    assert "compares with nothing" in (MODEL / "README.md").read_text()


def test_any_english_text_has_pieces(tokenizer):
    text = 'Zebras juggle quickly; 42 bytes of "Naïve" e-mail cost $5 (or more)!'
    assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]


def test_the_model_knows_more_than_frequencies(tokenizer):
    from transformers import AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    rng = Random(0)
    right = total = 0
    frequent = Counter()
    for text in demo_text(200, seed=99):
        ids = torch.tensor(tokenizer(text)["input_ids"])
        position = rng.randrange(1, len(ids) - 1)
        masked = ids.clone()
        masked[position] = tokenizer.mask_token_id
        with torch.inference_mode():
            guess = int(model(masked[None]).logits[0, position].argmax())
        right, total = right + (guess == int(ids[position])), total + 1
        frequent.update(ids[1:-1].tolist())
    most = frequent.most_common(1)[0][1] / frequent.total()
    assert right / total > 2 * most


@pytest.mark.slow
def test_the_demo_learns_to_tell_good_sentences_from_broken_ones(run):
    ended = run("finetune", "cola", "--model", "demo", "--data", "demo", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["results"][0]["scores"]["matthews_correlation"] > 0.6
