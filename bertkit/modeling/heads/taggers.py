"""Small tagger over selected layers of a frozen encoder: the feature-based approach (Devlin et al. 2019, section 5.3).

The encoder's weights do not change, so its hidden states are computed once and cached on disk. Only the tagger is
trained, so an epoch costs next to nothing.
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
from bertkit.modeling.heads.base import INPUTS, EncoderHead, build_head_class
from bertkit.modeling.info import Config, Model, get_tagger_head
from bertkit.modeling.layers import LAYER_CHOICES
from bertkit.progress import log
from bertkit.storage.cache import cache_folder
from bertkit.storage.disk import ArrayWriter, map_or_write
from bertkit.tokens.feature_cache import add_values, get_lengths
from bertkit.tokens.features import Collator, Features, Tensors

_CACHE_VERSION = 2
# Rows whose hidden states are in memory at the same time.
_CHUNK_ROWS = 4096


class LayerTagger(EncoderHead):
    """Tagger over a frozen encoder; `get_tagger_head` returns its settings: layers, tagger and size."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        head = get_tagger_head(config) or {}
        self.choice = LAYER_CHOICES[head["layers"]]
        # Weights of 0 are equal after the softmax, so training starts with the mean of the layers.
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
        self.post_init()

    def _init_weights(self, module: object) -> None:
        """Initialize the weights of the tagger, which transformers does not know."""
        if module is self and self.weights is not None:
            nn.init.zeros_(self.weights)
        elif isinstance(module, nn.LSTM):
            module.reset_parameters()
        else:
            super()._init_weights(module)

    def train(self, mode: bool = True) -> LayerTagger:
        """Switch the tagger to training mode, but never the encoder, and turn off the encoder's gradients.

        Loading creates parameters that require gradients, and calls this method at the end.
        """
        super().train(mode)
        self.base_model.eval().requires_grad_(False)
        return self

    def read_states(self, **inputs: Tensor) -> Tensor:
        """Compute the hidden states that the tagger reads.

        Shape: (rows, tokens, width), or (rows, tokens, layers, width) if the layers are weighted.
        """
        outputs = self.run_encoder(*map(inputs.get, INPUTS), output_hidden_states=True)
        states = list(outputs.hidden_states[self.choice.states])
        if self.choice.reduction == "weighted":
            return torch.stack(states, dim=2)
        return torch.cat(states, dim=-1) if self.choice.reduction == "concat" else torch.stack(states).sum(dim=0)

    def forward(
        self, labels: Tensor | None = None, states: Tensor | None = None, **inputs: Tensor
    ) -> TokenClassifierOutput:
        """Compute ``logits`` (rows, tokens, labels) and the loss, from cached `states` if they are passed."""
        if states is None:
            states = self.read_states(**inputs)
        # Round to the half precision of the cache, so that logits do not depend on the cache.
        states = states.half().float()
        with torch.autocast(states.device.type, enabled=False):
            if self.weights is not None:
                # (rows, tokens, layers, width) times (layers, 1), summed over layers
                states = (states * self.weights.softmax(dim=0)[:, None]).sum(dim=2)
            if self.lstm is not None:
                # In packed sequences, the backward direction starts at the last token, not at padding.
                lengths, order = on_host(inputs["attention_mask"]).sum(dim=1).sort(descending=True)
                order, back = (index.to(states.device, non_blocking=True) for index in (order, order.argsort()))
                sequences = pack_padded_sequence(states.index_select(0, order), lengths, batch_first=True)
                width = states.shape[1]
                states, _lengths = pad_packed_sequence(self.lstm(sequences)[0], batch_first=True, total_length=width)
                states = states.index_select(0, back)
            logits = self.output(states)
        loss = None if labels is None else functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return TokenClassifierOutput(loss=loss, logits=logits)


class _StateReader(nn.Module):
    """Wrapper of a tagger that returns only the hidden states."""

    def __init__(self, tagger: Model) -> None:
        super().__init__()
        self.tagger = tagger

    def forward(self, labels: Tensor | None = None, **inputs: Tensor) -> Tensors:
        return {"states": self.tagger.read_states(**inputs)}


def build_tagger_class(config_class: type) -> type:
    """Build the class of a `LayerTagger` over an encoder, by the encoder's config class."""
    return build_head_class(LayerTagger, config_class, "ForLayerTagging")


def compute_states(model: Model, features: Features, run: Callable[..., Any]) -> Iterator[Any]:
    """Yield the hidden states of each feature, an array (tokens, ...)."""
    reader = _StateReader(model)
    for start in range(0, len(features), _CHUNK_ROWS):
        chunk = features[start : start + _CHUNK_ROWS]
        for feature, output in zip(chunk, run(reader, chunk), strict=True):
            yield output["states"][: len(feature["input_ids"])]


def cache_states(model: Model, features: Features, run: Callable[..., Any], content: str) -> None:
    """Add the encoder's hidden states to features, memory-mapped from a cache file that is written on the first use.

    Args:
        model: Tagger.
        features: Features, which get the key ``states``: half precision, shape (tokens, ...).
        run: Function that computes a module's outputs for features.
        content: Key of the encoder, such as its fingerprint.
    """
    if not features:
        return
    digest = hashlib.sha256(repr((_CACHE_VERSION, content, (get_tagger_head(model.config) or {})["layers"])).encode())
    # The separator distinguishes texts that have the same tokens together.
    for feature in features:
        digest.update(np.array(feature["input_ids"], dtype=np.int32).tobytes() + b";")
    folder = cache_folder("states") / digest.hexdigest()[:32]
    title = f"hidden states of {len(features):,} texts"
    message = f"{title}: read from {folder}"

    def write() -> None:
        nonlocal message
        # One array for all texts, (tokens of all features, ...).
        with ArrayWriter(folder, {"states": "<f2"}) as writer:
            for states in compute_states(model, features, run):
                writer.append("states", states)
            writer.finish({})
        message = f"{title}: {2 * math.prod(writer.shapes['states']) / 1e6:,.0f} MB in {folder}"

    arrays, _ = map_or_write(folder, write)
    log.info(message)
    # Split the memory-mapped array into one view per text. Pages are read on demand, so states can exceed memory.
    add_values(features, "states", np.split(arrays["states"], np.cumsum(get_lengths(features))[:-1]))


def make_state_collator(pad: Collator) -> Collator:
    """Build a collator that also pads ``states``, if all features have them. Shape: (rows, tokens, ...)."""

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
