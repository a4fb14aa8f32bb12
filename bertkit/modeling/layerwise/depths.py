"""How deep each weight of a model lies: below its layers, in one of them, or above. What is frozen or new by depth."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from bertkit.errors import RecipeError
from bertkit.modeling.architectures import layers_of
from bertkit.modeling.info import Model
from bertkit.modeling.weights import initialize_anew


@dataclass(frozen=True)
class Depths:
    """The depth of each weight: 0 for embeddings, 1 for the first layer, and so on; the head is above the last one."""

    layers: int
    of: dict[nn.Parameter, int]

    @property
    def head(self) -> int:
        """The depth of all that stands above the layers: pooler, last norm, and what the task adds."""
        return self.layers + 1

    def select(self, lowest: int, highest: int | None = None) -> list[nn.Parameter]:
        """List the weights from one depth to another, the head's by default."""
        last = self.head if highest is None else highest
        return [weights for weights, depth in self.of.items() if lowest <= depth <= last]


def find_depths(model: Model) -> Depths:
    """Find the depth of each weight of a model with any encoder.

    Of the encoder, what is neither in a layer nor above them counts among the embeddings, such as positions that all
    layers share. Layers that share weights are one.
    """
    base, layers = model.base_model, encoder_layers(model)
    above = {weights for child in children_above(model) for weights in child.parameters()}
    depths = dict.fromkeys(model.parameters(), len(layers) + 1)
    depths |= {weights: 0 for weights in base.parameters() if weights not in above}
    for depth, layer in enumerate(layers, start=1):
        depths |= dict.fromkeys(layer.parameters(), depth)
    return Depths(len(layers), depths)


def encoder_layers(model: Model) -> list[nn.Module]:
    """List the layers of a model of any type; those that share their weights are listed once."""
    from bertkit.modeling.attention import repeated_layers

    return layers_of(model) or repeated_layers(model.base_model)


def children_above(model: Model) -> list[nn.Module]:
    """List the children of the encoder that stand above its layers: a pooler, and what comes after the layers."""
    children, layers = dict(model.base_model.named_children()), encoder_layers(model)
    if not layers:
        return []
    holder = next(number for number, child in enumerate(children.values()) if layers[-1] in child.modules())
    return [child for number, (name, child) in enumerate(children.items()) if number > holder or name == "pooler"]


def freeze(model: Model, what: str | int) -> None:
    """Let the embeddings, these and the first layers, or the whole encoder have no gradients."""
    depths = find_depths(model)
    highest = {"embeddings": 0, "encoder": depths.layers}[what] if isinstance(what, str) else what
    for weights in depths.select(0, highest):
        weights.requires_grad_(False)


def reinitialize(model: Model, count: int) -> None:
    """Initialize the pooler and the top layers anew, as the model initializes them (Zhang et al. 2021, section 5).

    Raises:
        RecipeError: there is nothing to initialize.
    """
    layers = encoder_layers(model)
    poolers = [child for child in children_above(model) if any(isinstance(one, nn.Linear) for one in child.modules())]
    if not poolers and not count:
        what = f"training.reinit_layers 0: this {model.config.model_type} model has no pooler"
        raise RecipeError(what, "leave it out")
    initialize_anew(model, [*layers[len(layers) - count :], *poolers])
