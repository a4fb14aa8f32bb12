"""Distillation of hidden states and attention from a teacher (TinyBERT: Jiao et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertkit.errors import ModelError
from bertkit.hardware.device import Device
from bertkit.hardware.tensors import derive, select
from bertkit.modeling.architectures import get_layers
from bertkit.modeling.attention import AttentionMaps, capture_attention, capture_hidden_states, get_attention_map
from bertkit.modeling.heads.base import INPUTS
from bertkit.modeling.info import Model
from bertkit.modeling.layers import match_layers
from bertkit.recipe.records import DistillationConfig
from bertkit.tokens.features import Batch

Pairs = dict[int, int]
"""Layer of the student -> layer of the teacher to compare it with."""

# Name of a submodule of the student that projects its hidden states to the teacher's width.
_PROJECTIONS = "bertkit_projections"
# Index that stands for the embeddings in `Pairs`.
_EMBEDDINGS = -1


def find_layers(model: Model) -> tuple[Any, str, nn.ModuleList]:
    """Return the parent module of the list of a model's layers, the name of the list in it, and the list.

    Raises:
        ModelError: If there is no list of similar layers, for example because layers share their weights.
    """
    count = model.config.num_hidden_layers
    for parent in model.base_model.modules():
        for name, child in parent.named_children():
            is_list = isinstance(child, nn.ModuleList) and len(child) == count
            if is_list and len({tuple(layer.state_dict()) for layer in child}) == 1:
                return parent, name, child
    raise ModelError(f"the layers of a {model.config.model_type} model differ or share weights", "use another model")


@dataclass(eq=False)
class Matching:
    """Comparison of a student's and a teacher's hidden states and attention on the student's current batch.

    Each loss term is a sum over tokens and a mean over the matched layers:

    * Embeddings and hidden states: the squared difference, a mean over the width.
    * Attention: KL(teacher || student), a mean over heads.
    * Attention scores: the squared difference, a mean over heads and attended tokens.
    """

    student: Model
    teacher: Model
    pairs: Mapping[str, Pairs]
    weights: Mapping[str, float]
    precision: str
    states: dict[nn.Module, Tensor] = field(default_factory=dict)
    attention: dict[Any, AttentionMaps] = field(default_factory=dict)

    def __post_init__(self) -> None:
        needs_layers = set(self.pairs) != {"embeddings"}
        self.layers = {
            model: get_layers(model) or list(find_layers(model)[2]) if needs_layers else []
            for model in (self.student, self.teacher)
        }

    @property
    def reads_scores(self) -> bool:
        """Whether attention captures scores, from which log-probabilities are computed if needed."""
        return "attention_scores" in self.pairs

    def sums(self, batch: Batch) -> dict[str, Tensor]:
        """Run the teacher on a batch, and sum each term over the tokens."""
        device = batch["input_ids"].device.type
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=self.precision == "bf16"):
            self.teacher(**{name: batch[name] for name in INPUTS if name in batch})
        return self.compare(batch["attention_mask"].flatten(0, -2))

    def compare(self, mask: Tensor) -> dict[str, Tensor]:
        """Sum each term over real tokens, after both models have run on the batch.

        Args:
            mask: 0 for padding. Shape: (texts, tokens).
        """
        functions = {
            "embeddings": self._compare_states,
            "hidden": self._compare_states,
            "attention": self._compare_attention,
            "attention_scores": self._compare_scores,
        }
        is_token = derive(mask, lambda mask: mask != 0)
        sums = {}
        for name, pairs in self.pairs.items():
            terms = [functions[name](*layers, is_token) for layers in pairs.items()]
            sums[name] = torch.stack(terms).mean(dim=0)
        return sums

    def get_module(self, model: Model, index: int) -> nn.Module:
        """Return a layer of a model, or its embeddings."""
        if index != _EMBEDDINGS:
            layer: nn.Module = self.layers[model][index]
            return layer
        # Without a module for the sum of embeddings, the first layer reads the word embeddings.
        embeddings: nn.Module = getattr(model.base_model, "embeddings", None) or model.get_input_embeddings()
        return embeddings

    def _compare_states(self, student_layer: int, teacher_layer: int, is_token: Tensor) -> Tensor:
        student = _select_tokens(self.states[self.get_module(self.student, student_layer)], is_token)
        teacher = _select_tokens(self.states[self.get_module(self.teacher, teacher_layer)], is_token)
        projections, name = getattr(self.student, _PROJECTIONS, {}), _get_name(student_layer)
        if name in projections:
            student = projections[name](student.float())
        return functional.mse_loss(student.float(), teacher.float(), reduction="none").mean(dim=-1).sum()

    def _compare_attention(self, student_layer: int, teacher_layer: int, is_token: Tensor) -> Tensor:
        student, teacher = self._get_attention(student_layer, teacher_layer, is_token)
        if self.reads_scores:
            student, teacher = student.log_softmax(dim=-1), teacher.log_softmax(dim=-1)
        # Attended padding has the probability 0 in both models; the difference of its logarithms would be noise.
        log_ratio = (teacher - student).masked_fill(teacher < -1e4, 0.0)
        return (teacher.exp() * log_ratio).sum(dim=-1).mean(dim=-1).sum()

    def _compare_scores(self, student_layer: int, teacher_layer: int, is_token: Tensor) -> Tensor:
        student, teacher = self._get_attention(student_layer, teacher_layer, is_token)
        is_masked = teacher < -1e8
        squares = (student - teacher).square().masked_fill(is_masked, 0.0)
        return (squares.sum(dim=-1) / (~is_masked).sum(dim=-1)).mean(dim=-1).sum()

    def _get_attention(self, student_layer: int, teacher_layer: int, is_token: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attention of both models. Shape: (real tokens, heads, attended tokens)."""
        student = get_attention_map(self.layers[self.student][student_layer], self.attention[self.student])
        teacher = get_attention_map(self.layers[self.teacher][teacher_layer], self.attention[self.teacher])
        return _select_tokens(student.transpose(1, 2), is_token), _select_tokens(teacher.transpose(1, 2), is_token)


def _select_tokens(values: Tensor, is_token: Tensor) -> Tensor:
    """Select the values of real tokens: (texts, tokens, ...) to (real tokens, ...).

    On a device that compiles one graph per shape, keep all tokens, and set padding to 0 in both models.
    """
    if Device(values.device.type).shapes_may_change:
        return select(values, is_token)
    return values.where(is_token.view(*is_token.shape, *[1] * (values.dim() - 2)), 0.0).flatten(0, 1)


def _get_name(index: int) -> str:
    """Return the name of a layer's projection, or of the embeddings' projection."""
    return "embeddings" if index == _EMBEDDINGS else str(index)


@contextmanager
def match_models(
    student: Model, teacher: Model, distillation: DistillationConfig, precision: str, *, in_training_only: bool = True
) -> Iterator[Matching]:
    """Capture the hidden states and attention that a recipe matches, inside the `with` block.

    If the widths of the models differ, the student has a learned projection for its embeddings and for each layer (Jiao
    et al. 2020, equation 8), inside the block.

    Args:
        student: Student in training.
        teacher: Frozen teacher.
        distillation: Layers and weights of the loss terms.
        precision: Precision of the teacher, ``fp32`` or ``bf16``.
        in_training_only: Whether to capture no attention of the student in evaluation mode.

    Raises:
        RecipeError: If a model lacks a layer of the recipe.
        ModelError: If layers or heads cannot be compared.
    """
    # 1. Pair the layers.
    maps = {name: getattr(distillation, name) for name in ("hidden", "attention", "attention_scores")}
    sizes = student.config.num_hidden_layers, teacher.config.num_hidden_layers
    pairs = {name: match_layers(layers, *sizes) for name, layers in maps.items() if layers is not None}
    if distillation.embeddings_weight is not None:
        pairs["embeddings"] = {_EMBEDDINGS: _EMBEDDINGS}
    weights = {
        "hidden": distillation.hidden_weight,
        "attention": distillation.attention_weight,
        "attention_scores": distillation.attention_weight,
        "embeddings": distillation.embeddings_weight,
    }
    matching = Matching(student, teacher, pairs, {name: weights[name] or 0.0 for name in pairs}, precision)
    state_pairs = {**pairs.get("hidden", {}), **pairs.get("embeddings", {})}
    with ExitStack() as patches:
        # 2. Capture hidden states and attention.
        for student_layer, teacher_layer in state_pairs.items():
            modules = [matching.get_module(student, student_layer), matching.get_module(teacher, teacher_layer)]
            patches.enter_context(capture_hidden_states(modules, matching.states))
        if {"attention", "attention_scores"} & set(pairs):
            heads = student.config.num_attention_heads, teacher.config.num_attention_heads
            if heads[0] != heads[1]:
                message = f"attention cannot be matched: the student has {heads[0]} heads, the teacher {heads[1]}"
                raise ModelError(message, "match hidden states only")
            scores = matching.reads_scores
            student_maps = capture_attention(student, "student", in_training_only=in_training_only, scores=scores)
            matching.attention[student] = patches.enter_context(student_maps)
            matching.attention[teacher] = patches.enter_context(capture_attention(teacher, "teacher", scores=scores))
        # 3. Add projections between different widths.
        projections = {
            _get_name(index): nn.Linear(*widths, bias=False)
            for index in state_pairs
            if (widths := (_get_width(student, index), _get_width(teacher, index)))[0] != widths[1]
        }
        if projections:
            setattr(student, _PROJECTIONS, nn.ModuleDict(projections).to(student.device))
            patches.callback(delattr, student, _PROJECTIONS)
        yield matching


def _get_width(model: Model, index: int) -> int:
    """Return the width of a layer's hidden states, or of the embeddings, which can differ."""
    width = getattr(model.config, "embedding_size", None) if index == _EMBEDDINGS else None
    return width or model.config.hidden_size  # type: ignore[no-any-return]
