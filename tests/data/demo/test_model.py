"""The demo model is small, says what it is, and knows the words of the grammar."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
import torch

import bertkit
from tests.data.demo.test_rows import OTHERS, rows_of
from tests.kills import slow_unless
from tools.demo.prose import demo_text

MODEL = Path(bertkit.__file__).parent / "data" / "demo" / "model"


@pytest.fixture(scope="module")
def tokenizer():
    from bertkit.modeling.tokenizer import load_tokenizer

    return load_tokenizer(MODEL)


def test_the_model_is_small_and_says_what_it_is():
    assert sum(file.stat().st_size for file in MODEL.iterdir()) < 2_000_000
    assert "cannot be compared" in (MODEL / "README.md").read_text()


def test_any_english_text_has_tokens(tokenizer):
    text = 'Zebras juggle quickly; 42 bytes of "Naïve" e-mail cost $5 (or more)!'
    assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]


@pytest.mark.parametrize("name", slow_unless(["squad", "swag", "ner"], OTHERS))
def test_every_row_fits_into_the_model(name, tokenizer):
    rows = rows_of(name, "validation", 200)
    texts = [
        " ".join([row.get("question", ""), row.get("context", ""), row.get("stem", ""), *row.get("tokens", ())])
        for row in rows
    ]
    longest = [max(row.get("choices", [""]), key=len) for row in rows]
    assert max(map(len, tokenizer(texts, longest)["input_ids"])) <= tokenizer.model_max_length


def test_the_model_knows_more_than_frequencies(tokenizer):
    from transformers import AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    rng = Random(0)
    right = total = 0
    frequent = Counter()
    for text in demo_text(60, seed=99):
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
