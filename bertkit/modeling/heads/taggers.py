"""A small tagger over chosen layers of a frozen encoder: the feature-based approach (Devlin et al. 2019, section 5.3).

The encoder's weights do not change, so its hidden states are computed once and cached on disk. Only the tagger is
trained, and an epoch costs next to nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers.modeling_outputs import TokenClassifierOutput

from bertkit.hardware.tensors import on_host
from bertkit.modeling.heads.base import INPUTS, EncoderHead, with_head
from bertkit.modeling.info import Config, Model, get_tagger_head
from bertkit.modeling.layers import LAYER_CHOICES
from bertkit.progress import log
from bertkit.storage.cache import cache_folder
from bertkit.storage.disk import ArrayWriter, map_or_write
from bertkit.tokens.feature_cache import add_values, get_lengths
from bertkit.tokens.features import Collator, Features, Tensors

_SCHEMA = 2  # version of the cached files
_ROWS_AT_ONCE = 4096  # rows whose hidden states are in memory at the same time


class LayerTagger(EncoderHead):
    """Tagger over a frozen encoder; `get_tagger_head` of its config stores layers, tagger and size."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        head = get_tagger_head(config) or {}
        self.choice = LAYER_CHOICES[head["layers"]]
        # The hidden states are the embeddings and the output of each layer. Weights of 0 are equal after the softmax,
        # so training starts with the mean of the layers.
        count = len(range(config.num_hidden_layers + 1)[self.choice.states])
        width = config.hidden_size * (count if self.choice.reduction == "concat" else 1)
        self.weights = nn.Parameter(torch.zeros(count)) if self.choice.reduction == "weighted" else None
        self.lstm = None
        if head["tagger"] == "bilstm":
            self.lstm = nn.LSTM(
                width, head["size"] // 2, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1
            )
            width = 2 * (head["size"] // 2)
        self.output = nn.Linear(width, config.num_labels)
        self.post_init()  # type: ignore[attr-defined]

    def _init_weights(self, module: object) -> None:
        """Initialize the weights that transformers does not know."""
        if module is self and self.weights is not None:
            nn.init.zeros_(self.weights)
        elif isinstance(module, nn.LSTM):
            module.reset_parameters()
        else:
            super()._init_weights(module)  # type: ignore[misc]

    def train(self, mode: bool = True) -> LayerTagger:
        """Switch the tagger to training mode; the frozen encoder stays without dropout and gradients."""
        super().train(mode)  # type: ignore[misc]
        # Loading makes new parameters, which need gradients, and ends by a call of this method.
        self.base_model.eval().requires_grad_(False)  # type: ignore[attr-defined]
        return self

    def read_states(self, **inputs: Tensor) -> Tensor:
        """Compute each token's chosen layers: (rows, tokens, width), or (rows, tokens, layers, width) if weighted."""
        # The weights need no gradients, so no graph is built, unless `mix_embeddings` needs gradients of inputs.
        outputs = self.run_encoder(*map(inputs.get, INPUTS), output_hidden_states=True)
        chosen = list(outputs.hidden_states[self.choice.states])
        if self.choice.reduction == "weighted":
            return torch.stack(chosen, dim=2)
        return torch.cat(chosen, dim=-1) if self.choice.reduction == "concat" else torch.stack(chosen).sum(dim=0)

    def forward(
        self, labels: Tensor | None = None, states: Tensor | None = None, **inputs: Tensor
    ) -> TokenClassifierOutput:
        """Tag each token, from cached `states` if they are passed."""
        if states is None:
            states = self.read_states(**inputs)
        # The cache stores half precision. Rounding gives a text the same logits from the encoder as from the cache.
        states = states.half().float()
        with torch.autocast(states.device.type, enabled=False):
            if self.weights is not None:
                # (rows, tokens, layers, width) times (layers, 1), summed over layers: (rows, tokens, width)
                states = (states * self.weights.softmax(dim=0)[:, None]).sum(dim=2)
            if self.lstm is not None:
                # In a packed sequence, the backward direction starts at the last token of a text, not at its padding.
                lengths, order = on_host(inputs["attention_mask"]).sum(dim=1).sort(descending=True)
                order, back = (index.to(states.device, non_blocking=True) for index in (order, order.argsort()))
                packed = pack_padded_sequence(states.index_select(0, order), lengths, batch_first=True)
                tokens = states.shape[1]  # a batch may be wider than its longest row
                states, _lengths = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=tokens)
                states = states.index_select(0, back)
            logits = self.output(states)
        loss = None if labels is None else functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return TokenClassifierOutput(loss=loss, logits=logits)


class _StateReader(nn.Module):
    """Frozen part of a tagger, as a model that returns hidden states."""

    def __init__(self, tagger: Model) -> None:
        super().__init__()
        self.tagger = tagger

    def forward(self, labels: Tensor | None = None, **inputs: Tensor) -> Tensors:
        return {"states": self.tagger.read_states(**inputs)}


def tagger_class(config_class: type) -> type:
    """Build the class of a tagger over a config class's encoder, which loads from any checkpoint of that encoder."""
    return with_head(LayerTagger, config_class, "ForLayerTagging")


def compute_states(model: Model, features: Features, run: Callable[..., Any]) -> Iterator[Any]:
    """Yield the hidden states of each feature's tokens, an array (tokens, ...) per feature."""
    reader = _StateReader(model)
    for first in range(0, len(features), _ROWS_AT_ONCE):
        chunk = features[first : first + _ROWS_AT_ONCE]
        for feature, output in zip(chunk, run(reader, chunk), strict=True):
            yield output["states"][: len(feature["input_ids"])]


def cache_states(model: Model, features: Features, run: Callable[..., Any], content: str) -> None:
    """Add ``states`` to every feature, memory-mapped from an array that is written once for the same content.

    Args:
        model: Tagger.
        features: Features; they get the key ``states``, half precision of shape (tokens, ...).
        run: Function that computes a module's outputs for features.
        content: Key of the encoder, such as its fingerprint.
    """
    if not features:
        return
    digest = hashlib.sha256(repr((_SCHEMA, content, (get_tagger_head(model.config) or {})["layers"])).encode())
    # A separator follows each text, because other texts could have the same tokens in sequence.
    for feature in features:
        digest.update(np.array(feature["input_ids"], dtype=np.int32).tobytes() + b";")
    folder = cache_folder("states") / digest.hexdigest()[:32]
    texts = f"hidden states of {len(features):,} texts"
    note = f"{texts}: read from {folder}"

    def write() -> None:
        nonlocal note
        # States are written one text after the other: (tokens of all features, ...).
        with ArrayWriter(folder, {"states": "<f2"}) as writer:
            for states in compute_states(model, features, run):
                writer.append("states", states)
            writer.finish({})
        note = f"{texts}: {2 * math.prod(writer.shapes['states']) / 1e6:,.0f} MB in {folder}"

    arrays, _ = map_or_write(folder, write)
    log.info(note)
    # The array holds all texts in sequence, (tokens of all features, ...), and is split into one view per text. Pages
    # of the file are read when a batch needs them, so states can be larger than memory.
    add_values(features, "states", np.split(arrays["states"], np.cumsum(get_lengths(features))[:-1]))


def state_collator(pad: Collator) -> Collator:
    """Build a collator that also pads ``states`` to (rows, tokens, ...), if all features have them."""

    def collate(features: Features) -> Tensors:
        batch = pad(features)
        if all("states" in feature for feature in features):
            first = features[0]["states"]
            states = np.zeros((*batch["input_ids"].shape, *first.shape[1:]), dtype=np.float16)
            for row, feature in enumerate(features):
                states[row, : len(feature["states"])] = feature["states"]
            batch["states"] = torch.from_numpy(states)
        return batch

    return collate
