"""How much of texts a model reads, counted letter by letter."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bertkit.vectors.search.coverage import Coverage, count_tokens, find_truncated, measure_coverage
from tests.conftest import make_tokenizer

TEXTS = ["the film", "the film was very good and so lovely", "", "THE book is so dull, dull"]


def embedder(limit, prompt="", lowercase=False):
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = limit
    return SimpleNamespace(tokenizer=tokenizer, prompt_text=prompt, modules=SimpleNamespace(lowercase=lowercase))


@pytest.mark.parametrize(
    ("limit", "prompt", "read"),
    [
        (64, "", {}),
        (7, "", {1: "the film was very good", 3: "THE book is so dull"}),
        (7, "a ", {1: "the film was very", 3: "THE book is so"}),
        (4, "so so so ", {0: "", 1: "", 2: "", 3: ""}),
    ],
)
def test_what_truncation_leaves(limit, prompt, read):
    model = embedder(limit, prompt)
    expected = {position: len(text) for position, text in read.items()}
    assert find_truncated(TEXTS, model) == expected
    lost = sum(len(TEXTS[position]) - len(text) for position, text in read.items())
    total = sum(map(len, TEXTS))
    assert measure_coverage(TEXTS, model) == Coverage(4, len(read), total - lost, total)


def test_tokens_are_counted_with_special_ones_and_prompt():
    assert count_tokens(TEXTS, embedder(4)) == [4, 10, 2, 9]
    assert count_tokens(TEXTS[:1], embedder(4, "a book ")) == [6]
    assert count_tokens([], embedder(4)) == []


def test_coverages_add_up():
    both = Coverage(1, 0, 6, 6) + Coverage(1, 1, 6, 18)
    assert (both, both.share) == (Coverage(2, 1, 12, 24), 0.5)
    assert Coverage().share == 1
