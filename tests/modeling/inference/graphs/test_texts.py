"""A model as a function of texts says the same of rows as the model itself, for every task family."""

from __future__ import annotations

import pytest
import torch

from bertkit.errors import ModelError
from bertkit.modeling.heads.taggers import tagger_class
from bertkit.modeling.inference.graphs.texts import plain_precision, refuse_untraceable
from bertkit.modeling.info import set_tagger_head
from tests.kills import slow_unless
from tests.modeling.inference.graphs.families import FAMILIES, export_family, largest_difference

QUICK = ["windows", "choices", "lists", "sparse"]


@pytest.mark.parametrize("family", slow_unless(QUICK, list(FAMILIES)))
def test_rows_have_the_outputs_of_the_model(family, tiny_model, tmp_path):
    found = export_family(family, tiny_model, "torch", tmp_path)
    assert all(one.keys() == other.keys() - {"loss"} for one, other in zip(found.computed, found.computed, strict=True))
    assert largest_difference(found) < 1e-5


def test_a_bilstm_is_refused_with_the_reason(tiny_model):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(tiny_model)
    set_tagger_head(config, {"layers": "last", "tagger": "bilstm", "size": 8})
    with pytest.raises(ModelError, match=r"packed by their lengths, which torch\.export cannot trace"):
        refuse_untraceable(tagger_class(type(config))(config))


def test_autocast_is_left_alone_while_a_graph_is_traced():
    with plain_precision(), torch.autocast("cpu", enabled=False):
        pass
    assert torch.autocast is torch.amp.autocast
