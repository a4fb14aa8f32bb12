"""Sparse vectors: one dimension per token of the vocabulary, most values 0 (SPLADE; Formal et al. 2021).

The value in a token's dimension is ln(1 + max(0, m)), where m is the token's highest logit over the positions of the
text. The head of a masked language model computes the logits.

Alternatively, the vector of a query contains fixed weights of its tokens (Geng et al. 2024, "Towards Competitive
Search Relevance For Inference-Free Learned Sparse Retrievers"). Then only documents need the model.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn  # the class, because transformers evaluates the annotations of `SparseHead`
from torch.nn import functional
from transformers import MODEL_FOR_MASKED_LM_MAPPING

from bertkit.errors import ModelError
from bertkit.hardware.device import Device
from bertkit.hardware.tensors import derive, on_host
from bertkit.modeling.checkpoint import load_config, shorten_error
from bertkit.modeling.heads.mixins import extend_class
from bertkit.modeling.info import Model, patch_forward
from bertkit.modeling.load import load_for_pretraining
from bertkit.modeling.sentence.folder import WEIGHTS, SentenceModules, write_sparse
from bertkit.modeling.sentence.head import VectorHead, configure_head
from bertkit.modeling.sentence.losses import Labels, find_positives, margin_mse
from bertkit.tokens.features import Tensors, Tokenizer

# Tokens whose logits over the vocabulary are in memory at a time.
_MAX_TOKENS = 2**10


@dataclass(frozen=True)
class SparseLoss:
    """Loss over dot products, with a penalty for dense vectors (Paria et al. 2020; Formal et al. 2022).

    The penalty is the squared mean of a dimension over the texts of a batch, summed over dimensions. It estimates the
    number of operations of an inverted index (`FlopsLoss` of sentence-transformers). During `warmup`, its weight grows
    quadratically.
    """

    name: str
    """``mnrl`` or ``margin_mse``."""
    query_weight: float
    document_weight: float
    warmup: float = 1 / 3
    """Fraction of training after which the penalty has its full weight."""
    progress: float = 1.0
    """Fraction of training that is done."""

    def __call__(self, vectors: Tensor, labels: Labels, missing: Tensor, static: bool = False) -> Tensor:
        """Compute the loss of vectors (rows, texts, vocabulary); the first text of each row is a query."""
        with torch.autocast(vectors.device.type, enabled=False):
            if self.name == "mnrl":
                loss = find_positives(vectors, missing, 1.0)
            else:
                loss = margin_mse(vectors, labels, missing, 1.0, static)
            # (2, rows * texts): 1 for queries in the first row, and for documents in the second
            is_query = torch.arange(missing.shape[1], device=missing.device) == 0
            masks = (torch.stack([is_query, ~is_query])[:, None] & ~missing).flatten(1).to(vectors)
            means = masks / masks.sum(dim=1, keepdim=True) @ vectors.flatten(0, 1)
            query_cost, document_cost = means.square().sum(dim=1)
            penalty = self.query_weight * query_cost + self.document_weight * document_cost
            total: Tensor = loss + min(1.0, self.progress / max(self.warmup, 1e-9)) ** 2 * penalty
            return total


class SparseHead(VectorHead):
    """Mixin for a masked language model of transformers, without additional weights."""

    reads = "sparse"
    progress = 1.0
    """Fraction of training that is done, which sets the weight of the penalty."""
    query_table: Tensor | None = None
    """Weight of each token of the vocabulary in queries, or None if the model also computes queries."""

    @property
    def compares_rows(self) -> bool:
        """Whether the model has a loss, whose penalty compares the rows of a batch."""
        return self.loss is not None

    def save_pretrained(self, folder: Path | str, **kwargs: object) -> None:
        """Write the masked language model, and the files that sentence-transformers reads."""
        super().save_pretrained(folder, **kwargs)
        vocabulary, has_table = self.config.vocab_size, self.query_table is not None
        table = write_sparse(Path(folder), self.sentence, vocabulary, has_table=has_table)
        if self.query_table is not None:
            save_file({"weight": self.query_table}, table / WEIGHTS)
            # Other programs tokenize queries with this copy, whose limit excludes special tokens.
            tokenizer = deepcopy(self.query_tokenizer)
            max_length = self.sentence.max_length or tokenizer.model_max_length
            tokenizer.model_max_length = max_length - len(tokenizer("")["input_ids"])
            tokenizer.save_pretrained(table)

    def use_table(self, weights: Tensor, tokenizer: Tokenizer) -> None:
        """Compute queries from a weight per token, 0 for special tokens.

        Raises:
            ModelError: If the number of weights differs from the number of tokens, which sentence-transformers rejects.
        """
        if len(weights) != len(tokenizer):
            message = f"the model has outputs for {len(weights):,} tokens, and its tokenizer has {len(tokenizer):,}"
            raise ModelError(message, "leave out options.inference_free")
        special = torch.tensor(tokenizer("")["input_ids"], dtype=torch.long)
        self.query_table, self.query_tokenizer = weights.index_fill(0, special, 0.0), tokenizer

    def _embed_rows(self, batch: list[Any]) -> Tensor:
        """Compute the vectors of rows; the first text is a query, unless it is the only text."""
        if self.query_table is None or batch[0].shape[1] == 1:
            return super()._embed_rows(batch)
        documents = [None if values is None else derive(values, lambda values: values[:, 1:]) for values in batch]
        ids, mask, table = batch[0][:, :1], batch[1][:, :1].float(), self.query_table.to(batch[0].device)
        # 1 for the tokens of the query, (rows, 1, vocabulary); padding writes its mask, 0
        is_present = mask.new_zeros(*ids.shape[:2], len(table)).scatter(-1, ids, mask)
        return torch.cat([is_present * table, super()._embed_rows(documents)], dim=1)

    def set_progress(self, fraction: float) -> None:
        """Set the fraction of training that is done, before each step."""
        self.progress = fraction

    def _get_loss(self, mask: Tensor) -> SparseLoss | None:
        loss: SparseLoss | None = self.loss
        return loss and replace(loss, progress=self.progress)

    def _output(self, vectors: Tensor) -> Tensors:
        """Return the positive values of vectors and their tokens, the highest first. Shape: (rows, texts, maximum)."""
        if self.training:
            return {}
        values, tokens = vectors.topk(int((vectors > 0).sum(dim=-1).max()), dim=-1)
        return {"values": values, "tokens": tokens}

    def _embed(self, ids: Tensor, mask: Tensor, segments: Tensor | None) -> Tensor:
        """Compute vectors (texts, vocabulary)."""
        decoder = self.get_output_embeddings()
        kwargs = {} if segments is None else {"token_type_ids": segments}
        # Make the decoder return (texts, 1, vocabulary), so the logits of all positions are never in memory.
        with patch_forward(decoder, partial(_compute_max_logits, decoder, mask)):
            outputs = super(VectorHead, self).forward(input_ids=ids, attention_mask=mask, **kwargs)
        with torch.autocast(ids.device.type, enabled=False):
            vectors: Tensor = outputs.logits.squeeze(1).float().relu().log1p()
        return vectors


def _compute_max_logits(decoder: nn.Linear, mask: Tensor, states: Tensor) -> Tensor:
    """Compute the highest logit of each vocabulary entry over the positions. Shape: (texts, 1, vocabulary)."""
    max_logits: Tensor
    if Device(states.device.type).shapes_may_change:
        max_logits = _MaxLogits.apply(states, decoder.weight, decoder.bias, mask)  # type: ignore[no-untyped-call]
    else:
        logits = functional.linear(states, decoder.weight, decoder.bias)
        max_logits = logits.masked_fill((mask == 0).unsqueeze(-1), float("-inf")).max(dim=1).values.float()
    return max_logits.unsqueeze(1)


class _MaxLogits(torch.autograd.Function):
    """Maximum over the positions of a linear layer's outputs.

    For each text and vocabulary entry, at most one position has a gradient, and none if the vector is 0 there. So the
    backward pass on a CPU needs no product with the complete vocabulary, and sparser vectors take less time.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor) -> Tensor:
        """Compute maxima (texts, vocabulary) from states (texts, tokens, width) and weights (vocabulary, width)."""
        lengths = on_host(mask).sum(dim=1)
        # Compute texts of similar length together, with little padding.
        order = lengths.argsort(stable=True)
        values = states.new_empty((len(states), len(weight)), dtype=torch.float32)
        positions = torch.empty(values.shape, dtype=torch.long, device=states.device)
        for texts in torch.split(order, max(1, _MAX_TOKENS // states.shape[1])):
            longest = int(lengths[texts[-1]])
            texts = texts.to(states.device, non_blocking=True)
            logits = functional.linear(states[texts, :longest], weight, bias)
            logits.masked_fill_((mask[texts, :longest] == 0).unsqueeze(-1), float("-inf"))
            maxima = logits.max(dim=1)
            values[texts], positions[texts] = maxima.values.float(), maxima.indices
        ctx.save_for_backward(states, weight, positions)
        ctx.has_bias = bias is not None
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of states, weights and bias from the output's gradient (texts, vocabulary)."""
        states, weight, positions = ctx.saved_tensors
        (gradient,) = gradients
        bias_gradient = gradient.sum(dim=0) if ctx.has_bias else None
        if not Device(gradient.device.type).is_cpu:
            return *_multiply_gradients(states, weight, positions, gradient), bias_gradient, None
        state_gradient, weight_gradient = torch.zeros_like(states, dtype=torch.float32), torch.zeros_like(weight)
        for text, text_gradient in enumerate(gradient):
            tokens = text_gradient.nonzero()[:, 0]
            position, factor = positions[text, tokens], text_gradient[tokens].unsqueeze(1)
            weight_gradient[tokens] += factor * states[text, position]
            state_gradient[text].index_add_(0, position, factor * weight[tokens])
        return state_gradient.to(states.dtype), weight_gradient, bias_gradient, None


def _multiply_gradients(states: Any, weight: Any, positions: Any, gradient: Any) -> tuple[Tensor, Tensor]:
    """Compute the gradients of states and weights by full products, for devices on which `nonzero` would wait."""
    state_gradients, weight_gradient = [], torch.zeros_like(weight)
    size = max(1, _MAX_TOKENS // states.shape[1])
    chunks = zip(*(values.split(size) for values in (states, positions, gradient)), strict=True)
    for chunk, position, values in chunks:
        # (texts, tokens, vocabulary): the gradient of each logit
        logits = gradient.new_zeros(*chunk.shape[:2], len(weight)).scatter_(1, position[:, None], values[:, None])
        state_gradients.append((logits @ weight.float()).to(states.dtype))
        weight_gradient += logits.flatten(0, 1).T @ chunk.flatten(0, 1).float()
    return torch.cat(state_gradients), weight_gradient


def load_table(folder: Path) -> Tensor:
    """Load the weight of each token in queries. Shape: (vocabulary,).

    Raises:
        ModelError: If the weights are missing or damaged.
    """
    try:
        return load_file(folder / WEIGHTS)["weight"]
    except (OSError, SafetensorError, KeyError) as error:
        message = f"the weights of queries are damaged: {shorten_error(error)}"
        raise ModelError(message, "fetch the model again", file=folder) from None


def load_sparse_head(
    folder: Path, modules: SentenceModules, loss: SparseLoss | None = None, *, texts_at_once: int | None = None
) -> Model:
    """Load a masked language model in float32 with a `SparseHead`.

    `get_loading_info` returns the names of head weights that the checkpoint lacks.

    Args:
        folder: Folder of a masked language model, or of an encoder, whose head is then initialized randomly.
        modules: Settings for reading texts, which are saved with the model.
        loss: Loss of training, or None if the model is not trained.
        texts_at_once: Maximum number of texts to read at once; by default, as many as fit into memory.

    Raises:
        ModelError: If weights are damaged or do not fit the config.
    """
    config = load_config(folder)
    model_class = extend_class(MODEL_FOR_MASKED_LM_MAPPING[type(config)], SparseHead)
    model = load_for_pretraining(model_class, folder, config)
    configure_head(model, modules, loss, texts_at_once)
    return model
