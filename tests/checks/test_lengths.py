"""What a tokenizer makes of texts."""

from __future__ import annotations

import pytest

from bertkit.checks.lengths import find_lost_tokens
from bertkit.data.rows import Split
from bertkit.recipe import load_recipe
from bertkit.tasks import load_task
from bertkit.tokens.features import TaskContext
from tests.conftest import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def found_in(texts, tokenizer, recipe="classify", **changes):
    chosen = load_recipe(recipe, changes)
    rows = [{"text": text, "label": "x"} if isinstance(text, str) else text for text in texts]
    split = Split("train", "t.csv", rows, list(range(1, len(rows) + 1)))
    found = find_lost_tokens(
        {"train": split}, load_task(chosen), TaskContext(chosen, tokenizer, ("x", "O", "B-PER", "I-PER"))
    )
    return {finding.name: (finding.level, finding.text, [place.row for place in finding.places]) for finding in found}


def test_texts_that_fit(tokenizer):
    assert found_in(["a good film", "film!"], tokenizer) == {
        "unknown_tokens": ("good", "train: 1.00 tokens per word, 0.00% of the tokens unknown", []),
        "truncated": ("good", "train: no row is longer than 64 tokens (half up to 5, 99% up to 5, the longest 5)", []),
    }


def test_texts_that_are_truncated(tokenizer):
    found = found_in(["a", "a film " * 4], tokenizer, **{"training.max_length": 8})
    expected = "train: 1 of 2 (50.0%) rows are longer than 8 tokens and truncated "
    expected += "(half up to 10, 99% up to 10, the longest 10)"
    assert found["truncated"] == ("warn", expected, [2])
    expected = (
        "train: in these rows, head, tail, head_tail read 75.0% of the tokens, and 2.0 windows per row read 100.0%"
    )
    assert found["long_text_ways"] == ("good", expected, [])


def test_tokens_that_are_unknown(tokenizer):
    texts = [*(f"a film{' a' * number}" for number in range(10)), "a ж film", "the ж ж a film a"]
    found = found_in(texts, tokenizer)
    assert found["unknown_tokens"][::2] == ("warn", [11, 12])
    assert found_in(["ж ж", "a ж"], tokenizer)["unknown_tokens"][0] == "fail"


def test_words_of_many_tokens(tokenizer):
    assert found_in(["superficially"], tokenizer)["unknown_tokens"][0] == "warn"


def test_what_is_read_in_windows_is_not_lost(tokenizer):
    rows = [{"tokens": ["a", "film"] * 20, "tags": ["O", "B-PER"] * 20}]
    found = found_in(rows, tokenizer, "tag", **{"training.max_length": 16})
    assert found["truncated"][0] == "good"
    assert "overlapping windows" in found["truncated"][1]
    assert found["lost_gold"][:2] == ("good", "train: 0 of 1 (0%) rows lose gold answers beyond the maximum length")
