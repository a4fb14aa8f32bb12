"""What a model is pruned to: read from options, and checked against its config."""

from __future__ import annotations

import pytest

from bertkit.compression.target_shape import PruningTarget, check_shape, make_shape
from bertkit.errors import ModelError, UsageError

BERT = {
    "model_type": "bert",
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "hidden_size": 48,
    "intermediate_size": 96,
}
ROTARY = {**BERT, "model_type": "eurobert", "num_key_value_heads": 4}
ALBERT = {**BERT, "model_type": "albert", "num_hidden_groups": 1}


def test_options_become_a_shape():
    assert make_shape("4", None, None, None) == PruningTarget(layers=4)
    assert make_shape("0,", None, None, None) == PruningTarget(layers=(0,))
    assert make_shape("0,2", 3, 8, ["rows"]) == PruningTarget((0, 2), 3, 8, ("rows",))
    assert make_shape("4", None, None, None).is_measured and not make_shape("0,1", None, None, ["rows"]).is_measured


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((None, None, None, None), "nothing to prune - give --layers, --heads, --intermediate or --vocabulary"),
        (("0", None, None, None), "--layers 0 - give a number of layers, or indices from 0"),
        (("2,1", None, None, None), "--layers 2,1 - give a number of layers"),
        ((None, 0, None, None), "--heads must be at least 1, got 0"),
        ((None, None, -1, None), "--intermediate must be at least 1, got -1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(UsageError) as error:
        make_shape(*options)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("shape", "config", "error", "message"),
    [
        (PruningTarget(layers=7), BERT, UsageError, "--layers 7: the model has 6 layers - keep at most 6"),
        (
            PruningTarget(layers=(0, 6)),
            BERT,
            UsageError,
            "--layers 0,6: the model has 6 layers - number them from 0 to 5",
        ),
        (
            PruningTarget(intermediate=97),
            BERT,
            UsageError,
            "--intermediate 97: the feed-forward of a layer has 96 neurons",
        ),
        (PruningTarget(heads=13), BERT, UsageError, "--heads 13: a layer of the model has 12 heads - keep at most 12"),
        (PruningTarget(heads=6), BERT, ModelError, "--heads: the config of a bert model cannot describe fewer heads"),
        (
            PruningTarget(heads=4),
            ROTARY,
            UsageError,
            "--heads 4: they must divide the hidden size 48, and 3 share keys",
        ),
        (PruningTarget(layers=2), {**ALBERT, "num_hidden_groups": 2}, ModelError, "--layers: 2 groups of layers share"),
        (
            PruningTarget(layers=2),
            {**BERT, "bertkit_head": {"layers": "last"}},
            ModelError,
            "--layers: the head of this model",
        ),
        (
            PruningTarget(layers=(1, 2)),
            {**BERT, "model_type": "modernbert"},
            UsageError,
            "--layers without 0: the first layer",
        ),
    ],
)
def test_what_a_model_does_not_have_is_refused(shape, config, error, message):
    with pytest.raises(error) as raised:
        check_shape(shape, config)
    assert str(raised.value).startswith(message)


def test_what_a_model_has_is_kept():
    shape = PruningTarget(layers=3, intermediate=96)
    assert check_shape(shape, BERT) == shape
    assert check_shape(PruningTarget(heads=6), ROTARY) == PruningTarget(heads=6)
    distilbert = {"model_type": "distilbert", "n_layers": 2, "n_heads": 2, "dim": 8, "hidden_dim": 16}
    with pytest.raises(UsageError, match="has 16 neurons"):
        check_shape(PruningTarget(intermediate=17), distilbert)


def test_layers_that_are_one_need_no_choice():
    assert check_shape(PruningTarget(layers=2), ALBERT) == PruningTarget(layers=(0, 1))
