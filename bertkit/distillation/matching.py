"""Students from the inside: made of their teacher's layers, and led by its hidden states and attention (TinyBERT)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bertkit.errors import ModelError
from bertkit.modeling.attention import AttentionMaps, attention_of, kept_attention
from bertkit.modeling.cls_only import cls_only_last_layer
from bertkit.modeling.info import info_of
from bertkit.modeling.layers import layers_to_take, match_layers
from bertkit.recipe import Distillation

Pairs = dict[int, int]

_PROJECTIONS = "bertkit_projections"  # the part of a student that makes its hidden states as wide as the teacher's
_READ = ("input_ids", "attention_mask", "token_type_ids")


def find_layers(model: Any) -> tuple[Any, str, nn.ModuleList]:
    """Find the layers of a model's encoder: the part that holds them, their name there, and they themselves.

    Raises:
        ModelError: they are not a list of layers of one kind, as where layers share their weights.
    """
    count = model.config.num_hidden_layers
    for part in model.base_model.modules():
        for name, child in part.named_children():
            is_list = isinstance(child, nn.ModuleList) and len(child) == count
            if is_list and len({tuple(layer.state_dict()) for layer in child}) == 1:
                return part, name, child
    raise ModelError(f"the layers of a {model.config.model_type} model differ or share weights", "take another model")


def take_layers(model: Any, wanted: int | list[int]) -> None:
    """Leave a model only some of its layers; embeddings and head stay (Sanh et al. 2019, section 3).

    Raises:
        RecipeError: it has no such layers.
        ModelError: its layers cannot be taken apart.
    """
    part, name, layers = find_layers(model)
    taken = [layers[number] for number in layers_to_take(wanted, len(layers))]
    setattr(part, name, nn.ModuleList(taken))
    model.config.num_hidden_layers = len(taken)
    if info_of(model).speed_paths.cls_only_layer is not None:  # that of the whole model, which the student may not have
        cls_only_last_layer(model)


class Matching:
    """Compares layers of a student, which has just read a batch, with those of a teacher that reads it too.

    Its terms are sums over tokens: of the squared distance of hidden states, mean over their width, and of
    KL(teacher || student) of attention, mean over heads; both are means over the layers that are matched.
    """

    def __init__(
        self, student: Any, teacher: Any, pairs: Mapping[str, Pairs], weights: Mapping[str, float], precision: str
    ) -> None:
        self.student, self.teacher, self.precision = student, teacher, precision
        self.pairs, self.weights = pairs, weights
        self.layers = {model: list(find_layers(model)[2]) for model in (student, teacher)}
        self.states: dict[nn.Module, torch.Tensor] = {}
        self.attention: dict[Any, AttentionMaps] = {}

    def sums(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Give the sum of each term over the tokens of a batch."""
        device = batch["input_ids"].device.type
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=self.precision == "bf16"):
            self.teacher(**{name: batch[name] for name in _READ if name in batch})
        tokens = batch["attention_mask"].flatten(0, -2).bool()
        compare = {"hidden": self._compare_states, "attention": self._compare_attention}
        return {
            name: torch.stack([compare[name](one, other, tokens) for one, other in pairs.items()]).mean(dim=0)
            for name, pairs in self.pairs.items()
        }

    def note(self, layer: nn.Module, _: Any, output: Any) -> None:
        """Keep what a layer gives, as a hook."""
        self.states[layer] = output[0] if isinstance(output, tuple) else output

    def _compare_states(self, one: int, other: int, tokens: torch.Tensor) -> torch.Tensor:
        given = self.states[self.layers[self.student][one]][tokens]
        wanted = self.states[self.layers[self.teacher][other]][tokens]
        projections = getattr(self.student, _PROJECTIONS, {})
        if str(one) in projections:
            given = projections[str(one)](given)
        return functional.mse_loss(given.float(), wanted.float(), reduction="none").mean(dim=-1).sum()

    def _compare_attention(self, one: int, other: int, tokens: torch.Tensor) -> torch.Tensor:
        given = attention_of(self.layers[self.student][one], self.attention[self.student]).transpose(1, 2)[tokens]
        wanted = attention_of(self.layers[self.teacher][other], self.attention[self.teacher]).transpose(1, 2)[tokens]
        gaps = (wanted - given).masked_fill(wanted < -1e4, 0.0)  # a token that is not there gets nothing
        return (wanted.exp() * gaps).sum(dim=-1).mean(dim=-1).sum()


@contextmanager
def matched(student: Any, teacher: Any, wanted: Distillation, precision: str) -> Iterator[Matching]:
    """Watch the layers of both that a recipe matches, while a student is trained.

    Where their widths differ, the student has a learned projection a layer meanwhile (Jiao et al. 2020, equation 8).

    Raises:
        RecipeError: a layer that is not there.
        ModelError: layers or heads that cannot be compared.
    """
    maps = {"hidden": wanted.hidden, "attention": wanted.attention}
    weights = {"hidden": wanted.hidden_weight, "attention": wanted.attention_weight}
    sizes = student.config.num_hidden_layers, teacher.config.num_hidden_layers
    pairs = {name: match_layers(layers, *sizes) for name, layers in maps.items() if layers is not None}
    matching = Matching(student, teacher, pairs, {name: weights[name] for name in pairs}, precision)
    with ExitStack() as watched:
        for one, other in pairs.get("hidden", {}).items():
            for layer in (matching.layers[student][one], matching.layers[teacher][other]):
                watched.callback(layer.register_forward_hook(matching.note).remove)
        if "attention" in pairs:
            _refuse_other_heads(student, teacher)
            for model, in_training_only in ((student, True), (teacher, False)):
                kept = kept_attention(model, in_training_only=in_training_only)
                matching.attention[model] = watched.enter_context(kept)
        widths = student.config.hidden_size, teacher.config.hidden_size
        if widths[0] != widths[1] and "hidden" in pairs:
            projections = {str(one): nn.Linear(*widths, bias=False) for one in pairs["hidden"]}
            setattr(student, _PROJECTIONS, nn.ModuleDict(projections).to(student.device))
            watched.callback(delattr, student, _PROJECTIONS)
        yield matching


def _refuse_other_heads(student: Any, teacher: Any) -> None:
    heads = student.config.num_attention_heads, teacher.config.num_attention_heads
    if heads[0] != heads[1]:
        what = f"attention cannot be matched: the student has {heads[0]} heads, the teacher {heads[1]}"
        raise ModelError(what, "match hidden states alone")
