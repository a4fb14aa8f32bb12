"""Which layers a choice takes."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.errors import UsageError
from bertkit.insight.ranking.layers import candidates, check_layers, pool_layers

VECTORS = np.arange(24.0).reshape(2, 4, 3)  # two examples, the embeddings and three layers, of width 3


def test_the_mean_leaves_the_embeddings_out_and_a_number_is_a_layer():
    assert pool_layers("mean")(VECTORS).tolist() == [[6.0, 7.0, 8.0], [18.0, 19.0, 20.0]]
    assert pool_layers("last")(VECTORS).tolist() == pool_layers("3")(VECTORS).tolist() == VECTORS[:, 3].tolist()
    assert pool_layers("0")(VECTORS).tolist() == VECTORS[:, 0].tolist()
    assert candidates("best", 3) == [1, 2, 3] and candidates("mean", 3) == ["mean"]


def test_something_else_is_refused():
    for choice in ("first", "-1", "", "1.0"):
        with pytest.raises(UsageError, match="--layers"):
            check_layers(choice)
    assert check_layers("12") == "12"
