"""Features of several texts, encoded and padded."""

from __future__ import annotations

from bertkit.recipe import load_recipe
from bertkit.tokens.features import TaskContext
from bertkit.tokens.multi_text import encode_multi_text, hash_text, multi_text_collator
from tests.conftest import make_tokenizer

SETUP = TaskContext(load_recipe("similarity-triples"), make_tokenizer(), ())
ROWS = [[{"text": "the film"}, {"text": "a good book"}], [{"text": "so"}, {"text": "a"}, {"text": "the bad song"}]]


def test_a_row_has_the_features_of_its_texts():
    features = encode_multi_text(ROWS, SETUP)
    alone = [SETUP.tokenizer(text["text"])["input_ids"] for texts in ROWS for text in texts]
    assert [feature["row"] for feature in features] == [0, 1]
    assert [ids for feature in features for ids in feature["input_ids"]] == alone


def test_a_text_that_a_row_lacks_is_one_token():
    features = encode_multi_text(ROWS, SETUP)
    labeled = [{**feature, "labels": 0.5} for feature in features]
    batch = multi_text_collator(SETUP, "float32")(labeled)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, 3, 5)
    assert batch["attention_mask"].sum(dim=-1).tolist() == [[4, 5, 1], [3, 3, 5]]
    assert batch["labels"].tolist() == [0.5, 0.5]
    assert "labels" not in multi_text_collator(SETUP)(features)


def test_numbers_tell_texts_from_each_other():
    texts = [f"text {number}" for number in range(1000)] + ["\ud800"]
    assert len({hash_text(text) for text in texts}) == 1001
