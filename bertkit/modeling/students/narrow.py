"""Removal of layers, heads, feed-forward neurons or tokens from a model, in place.

All layers still have the same shape, and the config states it, so any program that loads the model type can load the
result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bertkit.modeling.architectures import get_architecture, shares_layers
from bertkit.modeling.cls_only import cls_only_last_layer, is_cls_only
from bertkit.modeling.info import Config, Model
from bertkit.modeling.layers import layers_to_take
from bertkit.modeling.students.matching import find_layers
from bertkit.modeling.students.units import find_feed_forwards

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def keep_layers(model: Model, indices: Sequence[int]) -> None:
    """Keep only the layers with these indices; if layers share their weights, only their number changes.

    Raises:
        ModelError: If the layers of the model differ.
    """
    config = model.config
    if not shares_layers(config):
        parent, name, layers = _find_layer_list(model)
        setattr(parent, name, nn.ModuleList(layers[index] for index in indices))
    if types := getattr(config, "layer_types", None):
        config.layer_types = [types[index] for index in indices]
    config.num_hidden_layers = len(indices)


def take_layers(model: Model, choice: int | list[int]) -> None:
    """Keep only the layers that `layers_to_take` selects (Sanh et al. 2019, section 3).

    Raises:
        RecipeError: If the model lacks one of the layers.
        ModelError: If the layers of the model differ.
    """
    layers = find_layers(model)[2]
    keep_layers(model, layers_to_take(choice, len(layers)))
    # If the last layer computed the first token only, make the new last layer do so.
    if any(map(is_cls_only, layers)):
        cls_only_last_layer(model)


@contextmanager
def truncate_layers(model: Model, indices: Sequence[int]) -> Iterator[None]:
    """Keep only some layers of a model inside the `with` block; see `keep_layers`."""
    config = model.config
    count, types = config.num_hidden_layers, getattr(config, "layer_types", None)
    parent, name, layers = (None, "", None) if shares_layers(config) else _find_layer_list(model)
    keep_layers(model, indices)
    try:
        yield
    finally:
        config.num_hidden_layers = count
        if types:
            config.layer_types = types
        if parent is not None:
            setattr(parent, name, layers)


def keep_neurons(model: Model, neurons: Sequence[Sequence[int]]) -> None:
    """Keep only some neurons of each feed-forward network, the same number in each.

    Args:
        model: Model that `find_feed_forwards` accepts.
        neurons: Indices of the neurons, one list per feed-forward network.
    """
    for feed_forward, indices in zip(find_feed_forwards(model), neurons, strict=True):
        width, columns = feed_forward.width, torch.tensor(indices)
        for layer in feed_forward.widen:
            # The outputs can be the neurons followed by their gates.
            blocks = range(layer.out_features // width)
            _keep_outputs(layer, torch.cat([columns + block * width for block in blocks]))
        _keep_inputs(feed_forward.narrow, columns)
    name = "hidden_dim" if hasattr(model.config, "hidden_dim") else "intermediate_size"
    setattr(model.config, name, len(neurons[0]))


def keep_heads(model: Model, heads: Sequence[Sequence[int]]) -> None:
    """Keep only some heads of each layer, the same number in each.

    Args:
        model: Model whose config stores the size of a head (`Architecture.stores_head_size`).
        heads: Indices of the heads of each layer, complete groups of heads that share keys and values.
    """
    config = model.config
    count = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // count
    # Query heads that share keys and values.
    group_size = count // count_key_value_heads(config)
    attentions = [
        module for module in model.base_model.modules() if all(hasattr(module, name) for name in _PROJECTIONS)
    ]
    for attention, indices in zip(attentions, heads, strict=True):
        queries = _get_head_rows(indices, size)
        keys = _get_head_rows(sorted({index // group_size for index in indices}), size)
        for name, rows in zip(_PROJECTIONS[:3], (queries, keys, keys), strict=True):
            _keep_outputs(getattr(attention, name), rows)
        _keep_inputs(attention.o_proj, queries)
    config.head_dim = size
    config.num_attention_heads = len(heads[0])
    if getattr(config, "num_key_value_heads", None) is not None:
        config.num_key_value_heads = len(heads[0]) // group_size


def keep_tokens(model: Model, ids: Sequence[int]) -> None:
    """Keep the embeddings and the output weights of some tokens; `ids` lists the tokens in the order of their new ids.

    The ids of special tokens in the config change accordingly.
    """
    rows, size = torch.tensor(ids), model.config.vocab_size
    head = model.get_output_embeddings()
    tables = [model.get_input_embeddings(), *([] if head is None else [head])]
    weights = {id(parameter): parameter for module in tables for parameter in module.parameters()}
    if head is not None:
        biases = (parameter for name, parameter in model.named_parameters() if name.endswith("bias"))
        weights |= {id(parameter): parameter for parameter in biases if tuple(parameter.shape) == (size,)}
    with torch.no_grad():
        for parameter in weights.values():
            parameter[: len(ids)] = parameter[rows].clone()
    model.resize_token_embeddings(len(ids), mean_resizing=False)
    renumber_tokens(model.config, ids)


def renumber_tokens(config: Config, ids: Sequence[int]) -> None:
    """Replace the ids of special tokens in a config by their new ids.

    The id of a removed token becomes None, or the number of tokens if the config requires an integer.
    """
    from huggingface_hub.errors import StrictDataclassFieldValidationError

    new_ids = {old_id: new_id for new_id, old_id in enumerate(ids)}
    for name, value in list(config.to_dict().items()):
        if name.endswith("token_id") and value is not None:
            is_list = isinstance(value, list)
            kept_ids = [new_ids[token_id] for token_id in (value if is_list else [value]) if token_id in new_ids]
            try:
                setattr(config, name, kept_ids if is_list else (kept_ids[0] if kept_ids else None))
            except StrictDataclassFieldValidationError:
                setattr(config, name, len(ids))


def count_key_value_heads(config: Config) -> int:
    """Return the number of key and value heads; several query heads can share one."""
    count: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return count


def _find_layer_list(model: Model) -> tuple[nn.Module, str, nn.ModuleList]:
    """Return the same as `find_layers`, and avoid its search if the model type is known."""
    path = get_architecture(model.config).layers_path
    if path is None:
        return find_layers(model)
    parent_path, _, name = path.rpartition(".")
    parent = model.base_model.get_submodule(parent_path)
    return parent, name, getattr(parent, name)


def _get_head_rows(heads: Sequence[int], size: int) -> Tensor:
    """Return the indices of the outputs of some heads. Shape: (heads * size,).

    >>> _get_head_rows([0, 2], size=3).tolist()
    [0, 1, 2, 6, 7, 8]
    """
    return (torch.tensor(heads)[:, None] * size + torch.arange(size)).flatten()


def _keep_outputs(layer: nn.Linear, rows: Tensor) -> None:
    layer.weight = nn.Parameter(layer.weight.detach()[rows].clone())
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias.detach()[rows].clone())
    layer.out_features = len(rows)


def _keep_inputs(layer: nn.Linear, columns: Tensor) -> None:
    layer.weight = nn.Parameter(layer.weight.detach()[:, columns].clone())
    layer.in_features = len(columns)
