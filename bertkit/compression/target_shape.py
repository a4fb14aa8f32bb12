"""Shape of a pruned model, checked against the model's config before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.errors import ModelError, UsageError
from bertkit.modeling.architectures import find_architecture, list_types
from bertkit.modeling.info import get_tagger_head
from bertkit.modeling.layers import count_layers
from bertkit.recipe.records import read_layers

ROWS, TRAINING = "rows", "train"
"""Values of `--vocabulary` that keep the tokens of all rows of a run, or of its training rows."""


@dataclass(frozen=True)
class PruningTarget:
    """Shape of a pruned model; by default, everything is kept."""

    layers: int | tuple[int, ...] | None = None
    """Indices of layers, or a number of layers to choose by importance."""
    heads: int | None = None
    """Number of attention heads per layer."""
    intermediate: int | None = None
    """Width of the feed-forward network of each layer."""
    vocabulary: tuple[str, ...] = ()
    """Texts whose tokens are kept: files, folders, `ROWS` (of the recipe) or `TRAINING` (its training rows)."""

    @property
    def is_measured(self) -> bool:
        """Whether units are chosen by their importance on rows with gold answers."""
        return isinstance(self.layers, int) or self.heads is not None or self.intermediate is not None


def make_shape(
    layers: str | None, heads: int | None, intermediate: int | None, vocabulary: Sequence[str] | None
) -> PruningTarget:
    """Read a shape from the options of a command.

    Raises:
        UsageError: If nothing is to be pruned, or a number is not positive.
    """
    if layers is None and heads is None and intermediate is None and not vocabulary:
        raise UsageError("nothing to prune", "give --layers, --heads, --intermediate or --vocabulary")
    for name, count in (("heads", heads), ("intermediate", intermediate)):
        if count is not None and count < 1:
            raise UsageError(f"--{name} must be at least 1, got {count}")
    try:
        selection = read_layers(layers)
    except ValueError:
        remedy = "give a number of layers, or indices from 0: --layers 0,2,4; `--layers 0,` keeps only the first"
        raise UsageError(f"--layers {layers}", remedy) from None
    indices = tuple(selection) if isinstance(selection, list) else selection
    return PruningTarget(indices, heads, intermediate, tuple(vocabulary or ()))


def check_shape(shape: PruningTarget, config: Mapping[str, Any]) -> PruningTarget:
    """Check that a model can be pruned to a shape, and return the shape.

    If all layers share their weights, a number of layers is replaced by the indices of the first layers.

    Args:
        shape: Requested shape.
        config: Content of the model's ``config.json``.

    Raises:
        UsageError: If the model has fewer units than the shape.
        ModelError: If this model type cannot have fewer heads or fewer layers.
    """
    # 1. Check that the model has enough layers, neurons and heads.
    architecture = find_architecture(config["model_type"])
    count = count_layers(config)
    min_layers = max(shape.layers) + 1 if isinstance(shape.layers, tuple) else shape.layers
    if min_layers is not None and count is not None and min_layers > count:
        layers = shape.layers if isinstance(shape.layers, int) else ",".join(map(str, shape.layers or ()))
        remedy = f"number them from 0 to {count - 1}" if isinstance(shape.layers, tuple) else f"keep at most {count}"
        raise UsageError(f"--layers {layers}: the model has {count} layers", remedy)
    width = _find_number(config, "hidden_dim", "intermediate_size")
    if shape.intermediate is not None and width is not None and shape.intermediate > width:
        message = f"--intermediate {shape.intermediate}: the feed-forward of a layer has {width} neurons"
        raise UsageError(message, f"keep at most {width}")
    if shape.heads is not None:
        _check_heads(shape.heads, config)

    # 2. Check that the layers can be removed: not if groups of layers share weights, if the head reads certain layers,
    #    or if the first layer, which has another shape, is one of them.
    if config.get("num_hidden_groups", 1) != 1 and shape.layers is not None:
        message = f"--layers: {config['num_hidden_groups']} groups of layers share their weights"
        raise ModelError(message, "prune --intermediate or --vocabulary")
    if shape.layers is not None and get_tagger_head(config):
        message = "--layers: the head of this model reads the states of certain layers"
        raise ModelError(message, "prune --intermediate or --vocabulary")
    if architecture.first_layer_differs and isinstance(shape.layers, tuple) and shape.layers[0] != 0:
        message = f"--layers without 0: the first layer of a {config['model_type']} model differs from the others"
        raise UsageError(message, "keep layer 0")

    # 3. All layers of ALBERT have the same weights, so keep the first layers without measuring importance.
    if "num_hidden_groups" in config and isinstance(shape.layers, int):
        return PruningTarget(tuple(range(shape.layers)), shape.heads, shape.intermediate, shape.vocabulary)
    return shape


def _check_heads(heads: int, config: Mapping[str, Any]) -> None:
    model_type, count = config["model_type"], _find_number(config, "n_heads", "num_attention_heads")
    if count is not None and heads > count:
        raise UsageError(f"--heads {heads}: a layer of the model has {count} heads", f"keep at most {count}")
    if not find_architecture(model_type).stores_head_size:
        message = f"--heads: the config of a {model_type} model cannot describe fewer heads of the same size"
        types = ", ".join(list_types("stores_head_size"))
        remedy = f"prune --layers or --intermediate; {types} can"
        raise ModelError(f"{message}, because their size is always hidden_size / heads", remedy)
    hidden = _find_number(config, "hidden_size")
    if count is None or hidden is None:
        return
    group_size = count // (config.get("num_key_value_heads") or count)
    # In a config of transformers, all layers have the same number of heads, in complete groups.
    allowed_heads = [n for n in range(group_size, count + 1, group_size) if hidden % n == 0]
    if heads not in allowed_heads:
        reason = f"they must divide the hidden size {hidden}"
        reason += f", and {group_size} share keys and values" if group_size > 1 else ""
        raise UsageError(f"--heads {heads}: {reason}", f"one of {', '.join(map(str, allowed_heads))}")


def _find_number(config: Mapping[str, Any], *names: str) -> int | None:
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)
