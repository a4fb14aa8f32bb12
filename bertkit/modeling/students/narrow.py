"""Models with fewer layers, heads, feed-forward neurons or tokens: weights and config are changed in place.

All layers keep one shape, so the config says all there is to say, and whatever loads the model type loads the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from bertkit.modeling.architectures import architecture_of, shares_layers
from bertkit.modeling.cls_only import cls_only_last_layer, is_cls_only
from bertkit.modeling.info import Config, Model
from bertkit.modeling.layers import layers_to_take
from bertkit.modeling.students.matching import find_layers
from bertkit.modeling.students.units import feed_forwards_of

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def keep_layers(model: Model, numbers: Sequence[int]) -> None:
    """Keep only some layers of a model, in their order; of layers that share all weights, only their number changes.

    Raises:
        ModelError: its layers cannot be told apart.
    """
    config = model.config
    if not shares_layers(config):
        parent, name, layers = _layers_of(model)
        setattr(parent, name, nn.ModuleList(layers[number] for number in numbers))
    if types := getattr(config, "layer_types", None):
        config.layer_types = [types[number] for number in numbers]
    config.num_hidden_layers = len(numbers)


def take_layers(model: Model, choice: int | list[int]) -> None:
    """Keep only some layers of a model, with its embeddings and its head (Sanh et al. 2019, section 3).

    Raises:
        RecipeError: it has no such layers.
        ModelError: its layers cannot be told apart.
    """
    layers = find_layers(model)[2]
    keep_layers(model, layers_to_take(choice, len(layers)))
    # The last layer may be another one now.
    if any(map(is_cls_only, layers)):
        cls_only_last_layer(model)


@contextmanager
def only_layers(model: Model, numbers: Sequence[int]) -> Iterator[None]:
    """Let a model have only some of its layers for a while; raises as `keep_layers` does."""
    config = model.config
    count, types = config.num_hidden_layers, getattr(config, "layer_types", None)
    parent, name, layers = (None, "", None) if shares_layers(config) else _layers_of(model)
    keep_layers(model, numbers)
    try:
        yield
    finally:
        config.num_hidden_layers = count
        if types:
            config.layer_types = types
        if parent is not None:
            setattr(parent, name, layers)


def keep_neurons(model: Model, kept: Sequence[Sequence[int]]) -> None:
    """Keep only some neurons of each feed-forward, as many in each.

    Args:
        model: whose layers are those of `feed_forwards_of`.
        kept: numbers of the neurons, one list per feed-forward.
    """
    for feed_forward, numbers in zip(feed_forwards_of(model), kept, strict=True):
        width, chosen = feed_forward.width, torch.tensor(numbers)
        for layer in feed_forward.widen:
            copies = layer.out_features // width  # both what is gated and the gate
            _keep_outputs(layer, torch.cat([chosen + copy * width for copy in range(copies)]))
        _keep_inputs(feed_forward.narrow, chosen)
    # the former is DistilBERT's
    name = "hidden_dim" if hasattr(model.config, "hidden_dim") else "intermediate_size"
    setattr(model.config, name, len(kept[0]))


def keep_heads(model: Model, kept: Sequence[Sequence[int]]) -> None:
    """Keep only some heads of each attention, as many in each, of a model whose config says how wide a head is.

    Args:
        model: of a type that `Architecture.sets_head_size` marks.
        kept: numbers of the heads of each layer; where several share keys and values, they come together.
    """
    config = model.config
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    shared = heads // key_value_heads(config)
    attentions = [
        module for module in model.base_model.modules() if all(hasattr(module, name) for name in _PROJECTIONS)
    ]
    for attention, numbers in zip(attentions, kept, strict=True):
        queries = _rows_of(torch.tensor(numbers), size)
        keys = _rows_of(torch.tensor(sorted({number // shared for number in numbers})), size)
        for name, rows in zip(_PROJECTIONS[:3], (queries, keys, keys), strict=True):
            _keep_outputs(getattr(attention, name), rows)
        _keep_inputs(attention.o_proj, queries)
    config.head_dim = size
    config.num_attention_heads = len(kept[0])
    if getattr(config, "num_key_value_heads", None) is not None:
        config.num_key_value_heads = len(kept[0]) // shared


def keep_tokens(model: Model, ids: Sequence[int]) -> None:
    """Keep the embeddings of some tokens, numbered anew in this order, and with them the outputs of a head over tokens.

    The ids of special tokens in the config are numbered anew too.
    """
    chosen, size = torch.tensor(ids), model.config.vocab_size
    head = model.get_output_embeddings()
    of_tokens = [model.get_input_embeddings(), *([] if head is None else [head])]
    weights = {id(parameter): parameter for module in of_tokens for parameter in module.parameters()}
    if head is not None:
        own = (parameter for name, parameter in model.named_parameters() if name.endswith("bias"))
        weights |= {id(parameter): parameter for parameter in own if tuple(parameter.shape) == (size,)}
    with torch.no_grad():
        for parameter in weights.values():
            parameter[: len(ids)] = parameter[chosen].clone()
    model.resize_token_embeddings(len(ids), mean_resizing=False)
    renumber_tokens(model.config, ids)


def renumber_tokens(config: Config, ids: Sequence[int]) -> None:
    """Replace the ids of special tokens in a config by their numbers among the tokens that are kept.

    One that no tokenizer has is None, or where the config wants a number, the first that is beyond all tokens.
    """
    from huggingface_hub.errors import StrictDataclassFieldValidationError

    numbers = {before: now for now, before in enumerate(ids)}
    for name, value in list(config.to_dict().items()):
        if name.endswith("token_id") and value is not None:
            several = isinstance(value, list)
            found = [numbers[one] for one in (value if several else [value]) if one in numbers]
            try:
                setattr(config, name, found if several else (found[0] if found else None))
            except StrictDataclassFieldValidationError:
                setattr(config, name, len(ids))


def key_value_heads(config: Config) -> int:
    """Return the number of heads that have keys and values of their own."""
    count: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return count


def _layers_of(model: Model) -> tuple[nn.Module, str, nn.ModuleList]:
    """Find the module that holds the layers of a model, their name there, and the layers; raises as `find_layers`."""
    path = architecture_of(model.config).layers
    if path is None:
        return find_layers(model)
    *above, name = path.split(".")
    parent: Model = model.base_model
    for part in above:
        parent = getattr(parent, part)
    return parent, name, getattr(parent, name)


def _rows_of(heads: torch.Tensor, size: int) -> torch.Tensor:
    """Return the numbers of the outputs of some heads: (heads * size,)."""
    return (heads[:, None] * size + torch.arange(size)).flatten()


def _keep_outputs(layer: nn.Linear, rows: torch.Tensor) -> None:
    layer.weight = nn.Parameter(layer.weight.detach()[rows].clone())
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias.detach()[rows].clone())
    layer.out_features = len(rows)


def _keep_inputs(layer: nn.Linear, columns: torch.Tensor) -> None:
    layer.weight = nn.Parameter(layer.weight.detach()[:, columns].clone())
    layer.in_features = len(columns)
