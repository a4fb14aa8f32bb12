"""Features: special-token templates, truncation, token budgets, and batches of padded tensors."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import BertTokenizerFast

from bertkit.errors import RecipeError
from bertkit.recipe import load_recipe
from bertkit.tokens.features import (
    IGNORE_INDEX,
    TaskContext,
    count_tokens,
    encode_texts,
    find_template,
    get_max_text_length,
    max_tokens,
    padding_collator,
    token_budget,
    tokenize_texts,
)
from tests.conftest import make_tokenizer
from tests.tokens.test_words import byte_tokenizer, roberta


def bert_tokenizer():
    """Build the tokenizer of the tiny model in the class of BERT, which has token types."""
    return BertTokenizerFast(vocab=make_tokenizer().get_vocab())


def make_setup(tokenizer=None, **training) -> TaskContext:
    changes = {f"training.{name}": value for name, value in training.items()}
    return TaskContext(load_recipe("classify", changes), tokenizer or make_tokenizer(), ("a", "b"))


@pytest.mark.parametrize("make", [bert_tokenizer, make_tokenizer, byte_tokenizer, roberta])
@pytest.mark.parametrize(("first", "second"), [("the old man", None), ("the film", "so good and so on"), ("a", "b")])
def test_a_filled_template_is_what_the_tokenizer_makes(make, first, second):
    tokenizer = make()
    encoded = dict(tokenizer(first, second))
    encoded.pop("attention_mask")
    template = find_template(tokenizer, pair=second is not None)
    texts = [tokenize_texts(tokenizer, [text])[0].ids for text in (first, second) if text is not None]
    assert template.fill(*texts) == encoded
    assert len(encoded["input_ids"]) == template.size + sum(map(len, texts))


def test_templates_of_three_tokenizers():
    one, two = (find_template(bert_tokenizer(), pair=pair) for pair in (False, True))
    assert (one.before, one.between, one.after, one.segments) == ([2], [], [3], (0, 0))
    assert (two.before, two.between, two.after, two.segments) == ([2], [3], [3], (0, 1))
    assert find_template(byte_tokenizer(), pair=True).between == [1, 1]
    assert find_template(roberta(), pair=True).size == 4


def test_texts_are_tokenized_whole_and_special_tokens_are_text():
    tokenizer = make_tokenizer()
    (text,) = tokenize_texts(tokenizer, ["good " * 100 + "[SEP]"])
    assert len(text.ids) > tokenizer.model_max_length
    assert not {tokenizer.sep_token_id, tokenizer.cls_token_id} & set(text.ids)
    (words,) = tokenize_texts(tokenizer, [["good", "zoo"]])
    assert set(words.word_ids) == {0, 1}
    assert words.offsets[0] == (0, 4)


@pytest.mark.parametrize(("recipe", "model", "expected"), [(128, 64, 64), (32, 64, 32)])
def test_the_shorter_limit_truncates(recipe, model, expected):
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = model
    context = make_setup(tokenizer, max_length=recipe)
    assert max_tokens(context) == expected
    (feature,) = encode_texts([{"text": "good " * 200}], context)
    assert len(feature["input_ids"]) == expected
    assert feature["input_ids"][-1] == tokenizer.sep_token_id


def test_pairs_are_encoded_together_and_keep_the_number_of_their_row():
    context = make_setup(bert_tokenizer())
    features = encode_texts([{"text": "good", "text_pair": "bad"}, {"text": "so", "text_pair": "a b"}], context)
    assert [feature["row"] for feature in features] == [0, 1]
    assert features[1] == {
        "row": 1,
        **find_template(context.tokenizer, pair=True).fill(
            *(tokenize_texts(context.tokenizer, [text])[0].ids for text in ("so", "a b"))
        ),
    }


def test_the_budget_is_what_special_tokens_leave():
    context = make_setup(max_length=10)
    assert token_budget(context, find_template(context.tokenizer, pair=True)) == 7
    with pytest.raises(RecipeError, match="max_length 5 leaves 3 tokens for text - give at least 6"):
        token_budget(make_setup(max_length=5), find_template(context.tokenizer, pair=False))


def test_a_batch_is_padded_to_its_longest_row():
    context = make_setup()
    features = [{"input_ids": [2, 9, 3], "labels": 1}, {"input_ids": np.array([2, 3]), "labels": 0}]
    batch = padding_collator(context)(features)
    pad = context.tokenizer.pad_token_id
    assert batch["input_ids"].tolist() == [[2, 9, 3], [2, 3, pad]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [1, 0]
    assert "labels" not in padding_collator(context)([features[0], {"input_ids": [2, 3]}])


@pytest.mark.parametrize(
    ("longest", "limit", "padded"), [(64, 128, 64), (65, 128, 72), (97, 100, 100), (120, 128, 120)]
)
def test_long_batches_have_few_lengths_within_the_limit_of_the_model(longest, limit, padded):
    features = [{"input_ids": [5] * length, "labels": [1] * length} for length in (3, longest)]
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = limit
    batch = padding_collator(make_setup(tokenizer), label_per_token=True)(features)
    assert {values.shape for values in batch.values()} == {(2, padded)}
    assert batch["attention_mask"].sum(dim=1).tolist() == [3, longest]
    assert (batch["labels"] == 1).sum() == 3 + longest


def test_labels_of_tokens_are_padded_with_one_that_losses_ignore():
    features = [{"input_ids": [2, 9, 3], "labels": [IGNORE_INDEX, 1, IGNORE_INDEX]}, {"input_ids": [2], "labels": [0]}]
    batch = padding_collator(make_setup(), label_per_token=True)(features)
    assert batch["labels"].tolist() == [[IGNORE_INDEX, 1, IGNORE_INDEX], [0, IGNORE_INDEX, IGNORE_INDEX]]
    several = [{"input_ids": [2], "labels": [0.0, 1.0]}]
    assert padding_collator(make_setup(), label_type="float32")(several)["labels"].tolist() == [[0.0, 1.0]]


def test_choices_cost_as_much_as_the_longest_of_them():
    choices = {"input_ids": [[2, 9, 9, 3], [2, 3]]}
    assert (count_tokens(choices), get_max_text_length(choices)) == (8, 4)
    assert count_tokens({"input_ids": [2, 9, 3]}) == get_max_text_length({"input_ids": np.array([2, 9, 3])}) == 3
