"""Batches of texts: what is padding, and what belongs to a prompt."""

from __future__ import annotations

import pytest

from bertkit.errors import UsageError
from bertkit.vectors.batches import count_prompt_tokens, text_collator, tokenize
from tests.conftest import make_tokenizer


def test_texts_are_padded_on_the_right():
    batch = text_collator(make_tokenizer(), 2)([{"input_ids": [2, 9, 3]}, {"input_ids": [2, 3]}])
    assert batch["input_ids"].tolist() == [[2, 9, 3], [2, 3, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["prompt_tokens"] == 2
    assert "token_type_ids" not in batch


@pytest.mark.parametrize(("text", "lines"), [("the film", 0), ("the film is", 1)])
def test_texts_that_are_truncated_are_reported(text, lines, caplog):
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = 4
    with caplog.at_level("INFO", "bertkit"):
        features = tokenize(["a", text], tokenizer)
    assert [len(feature["input_ids"]) for feature in features] == [3, 4]
    assert caplog.messages == ["texts of more than 4 tokens are truncated"] * lines


def test_the_tokens_of_a_prompt_include_what_comes_before_it():
    tokenizer = make_tokenizer()
    assert [count_prompt_tokens(tokenizer, prompt) for prompt in ("", "the film: ")] == [0, 4]
    tokenizer.model_max_length = 5
    with pytest.raises(UsageError, match="the prompt has 3 of 5 tokens and leaves none for a text"):
        count_prompt_tokens(tokenizer, "the film: ")
