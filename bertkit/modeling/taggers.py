"""A small tagger over chosen layers of a frozen encoder (Devlin et al. 2019, section 5.3): the feature-based way.

The encoder's weights stay what they were, so what it says of a text is computed once and kept on disk; only the
tagger is trained, and an epoch costs next to nothing.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import MODEL_MAPPING, PreTrainedModel
from transformers.modeling_outputs import TokenClassifierOutput

from bertkit.modeling import load as models
from bertkit.modeling.layers import LAYERS
from bertkit.storage.cache import cache_folder, touch, writing
from bertkit.tokens.feature_cache import add_values, lengths_of
from bertkit.tokens.features import Collator, Feature

log = logging.getLogger("bertkit")

_ROWS_AT_ONCE = 4096  # whose hidden states are in memory together


class LayerTagger:
    """What `tagger_class` adds to an encoder of transformers; `config.bertkit_head` has layers, tagger and size."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        encoder = MODEL_MAPPING[type(config)]
        wanted = {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(encoder).parameters else {}
        setattr(self, self.base_model_prefix, encoder(config, **wanted))  # type: ignore[attr-defined]
        head = config.bertkit_head
        count = len(range(config.num_hidden_layers + 1)[LAYERS[head["layers"]][0]])
        self.how = LAYERS[head["layers"]][1]
        width = config.hidden_size * (count if self.how == "concat" else 1)
        self.weights = nn.Parameter(torch.zeros(count)) if self.how == "weighted" else None
        self.lstm = None
        if head["tagger"] == "bilstm":
            self.lstm = nn.LSTM(
                width, head["size"] // 2, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1
            )
            width = 2 * (head["size"] // 2)
        self.output = nn.Linear(width, config.num_labels)
        self.post_init()  # type: ignore[attr-defined]
        for parameter in self.base_model.parameters():  # type: ignore[attr-defined]
            parameter.requires_grad = False

    def _init_weights(self, module: Any) -> None:
        """Initialize what transformers does not know how to."""
        if module is self and self.weights is not None:
            nn.init.zeros_(self.weights)
        elif isinstance(module, nn.LSTM):
            module.reset_parameters()
        else:
            super()._init_weights(module)  # type: ignore[misc]

    def train(self, mode: bool = True) -> Any:
        """Switch the tagger to training; the frozen encoder never drops anything out."""
        super().train(mode)  # type: ignore[misc]
        self.base_model.eval()  # type: ignore[attr-defined]
        return self

    def read_states(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        """Give the chosen layers of each token: (rows, tokens, width), or (rows, tokens, layers, width) to weigh."""
        segments = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        with torch.no_grad():
            found = self.base_model(  # type: ignore[attr-defined]
                input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True, **segments
            )
        chosen = found.hidden_states[LAYERS[self.config.bertkit_head["layers"]][0]]  # type: ignore[attr-defined]
        if self.how == "weighted":
            return torch.stack(list(chosen), dim=2)
        return torch.cat(list(chosen), dim=-1) if self.how == "concat" else torch.stack(list(chosen)).sum(dim=0)

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        labels: Any = None,
        states: Any = None,
        **_: Any,
    ) -> Any:
        """Tag every token, from `states` where they are known already."""
        if states is None:
            states = self.read_states(input_ids, attention_mask, token_type_ids)
        # rounded as on disk, so that the same text gives the same answer either way
        states = states.half().float()
        with torch.autocast(states.device.type, enabled=False):
            if self.weights is not None:
                states = (states * self.weights.softmax(dim=0)[:, None]).sum(dim=2)
            if self.lstm is not None:
                lengths = attention_mask.sum(dim=1).cpu()
                packed = pack_padded_sequence(states, lengths, batch_first=True, enforce_sorted=False)
                states, _lengths = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            logits = self.output(states)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return TokenClassifierOutput(loss=loss, logits=logits)


class _StateReader(nn.Module):
    """The part of a tagger that needs no training, as a model of its own."""

    def __init__(self, tagger: Any) -> None:
        super().__init__()
        self.tagger = tagger

    def forward(self, labels: Any = None, **inputs: Any) -> dict[str, Any]:
        return {"states": self.tagger.read_states(**inputs)}


def load_tagger(folder: Path, labels: Sequence[str], head: dict[str, Any] | None, *, new_head: bool) -> Any:
    """Load a model with one output a label for every token.

    Args:
        folder: the checkpoint.
        labels: in the order of the outputs.
        head: what `config.bertkit_head` is to hold; None for an encoder that is trained, with a linear layer.
        new_head: whether it may be untrained; if not, it is the one that the checkpoint has, whatever `head` says.

    Raises:
        ModelError: as `models.load_model` does.
    """
    wanted = head if new_head else models.read_config(folder).get("bertkit_head")
    if wanted is None:
        return models.load_model("AutoModelForTokenClassification", folder, labels, new_head=new_head)
    return models.load_model(tagger_class, folder, labels, new_head=new_head, head=wanted)


@cache
def tagger_class(config_class: type) -> type:
    """Make the tagger for an encoder of this configuration, which loads from any of its checkpoints."""
    encoder = MODEL_MAPPING[config_class]
    base = next(each for each in encoder.__mro__[1:] if issubclass(each, PreTrainedModel))
    name = f"{encoder.__name__.removesuffix('Model')}ForLayerTagging"
    return type(name, (LayerTagger, base), {"__module__": __name__})


def run_states(model: Any, features: Sequence[Feature], run: Callable[..., Any]) -> Any:
    """Give the states of each feature's tokens, shape (tokens, ...), one feature after the other."""
    reader = _StateReader(model)
    for first in range(0, len(features), _ROWS_AT_ONCE):
        part = features[first : first + _ROWS_AT_ONCE]
        for feature, output in zip(part, run(reader, part), strict=True):
            yield output["states"][: len(feature["input_ids"])]


def keep_states(model: Any, features: Sequence[Feature], run: Callable[..., Any], content: str) -> None:
    """Give every feature its ``states``, memory-mapped from a file that is written once for the same content.

    Args:
        model: a tagger.
        features: they get the key ``states``, half precision of shape (tokens, ...).
        run: gives a module's outputs for features.
        content: what the encoder is, such as its fingerprint.
    """
    if not features:
        return
    digest = hashlib.sha256(repr((content, model.config.bertkit_head["layers"])).encode())
    for feature in features:
        digest.update(np.array(feature["input_ids"], dtype=np.int32).tobytes() + b";")
    file = cache_folder("states") / f"{digest.hexdigest()[:32]}.npy"
    ends = np.cumsum(lengths_of(features))
    if file.is_file():
        log.info(f"hidden states of {len(features):,} texts: read from {file}")
        touch(file)
    else:
        _write_states(run_states(model, features, run), int(ends[-1]), file)
        log.info(f"hidden states of {len(features):,} texts: {file.stat().st_size / 1e6:,.0f} MB in {file}")
    states = np.load(file, mmap_mode="r")
    add_values(features, "states", np.split(states, ends[:-1]))


def _write_states(states: Any, tokens: int, file: Path) -> None:
    """Write the states so that the file is there whole or not at all."""
    array, place = None, 0
    with writing(file) as beside:
        for part in states:
            if array is None:
                shape = (tokens, *part.shape[1:])
                array = np.lib.format.open_memmap(beside, mode="w+", dtype=np.float16, shape=shape)
            array[place : place + len(part)] = part
            place += len(part)
        if array is not None:
            array.flush()


def state_collator(pad: Collator) -> Collator:
    """Make a collator that also pads ``states``, where every feature has them."""

    def collate(features: Sequence[Feature]) -> dict[str, torch.Tensor]:
        batch = pad(features)
        if all("states" in feature for feature in features):
            first = features[0]["states"]
            states = np.zeros((*batch["input_ids"].shape, *first.shape[1:]), dtype=np.float16)
            for number, feature in enumerate(features):
                states[number, : len(feature["states"])] = feature["states"]
            batch["states"] = torch.from_numpy(states)
        return batch

    return collate
