"""Generic heads: loaded from any encoder, trained on the speed paths, saved, and read by plain transformers."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import AutoModel, AutoModelForMaskedLM

from bertkit.errors import ModelError
from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.attention import speed_paths
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.heads.generic import model_class
from bertkit.modeling.info import loading_info_of
from tests.kills import slow_unless
from tests.modeling.tiny_models import load_head, make_tiny, make_tiny_batch

QUESTION, CHOICE = "AutoModelForQuestionAnswering", "AutoModelForMultipleChoice"
HEADS = {
    QUESTION: {"eurobert", "gte", "nomic_bert"},
    CHOICE: {"deberta", "eurobert", "gte", "jina_embeddings_v3", "nomic_bert", "ultrabert"},
}


def make_inputs(auto_class: str) -> dict[str, torch.Tensor]:
    batch = make_tiny_batch()
    if auto_class == CHOICE:
        return {**{name: values.view(2, 2, -1) for name, values in batch.items()}, "labels": torch.tensor([1, 0])}
    return {**batch, "start_positions": torch.tensor([0, 2, 1, 0]), "end_positions": torch.tensor([0, 5, 1, 3])}


@pytest.mark.parametrize("auto_class", HEADS)
def test_generic_heads_stand_in_where_transformers_has_none(auto_class):
    lacking = {
        name for name in ARCHITECTURES if model_class(auto_class, config_class(name)).__module__[:7] == "bertkit"
    }
    assert lacking == HEADS[auto_class]
    assert model_class(auto_class, config_class("bert")) is getattr(transformers, auto_class)


def config_class(model_type: str) -> type:
    return transformers.CONFIG_MAPPING[model_type]  # type: ignore[no-any-return]


CASES = [(name, model_type) for name, types in HEADS.items() for model_type in sorted(types)]
QUICK = [(QUESTION, "eurobert"), (QUESTION, "gte"), (CHOICE, "deberta"), (CHOICE, "gte")]


@pytest.mark.parametrize("case", slow_unless(QUICK, CASES), ids="-".join)
def test_a_head_is_trained_saved_and_loaded(case, tmp_path):
    auto_class, model_type = case
    make_tiny(model_type, AutoModelForMaskedLM).save_pretrained(tmp_path / "encoder")
    model = load_head(auto_class, tmp_path / "encoder", ["a", "b"], new_head=True, cls_only=auto_class == CHOICE)
    assert loading_info_of(model).head == "new"
    with pytest.raises(ModelError, match="no trained head for this task"):
        load_head(auto_class, tmp_path / "encoder", ["a", "b"], new_head=False)
    inputs, optimizer = make_inputs(auto_class), torch.optim.SGD(model.parameters(), lr=0.5)
    with speed_paths(model.train(), DropoutStream(0), unpad=True, tokens=None):
        first = model(**inputs).loss
        first.backward()
        optimizer.step()
        assert model(**inputs).loss < first
    model.save_pretrained(tmp_path / "tuned")
    loaded = load_head(auto_class, tmp_path / "tuned", ["a", "b"], new_head=False)
    torch.testing.assert_close(loaded(**inputs).loss, model.eval()(**inputs).loss, rtol=0, atol=1e-6)
    assert loaded.config.architectures == [type(model).__name__]
    plain = AutoModel.from_pretrained(tmp_path / "tuned").eval()
    expected = loaded.base_model(**make_tiny_batch())[0]
    torch.testing.assert_close(plain(**make_tiny_batch())[0], expected, rtol=0, atol=1e-6)
