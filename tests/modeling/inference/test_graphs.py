"""Graphs of every head and every architecture compute what torch computes, for any number of texts of any length."""

from __future__ import annotations

import pytest
import torch

from bertkit.errors import ModelError
from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.heads.taggers import build_tagger_class
from bertkit.modeling.inference import graphs
from bertkit.modeling.inference.graphs import check_traceable, disable_autocast, export_graph, make_example_inputs
from bertkit.modeling.info import set_tagger_head
from tests.kills import slow_unless
from tests.modeling.inference.families import FAMILIES, export_family, largest_difference
from tests.workflows.test_model_types import save_encoder

HEADS = ("classes", "hierarchical", "choices", "tags", "questions", "similarity", "sparse", "late")
"""Families of which no two have the same head."""
QUICK = ["windows", "choices", "lists", "sparse"]
"""Families whose test always runs."""
PRECISE = 2e-6
ROUNDED = 2e-3
"""Of taggers over frozen layers, whose hidden states are rounded to half precision: one may round the other way."""


def test_examples_are_texts_of_unlike_lengths():
    inputs = make_example_inputs(("input_ids", "attention_mask"), 100, reads_rows=False)
    assert [tuple(values.shape) for values in inputs.values()] == [(3, 7), (3, 7)]
    assert inputs["attention_mask"].sum(dim=1).tolist() == [7, 5, 7]
    rows = make_example_inputs(("input_ids", "token_type_ids"), 100, reads_rows=True)
    assert [tuple(values.shape) for values in rows.values()] == [(2, 3, 7), (2, 3, 7)]


def test_what_an_exporter_cannot_do_is_said_in_its_words(tiny_model, tmp_path, monkeypatch):
    from transformers import AutoModelForSequenceClassification

    def fail(backend):
        raise RuntimeError("no lowering for\naten::odd")

    monkeypatch.setattr(graphs, "_make_exporter", fail)
    model = AutoModelForSequenceClassification.from_pretrained(tiny_model)
    what = "transformers cannot export a BertForSequenceClassification to onnx: no lowering for aten::odd"
    with pytest.raises(ModelError, match=what):
        export_graph(model, ("input_ids", "attention_mask"), "onnx", tmp_path / "model.onnx")
    assert torch.autocast is torch.amp.autocast


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["onnx", "openvino"])
@pytest.mark.parametrize(
    ("model_type", "family"),
    [*(("bert", family) for family in FAMILIES)]
    + [(name, family) for name in ARCHITECTURES if name not in ("bert", "xmod") for family in HEADS],
)
def test_a_graph_has_the_outputs_of_the_model(model_type, family, backend, tmp_path):
    save_encoder(model_type, tmp_path / "encoder")
    (tmp_path / "graph").mkdir()
    found = export_family(family, tmp_path / "encoder", backend, tmp_path / "graph")
    for one, other in zip(*found.features, strict=True):
        assert [list(ids) if hasattr(ids, "__len__") else ids for ids in one["input_ids"]] == list(other["input_ids"])
    rounds = family in ("tags over layers", "nearest senses")
    assert largest_difference(found) < (ROUNDED if rounds else PRECISE)


@pytest.mark.parametrize("family", slow_unless(QUICK, list(FAMILIES)))
def test_rows_have_the_outputs_of_the_model(family, tiny_model, tmp_path):
    found = export_family(family, tiny_model, "torch", tmp_path)
    assert all(one.keys() == other.keys() - {"loss"} for one, other in zip(found.computed, found.computed, strict=True))
    assert largest_difference(found) < 1e-5


def test_a_bilstm_is_refused_with_the_reason(tiny_model):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(tiny_model)
    set_tagger_head(config, {"layers": "last", "tagger": "bilstm", "size": 8})
    with pytest.raises(ModelError, match=r"packed by length, which torch\.export cannot trace"):
        check_traceable(build_tagger_class(type(config))(config))


def test_an_encoder_with_language_adapters_is_refused_with_the_reason(tmp_path):
    from transformers import AutoModel

    save_encoder("xmod", tmp_path / "encoder")
    with pytest.raises(ModelError, match="language adapters"):
        check_traceable(AutoModel.from_pretrained(tmp_path / "encoder"))


def test_autocast_is_left_alone_while_a_graph_is_traced():
    with disable_autocast(), torch.autocast("cpu", enabled=False):
        pass
    assert torch.autocast is torch.amp.autocast
