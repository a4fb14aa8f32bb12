"""Students made of their teacher's layers, and the matching of hidden states and attention (Jiao et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from bertkit.errors import ModelError
from bertkit.modeling.attention import AttentionMaps, attention_of, kept_attention, kept_outputs
from bertkit.modeling.cls_only import cls_only_last_layer
from bertkit.modeling.info import info_of
from bertkit.modeling.layers import layers_to_take, match_layers
from bertkit.recipe import Distillation

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Pairs = dict[int, int]
"""Layer of the student -> layer of the teacher that it is compared with."""

_PROJECTIONS = "bertkit_projections"  # submodule of a student: its hidden states in the teacher's width
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def find_layers(model: PreTrainedModel) -> tuple[Any, str, nn.ModuleList]:
    """Find the layers of a model's encoder: the module that holds them, their name there, and the layers.

    Raises:
        ModelError: they are no list of like layers, for example since they share their weights.
    """
    count = model.config.num_hidden_layers
    for parent in model.base_model.modules():
        for name, child in parent.named_children():
            is_list = isinstance(child, nn.ModuleList) and len(child) == count
            if is_list and len({tuple(layer.state_dict()) for layer in child}) == 1:
                return parent, name, child
    raise ModelError(f"the layers of a {model.config.model_type} model differ or share weights", "use another model")


def take_layers(model: PreTrainedModel, choice: int | list[int]) -> None:
    """Keep only some layers of a model, with its embeddings and its head (Sanh et al. 2019, section 3).

    Raises:
        RecipeError: it has no such layers.
        ModelError: its layers cannot be told apart.
    """
    parent, name, layers = find_layers(model)
    taken = [layers[number] for number in layers_to_take(choice, len(layers))]
    setattr(parent, name, nn.ModuleList(taken))
    model.config.num_hidden_layers = len(taken)
    if info_of(model).speed_paths.cls_only_layer is not None:  # the last layer may be another one now
        cls_only_last_layer(model)


class Matching:
    """Compares layers of a student with layers of its teacher, on the batch that the student has just run on.

    Its terms are sums over tokens. For hidden states it is the squared distance, as a mean over their width; for
    attention it is KL(teacher || student), as a mean over heads. Both are means over the matched layers.
    """

    def __init__(
        self,
        student: PreTrainedModel,
        teacher: PreTrainedModel,
        pairs: Mapping[str, Pairs],
        weights: Mapping[str, float],
        precision: str,
    ) -> None:
        self.student, self.teacher, self.precision = student, teacher, precision
        self.pairs, self.weights = pairs, weights
        self.layers = {model: list(find_layers(model)[2]) for model in (student, teacher)}
        self.states: dict[nn.Module, torch.Tensor] = {}
        self.attention: dict[Any, AttentionMaps] = {}

    def sums(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the teacher on a batch, and sum each term over the tokens."""
        device = batch["input_ids"].device.type
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=self.precision == "bf16"):
            self.teacher(**{name: batch[name] for name in _INPUTS if name in batch})
        tokens = batch["attention_mask"].flatten(0, -2).bool()
        compare = {"hidden": self._compare_states, "attention": self._compare_attention}
        return {
            name: torch.stack(
                [compare[name](student_layer, teacher_layer, tokens) for student_layer, teacher_layer in pairs.items()]
            ).mean(dim=0)
            for name, pairs in self.pairs.items()
        }

    def _compare_states(self, student_layer: int, teacher_layer: int, tokens: torch.Tensor) -> torch.Tensor:
        # (rows, tokens, width) picked by a mask of shape (rows, tokens): only real tokens are compared
        student = self.states[self.layers[self.student][student_layer]][tokens]
        teacher = self.states[self.layers[self.teacher][teacher_layer]][tokens]
        projections = getattr(self.student, _PROJECTIONS, {})
        if str(student_layer) in projections:
            student = projections[str(student_layer)](student)
        return functional.mse_loss(student.float(), teacher.float(), reduction="none").mean(dim=-1).sum()

    def _compare_attention(self, student_layer: int, teacher_layer: int, tokens: torch.Tensor) -> torch.Tensor:
        # log-probabilities, (rows, heads, tokens, tokens) -> (real tokens, heads, tokens that they attend to)
        student = attention_of(self.layers[self.student][student_layer], self.attention[self.student])
        teacher = attention_of(self.layers[self.teacher][teacher_layer], self.attention[self.teacher])
        student, teacher = student.transpose(1, 2)[tokens], teacher.transpose(1, 2)[tokens]
        # padding has probability 0 in both; its logarithms are large negative numbers whose difference means nothing
        log_ratio = (teacher - student).masked_fill(teacher < -1e4, 0.0)
        return (teacher.exp() * log_ratio).sum(dim=-1).mean(dim=-1).sum()


@contextmanager
def matched(
    student: PreTrainedModel, teacher: PreTrainedModel, distillation: Distillation, precision: str
) -> Iterator[Matching]:
    """Keep the outputs of the layers that a recipe matches, while a student is trained.

    If their widths differ, the student meanwhile has a learned projection per layer (Jiao et al. 2020, equation 8).

    Raises:
        RecipeError: a model does not have a layer of the recipe.
        ModelError: layers or heads cannot be compared.
    """
    maps = {"hidden": distillation.hidden, "attention": distillation.attention}
    weights = {"hidden": distillation.hidden_weight, "attention": distillation.attention_weight}
    sizes = student.config.num_hidden_layers, teacher.config.num_hidden_layers
    pairs = {name: match_layers(layers, *sizes) for name, layers in maps.items() if layers is not None}
    matching = Matching(student, teacher, pairs, {name: weights[name] for name in pairs}, precision)
    with ExitStack() as patches:
        student_layers, teacher_layers = matching.layers[student], matching.layers[teacher]
        for student_layer, teacher_layer in pairs.get("hidden", {}).items():
            layers = [student_layers[student_layer], teacher_layers[teacher_layer]]
            patches.enter_context(kept_outputs(layers, matching.states))
        if "attention" in pairs:
            _refuse_other_heads(student, teacher)
            for model, in_training_only in ((student, True), (teacher, False)):
                kept = kept_attention(model, in_training_only=in_training_only)
                matching.attention[model] = patches.enter_context(kept)
        widths = student.config.hidden_size, teacher.config.hidden_size
        if widths[0] != widths[1] and "hidden" in pairs:
            projections = {str(layer): nn.Linear(*widths, bias=False) for layer in pairs["hidden"]}
            setattr(student, _PROJECTIONS, nn.ModuleDict(projections).to(student.device))
            patches.callback(delattr, student, _PROJECTIONS)
        yield matching


def _refuse_other_heads(student: PreTrainedModel, teacher: PreTrainedModel) -> None:
    heads = student.config.num_attention_heads, teacher.config.num_attention_heads
    if heads[0] != heads[1]:
        what = f"attention cannot be matched: the student has {heads[0]} heads, the teacher {heads[1]}"
        raise ModelError(what, "match hidden states alone")
