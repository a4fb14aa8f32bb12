"""A model as a function of texts alone: what a graph is traced from.

Models of bertkit read rows, which may have several texts, and leave out the texts that a row lacks. How many there are
depends on the data, which a graph cannot follow. So a graph reads texts, arrays (texts, tokens), and
`bertkit.runtime.model` deals rows out to it. Only the head over windows reads rows itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from transformers.utils import ModelOutput

from bertkit.errors import ModelError
from bertkit.modeling.heads.base import INPUTS
from bertkit.modeling.info import Model, tagger_head
from bertkit.tokens.features import Tensors

_OUTPUTS = ("logits", "start_logits", "end_logits")


class TextGraph(nn.Module):
    """The forward pass of a model, without its loss, its dropout and what was patched for batches of rows."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.reads = model.eval(), getattr(model, "reads", "text")
        """Kind of rows that the model reads, a key of `_COMPUTE`."""
        self.compute = _COMPUTE[self.reads]
        for module in model.modules():
            # a head may be patched to be computed in float32, as a graph is anyway
            if type(module) is nn.Linear:
                vars(module).pop("forward", None)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> Tensors:
        """Compute the outputs of texts (texts, tokens); of a head over windows, of rows (rows, windows, tokens)."""
        return self.compute(self.model, input_ids, attention_mask, token_type_ids)

    def on_arrays(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute arrays of outputs from arrays of texts, as a graph that is exported does."""
        with torch.no_grad():
            found = self(**{name: torch.from_numpy(values) for name, values in batch.items()})
        return {name: values.numpy() for name, values in found.items()}


def _from_text(model: Model, ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor | None) -> Tensors:
    outputs = _run_class(model, ids, mask, segments)
    return {name: outputs[name] for name in _OUTPUTS if name in outputs}


def _from_choice(model: Model, ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor | None) -> Tensors:
    """Read each text as a row with a single choice: logits (texts, 1)."""
    several = (None if values is None else values.unsqueeze(1) for values in (ids, mask, segments))
    return {"logits": _run_class(model, *several).logits}


def _from_windows(model: Model, ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor | None) -> Tensors:
    """Run all windows of a row, also those that it lacks, whose weight is 0."""
    flat = (None if values is None else values.flatten(0, 1) for values in (ids, mask, segments))
    first = model.run_encoder(*flat).last_hidden_state[:, 0]
    return {"logits": model.classify(first.view(*ids.shape[:2], first.shape[-1]), mask.sum(dim=-1) > 1)}


def _from_vectors(model: Model, ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor | None) -> Tensors:
    """Compute what stands for each text, or for each of its tokens, and where a linear layer reads it, logits.

    Other programs pool hidden states themselves, by the files of sentence-transformers that are beside the graph.
    """
    states = model.run_encoder(ids, mask, segments).last_hidden_state
    vectors = model.pool_states(states, mask)
    classify = getattr(model, "logistic", None)
    name = "sentence_embedding" if vectors.dim() == 2 else "token_embeddings"
    logits = {} if classify is None else {"logits": classify(vectors)}
    return {"last_hidden_state": states, name: vectors, **logits}


def _from_masked_head(model: Model, ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor | None) -> Tensors:
    """Compute the highest logit of each token of the vocabulary, as the sparse head does with less memory."""
    logits = _run_class(model, ids, mask, segments).logits
    highest = logits.masked_fill(mask.unsqueeze(-1) == 0, torch.finfo(logits.dtype).min).amax(dim=1)
    return {"vectors": highest.relu().log1p()}


def _run_class(model: Model, *inputs: torch.Tensor | None) -> ModelOutput:
    """Run the forward of a model's class without the mixin that `extend` has added, which reads rows."""
    named = {name: values for name, values in zip(INPUTS, inputs, strict=True) if values is not None}
    model_class: type[Model] = getattr(type(model), "extended_class", type(model))
    return model_class.forward(model, **named)


_COMPUTE: Mapping[str, Callable[[Model, torch.Tensor, torch.Tensor, torch.Tensor | None], Tensors]] = {
    "text": _from_text,
    "choices": _from_choice,
    "passages": _from_text,
    "windows": _from_windows,
    "texts": _from_vectors,
    "sparse": _from_masked_head,
}


def refuse_untraceable(model: Model) -> None:
    """Refuse a head that no graph can follow.

    Raises:
        ModelError: it is a BiLSTM, which packs texts by their lengths.
    """
    head = tagger_head(model.config) or {}
    if head.get("tagger") == "bilstm":
        what = "its tagger is a BiLSTM over texts that are packed by their lengths, which torch.export cannot trace"
        raise ModelError(what, "train one with options.tagger=linear, or without options.layers")


@contextmanager
def plain_precision() -> Iterator[None]:
    """Let code that turns autocast off do so without an operation of its own, which exporters do not know."""
    with patch.object(torch, "autocast", lambda *_, **__: nullcontext()):
        yield
