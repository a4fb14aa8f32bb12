"""The table of architectures is true: each speed path equals the plain model, and each record fits its model."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_PRETRAINING_MAPPING_NAMES,
)

from bertkit.errors import ModelError, RecipeError
from bertkit.modeling import architectures
from bertkit.modeling.architectures import (
    ARCHITECTURES,
    Architecture,
    can_be_causal,
    detect_machine,
    find_architecture,
    first_position,
    get_architecture,
    get_layer_sizes,
    get_layers,
    is_causal,
    list_types,
    make_causal,
)
from bertkit.modeling.attention import preserve_sliding_window
from bertkit.modeling.cls_only import cls_only_last_layer, is_cls_only
from bertkit.modeling.dropout import DropoutStream, fast_dropout
from bertkit.modeling.embeddings import UsedEmbeddings, train_used_embeddings
from bertkit.modeling.info import has_patched_attention
from bertkit.modeling.masked_head import run_at_masked
from bertkit.modeling.speed_patches import merge_projections
from bertkit.modeling.students.distilbert import choose_layers, make_student
from bertkit.modeling.unpadding.hooks import unpad_layers
from bertkit.tokens.features import IGNORE_INDEX
from tests.kills import slow_unless
from tests.modeling.tiny_models import VOCABULARY, make_tiny, make_tiny_batch

Batch = dict[str, torch.Tensor]
Gradients = dict[str, torch.Tensor]
PACKAGE = Path(__file__).parents[2] / "bertkit"

walk = pytest.mark.parametrize("model_type", ARCHITECTURES)
QUICK = ["bert", "albert", "deberta-v2", "distilbert", "modernbert", "gte"]
"""One per way of a layer; the others are of a file that one of these has, or nearly."""

# --- speed paths


@contextmanager
def with_cls_only(model: Any) -> Iterator[None]:
    cls_only_last_layer(model)
    yield


def read_logits(model: Any, batch: Batch) -> torch.Tensor:
    """Return the logits of rows, or of real tokens."""
    logits = model(**batch).logits
    return logits if logits.ndim == 2 else logits[batch["attention_mask"].bool()]


def mask_labels(batch: Batch) -> Batch:
    masked = (torch.arange(batch["input_ids"].numel()).view_as(batch["input_ids"]) % 3 == 0) & (batch["input_ids"] > 1)
    return {**batch, "labels": batch["input_ids"].where(masked, IGNORE_INDEX)}


def read_whole_head(model: Any, batch: Batch) -> torch.Tensor:
    labels = mask_labels(batch)["labels"]
    return model(**batch).logits[labels != IGNORE_INDEX]


@dataclass(frozen=True)
class SpeedPath:
    """How to switch a path on, what is read without it and with it, and whether it is used."""

    auto_class: Any
    switch_on: Callable[[Any], AbstractContextManager[Any]]
    is_used: Callable[[Any, object], object]
    """Takes the model and what the context manager yields."""
    is_expected: Callable[[Architecture, str], object]
    dropout: float = 0.0
    read_plain: Callable[[Any, Batch], torch.Tensor] = read_logits
    read_fast: Callable[[Any, Batch], torch.Tensor] = read_logits


SPEED_PATHS = {
    "cls_only": SpeedPath(
        AutoModelForSequenceClassification,
        with_cls_only,
        lambda model, _: any(map(is_cls_only, model.modules())),
        lambda architecture, _: architecture.is_bert_like or architecture.is_rotary,
    ),
    "unpadding": SpeedPath(
        AutoModelForTokenClassification,
        unpad_layers,
        lambda _, layers: layers,
        lambda architecture, _: architecture.can_unpad,
    ),
    "dropout": SpeedPath(  # a probability that rounds to no value of 65,536, so that only the computation is compared
        AutoModelForTokenClassification,
        lambda model: fast_dropout(model, DropoutStream(0)),
        lambda model, _: has_patched_attention(model),
        lambda _, attention: attention == "sdpa",
        dropout=1e-9,
    ),
    "projections": SpeedPath(
        AutoModelForTokenClassification,
        merge_projections,
        lambda _, count: count,
        lambda architecture, _: architecture.model_type not in ("deberta", "deberta-v2", "modernbert"),
    ),
    "embeddings": SpeedPath(
        AutoModelForTokenClassification,
        lambda model: train_used_embeddings(model, make_tiny_batch()["input_ids"].flatten().tolist()),
        lambda _, embeddings: embeddings,
        lambda *_: True,
    ),
    "masked_head": SpeedPath(
        AutoModelForMaskedLM,
        nullcontext,
        lambda *_: True,
        lambda *_: True,
        read_plain=read_whole_head,
        read_fast=lambda model, batch: run_at_masked(model, mask_labels(batch))[0].logits[0],
    ),
}


def run(model: Any, read: Callable[[Any, Batch], torch.Tensor]) -> tuple[torch.Tensor, Gradients]:
    """Return logits, and the gradient of each parameter; that of words as a whole table."""
    logits = read(model, make_tiny_batch())
    (logits * torch.linspace(-1, 1, logits.numel()).view_as(logits)).mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    trimmed = model.get_input_embeddings()
    for name, gradient in gradients.items():
        if isinstance(trimmed, UsedEmbeddings) and gradient is trimmed.weight.grad:
            gradients[name] = torch.zeros(VOCABULARY, gradient.shape[1]).index_copy_(0, trimmed.ids, gradient)
    return logits.detach(), gradients


@pytest.mark.parametrize("path", SPEED_PATHS)
@pytest.mark.parametrize("model_type", slow_unless(QUICK, ARCHITECTURES))
def test_a_speed_path_computes_what_the_plain_model_does(model_type, path):
    speed_path = SPEED_PATHS[path]
    plain, fast = (make_tiny(model_type, speed_path.auto_class, speed_path.dropout) for _ in range(2))
    attention = fast.config._attn_implementation
    logits, gradients = run(plain, speed_path.read_plain)
    with speed_path.switch_on(fast) as yielded:
        used = bool(speed_path.is_used(fast, yielded))
        fast_logits, fast_gradients = run(fast, speed_path.read_fast)
    assert used == bool(speed_path.is_expected(ARCHITECTURES[model_type], attention))
    torch.testing.assert_close(fast_logits, logits, rtol=0, atol=1e-6)
    assert fast_gradients.keys() == gradients.keys()
    exact = min(1e-6, 1e-5 * max(float(gradient.abs().max()) for gradient in gradients.values()))
    for name, gradient in gradients.items():
        torch.testing.assert_close(fast_gradients[name], gradient, rtol=0, atol=exact, msg=name)
    assert fast.config._attn_implementation == attention


# --- records


@walk
def test_positions_start_where_the_embeddings_say(model_type):
    model = make_tiny(model_type, AutoModel).eval()
    ids = make_tiny_batch((7,))["input_ids"]
    if "position_ids" not in inspect.signature(model.forward).parameters:
        assert first_position(model.config) == 0
        return
    positions = first_position(model.config) + torch.arange(7)[None]
    torch.testing.assert_close(model(ids, position_ids=positions)[0], model(ids)[0], rtol=0, atol=1e-6)


@walk
def test_padding_can_be_masked_in_every_type_of_the_table(model_type):
    assert "attention_mask" in inspect.signature(make_tiny(model_type, AutoModel).forward).parameters


def test_positions_of_a_model_without_a_padding_token_start_at_zero():
    config = make_tiny("roberta", AutoModel).config
    assert first_position(config) == 2
    config.pad_token_id = None
    assert first_position(config) == 0


@pytest.mark.parametrize("model_type", slow_unless(QUICK, list_types("separates_documents")))
def test_a_document_of_a_block_is_read_as_it_is_alone(model_type):
    model, ids = make_tiny(model_type, AutoModelForMaskedLM).eval(), make_tiny_batch((9,))["input_ids"]
    document = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]])
    positions = first_position(model.config) + torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    mask = document[:, None, :, None] == document[:, None, None, :]
    preserve_sliding_window(model)
    together = model(ids, attention_mask=mask, position_ids=positions).logits
    alone = [model(part).logits for part in (ids[:, :4], ids[:, 4:])]
    torch.testing.assert_close(together, torch.cat(alone, dim=1), rtol=0, atol=1e-6)


@walk
def test_token_types_are_read_where_the_record_says(model_type):
    parameters = inspect.signature(make_tiny(model_type, AutoModel).forward).parameters
    assert ("token_type_ids" in parameters) == ARCHITECTURES[model_type].reads_token_types


@walk
def test_a_head_over_pairs_is_there_where_the_record_says(model_type):
    auto_class = AutoModelForPreTraining if model_type in MODEL_FOR_PRETRAINING_MAPPING_NAMES else AutoModelForMaskedLM
    outputs = make_tiny(model_type, auto_class)(**make_tiny_batch())
    has_pairs = bool({"seq_relationship_logits", "sop_logits"} & outputs.keys())
    assert has_pairs == ARCHITECTURES[model_type].has_pair_head


@walk
def test_layers_are_found_and_their_products_are_those_that_are_counted(model_type):
    model = make_tiny(model_type, AutoModel)
    architecture, layers = ARCHITECTURES[model_type], get_layers(model)
    assert len(layers) == (2 if architecture.layers_path else 0)
    sizes = get_layer_sizes(model.config)
    assert sizes == ((2, 16, 24) if architecture.has_bert_products else None)
    for layer in layers if architecture.has_bert_products else ():
        products = [module.weight.numel() for module in layer.modules() if isinstance(module, nn.Linear)]
        assert sorted(products) == [16 * 16] * 4 + [16 * 24] * 2


@pytest.mark.parametrize("model_type", slow_unless(QUICK, list_types("student_type")))
def test_students_have_the_type_that_the_record_says(model_type):
    layer = 0 if ARCHITECTURES[model_type].first_layer_differs else 1
    teacher = make_tiny(model_type, AutoModelForMaskedLM).eval()
    student = make_student(teacher, [layer]).eval()
    assert student.config.model_type == ARCHITECTURES[model_type].student_type
    assert student.config.num_hidden_layers == 1
    batch = make_tiny_batch()
    real, computed = batch["attention_mask"].bool(), make_student(teacher, [0, 1]).eval()(**batch).logits
    torch.testing.assert_close(computed[real], teacher(**batch).logits[real], rtol=0, atol=1e-6)
    assert (student(**batch).logits - computed)[real].abs().max() > 1e-6


def test_types_without_students_are_those_whose_layers_cannot_be_taken():
    assert set(ARCHITECTURES) - set(list_types("student_type")) == {"albert"}
    with pytest.raises(
        ModelError, match=r"layers of a teacher of type 'albert': they share their weights - use one of"
    ):
        choose_layers(None, make_tiny("albert", AutoModelForMaskedLM).config)
    with pytest.raises(
        RecipeError, match="the first layer of a modernbert model differs from the others - start with 0"
    ):
        choose_layers([1], make_tiny("modernbert", AutoModelForMaskedLM).config)
    with pytest.raises(ModelError, match="type 'brand-new': they are not known"):
        choose_layers(None, SimpleNamespace(model_type="brand-new"))


def test_a_type_without_a_record_gets_the_plain_path():
    record = get_architecture(SimpleNamespace(model_type="brand-new"))
    assert record == Architecture("brand-new")
    switched_on = {field.name for field in fields(record) if getattr(record, field.name) not in (None, False, 0)}
    assert switched_on == {"model_type", "reads_token_types"}
    assert find_architecture("bert") is ARCHITECTURES["bert"]


def test_a_decoder_has_no_layers_to_patch():
    model = make_tiny("bert", AutoModel)
    model.config.is_decoder = True
    assert get_layers(model) == []


# --- one place


def names_in(file: Path) -> set[str]:
    """Return the names of model types among a module's string literals."""
    names, text = set(ARCHITECTURES) | set(MODEL_FOR_MASKED_LM_MAPPING_NAMES), file.read_text()
    if not re.search(rf"\b({'|'.join(map(re.escape, names))})\b", text):  # to parse all modules takes longer
        return set()
    return {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)} & names


def test_names_of_model_types_stand_in_no_module():
    assert not [file for file in PACKAGE.rglob("*.py") if names_in(file)]


def test_the_table_needs_no_torch():
    tree = ast.parse((PACKAGE / "modeling" / "architectures.py").read_text())
    imported = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    light = {"bertkit.hardware.precision", "bertkit.modeling.info"}  # which import torch in functions, and for types
    assert imported - light == {"__future__", "collections.abc", "dataclasses", "pathlib", "typing"}


@pytest.mark.parametrize(("model_type", "avoids"), [("deberta", True), ("bert", False), ("brand-new", False)])
def test_bf16_is_avoided_where_the_record_says_that_it_overflows(model_type, avoids, monkeypatch):
    asked = []
    monkeypatch.setattr(architectures, "detect_hardware", lambda name, **others: asked.append((name, others)))
    detect_machine("auto", model_type, (2, 3))
    assert asked == [("auto", {"avoid_bf16": avoids, "widths": (2, 3), "threads": None})]


@pytest.mark.parametrize(
    ("model_type", "possible"),
    [("bert", True), ("roberta", True), ("electra", True), ("albert", False), ("modernbert", False)],
)
def test_some_types_have_a_left_to_right_version(model_type, possible):
    config = CONFIG_MAPPING[model_type]()
    assert can_be_causal(config) == possible and not is_causal(config)
    if possible:
        causal = make_causal(config)
        assert is_causal(causal) and not causal.use_cache and not is_causal(config)
