"""Which tasks are run together; tests/workflows/finetune/test_several.py runs them on a trained model."""

from __future__ import annotations

from bertkit.evaluation.together import _key


def test_inputs_are_the_same_where_tokens_and_their_types_are():
    pair = {"input_ids": [2, 9, 3], "token_type_ids": [0, 0, 1], "row": 4}
    assert _key(pair) == _key({**pair, "row": 7, "words": [1]})
    assert _key(pair) != _key({**pair, "token_type_ids": [0, 0, 0]})
    assert _key(pair) != _key({**pair, "input_ids": [2, 8, 3]})
