"""Shape of a pruned model, checked against the model's config before anything heavy is imported."""

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
"""Values of `--vocabulary` for the tokens of all rows of a run, or of its training rows."""


@dataclass(frozen=True)
class PruningTarget:
    """Shape of a pruned model; None and an empty vocabulary keep everything."""

    layers: int | tuple[int, ...] | None = None
    """Indices of layers, or the number of layers to choose by measured importance."""
    heads: int | None = None
    """Number of attention heads per layer."""
    intermediate: int | None = None
    """Width of the feed-forward network of each layer."""
    vocabulary: tuple[str, ...] = ()
    """`ROWS`, `TRAINING`, or files and folders of text whose tokens are kept."""

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
        remedy = "give --layers, --heads, --intermediate or --vocabulary"
        raise UsageError("nothing to prune", remedy)
    for name, count in (("heads", heads), ("intermediate", intermediate)):
        if count is not None and count < 1:
            raise UsageError(f"--{name} {count}", "keep at least 1")
    try:
        selection = read_layers(layers)
    except ValueError:
        remedy = "give a number of layers, or indices from 0: --layers 0,2,4; `--layers 0,` keeps only the first"
        raise UsageError(f"--layers {layers}", remedy) from None
    indices = tuple(selection) if isinstance(selection, list) else selection
    return PruningTarget(indices, heads, intermediate, tuple(vocabulary or ()))


def check_shape(shape: PruningTarget, config: Mapping[str, Any]) -> PruningTarget:
    """Check that a model is larger than a shape, and name the layers to keep if all layers share their weights.

    Args:
        shape: Requested shape.
        config: Content of the model's ``config.json``.

    Raises:
        UsageError: If the model has fewer units than the shape.
        ModelError: If configs of this model type have no key for fewer heads or fewer layers.
    """
    # 1. The model has enough layers, neurons and heads.
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

    # 2. Layers of the model can be removed. Groups of layers with shared weights, heads that read certain layers, and
    #    first layers of another shape do not allow it, or not for all layers.
    if config.get("num_hidden_groups", 1) != 1 and shape.layers is not None:
        message = f"--layers: {config['num_hidden_groups']} groups of layers share their weights"
        raise ModelError(message, "prune --intermediate or --vocabulary")
    if shape.layers is not None and get_tagger_head(config):
        message = "--layers: the head of this model reads the states of certain layers"
        raise ModelError(message, "prune --intermediate or --vocabulary")
    if architecture.first_layer_differs and isinstance(shape.layers, tuple) and shape.layers[0] != 0:
        message = f"--layers without 0: the first layer of a {config['model_type']} model differs from the others"
        raise UsageError(message, "keep layer 0")

    # 3. ALBERT's layers share their weights, so none is more important: the first layers are kept without measurement.
    if "num_hidden_groups" in config and isinstance(shape.layers, int):
        return PruningTarget(tuple(range(shape.layers)), shape.heads, shape.intermediate, shape.vocabulary)
    return shape


def _check_heads(heads: int, config: Mapping[str, Any]) -> None:
    model_type, count = config["model_type"], _find_number(config, "n_heads", "num_attention_heads")
    if count is not None and heads > count:
        raise UsageError(f"--heads {heads}: a layer of the model has {count}", f"keep at most {count}")
    if not find_architecture(model_type).stores_head_size:
        message = f"--heads: the config of a {model_type} model cannot describe fewer heads of the same size"
        able = ", ".join(list_types("stores_head_size"))
        remedy = f"prune --layers or --intermediate; {able} can"
        raise ModelError(f"{message}, as hidden_size / heads is their size", remedy)
    hidden = _find_number(config, "hidden_size")
    if count is None or hidden is None:
        return
    shared = count // (config.get("num_key_value_heads") or count)
    # A config of transformers can only describe the same number of heads in each layer, in complete groups.
    possible = [n for n in range(shared, count + 1, shared) if hidden % n == 0]
    if heads not in possible:
        reason = f"they must divide the hidden size {hidden}"
        reason += f", and {shared} share keys and values" if shared > 1 else ""
        raise UsageError(f"--heads {heads}: {reason}", f"one of {', '.join(map(str, possible))}")


def _find_number(config: Mapping[str, Any], *names: str) -> int | None:
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)
