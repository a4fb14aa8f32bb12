"""Late interaction (ColBERT; Khattab and Zaharia 2020): one vector per token.

The score of a query and a document is the sum over the query's tokens of the highest similarity to a token of the
document.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from bertkit.errors import ModelError, RecipeError
from bertkit.hardware.tensors import on_host
from bertkit.modeling.checkpoint import load_config, shorten_error
from bertkit.modeling.heads.base import build_head_class
from bertkit.modeling.info import Config, Model
from bertkit.modeling.load import check_finite, load_weights
from bertkit.modeling.sentence.folder import PROJECTION, WEIGHTS, Dense, SentenceModules, write_late
from bertkit.modeling.sentence.head import SentenceHead, configure_head
from bertkit.modeling.sentence.losses import Labels, get_positive_indices
from bertkit.tokens.features import Tensor

_DIMENSION = 128


@dataclass(frozen=True)
class LateLoss:
    """Cross-entropy of finding each query's positive among all documents of the batch, by `score_texts`."""

    scale: float = 1.0
    """Factor of the scores, the inverse of a temperature."""
    name: str = "mnrl"
    query_tokens: int | None = None
    """Number of tokens of the batch's longest query, to skip padding, or None if unknown."""

    def __call__(self, vectors: Tensor, labels: Labels, missing: Tensor, static: bool = False) -> Tensor:
        """Compute the loss of vectors (rows, texts, tokens, dimension); the first text of each row is a query."""
        with torch.autocast(vectors.device.type, enabled=False):
            queries = vectors[:, 0]
            if not static:
                queries = queries[:, : self.query_tokens]
            # Score one document per row at a time, so that products have the shape (rows, rows, tokens, tokens).
            documents = vectors[:, 1:].unbind(dim=1)
            scores = torch.cat([score_texts(queries, column) for column in documents], dim=1)
            scores = self.scale * scores.masked_fill(missing[:, 1:].T.flatten(), float("-inf"))
            return functional.cross_entropy(scores, get_positive_indices(missing))


def score_texts(queries: Tensor, documents: Tensor) -> Tensor:
    """Score each query with each document. Shape: (queries, documents).

    In this example, the query has two tokens, and the document one token and padding. The score is 0.8 for the first
    token of the query plus 0.6 for the second:

    >>> query, document = torch.eye(2)[None], torch.tensor([[[0.8, 0.6], [0.0, 0.0]]])
    >>> round(score_texts(query, document).item(), 2)
    1.4

    Args:
        queries: Vectors of length 1, or 0 for padding. Shape: (queries, tokens, dimension).
        documents: Vectors of length 1, or 0 for padding. Shape: (documents, tokens, dimension).
    """
    products = torch.einsum("qid,njd->qnij", queries, documents)
    products = products.masked_fill((documents == 0).all(dim=-1)[None, :, None, :], float("-inf"))
    is_token = (queries != 0).any(dim=-1)[:, None, :]
    # Use `where`, because -inf * 0 is NaN.
    return torch.where(is_token, products.amax(dim=-1), 0.0).sum(dim=-1)


class LateHead(SentenceHead):
    """Encoder with a projection of token states to vectors of length 1."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # `load_late_head` replaces this layer by a layer with the right dimension.
        self.projection = nn.Linear(config.hidden_size, 1, bias=False)

    def restore_projection(self, folder: Path) -> None:
        """Load the projection of a checkpoint."""
        load_projection(self.projection, folder / PROJECTION)

    def _write_modules(self, folder: Path, width: int) -> None:
        write_late(folder, self.sentence, width, self.projection.out_features)
        save_file({"linear.weight": self.projection.weight.detach().cpu().contiguous()}, folder / PROJECTION / WEIGHTS)

    def _get_loss(self, mask: Tensor) -> LateLoss | None:
        loss: LateLoss | None = self.loss
        return loss and replace(loss, query_tokens=int(on_host(mask)[:, 0].sum(dim=-1).max()))

    def _concatenate(self, vectors: list[Tensor]) -> Tensor:
        longest = max(chunk.shape[1] for chunk in vectors)
        return torch.cat([functional.pad(chunk, (0, 0, 0, longest - chunk.shape[1])) for chunk in vectors])

    def pool_states(self, states: Tensor, mask: Tensor) -> Tensor:
        """Compute vectors (texts, tokens, dimension), 0 for padding."""
        vectors = self.projection(states)
        with torch.autocast(states.device.type, enabled=False):
            return functional.normalize(vectors.float(), dim=-1).masked_fill(mask.unsqueeze(-1) == 0, 0.0)


def load_projection(layer: nn.Linear, folder: Path) -> None:
    """Load the weights of a projection.

    Raises:
        ModelError: If the weights are missing or damaged, or do not fit.
    """
    try:
        weight = load_file(folder / WEIGHTS)["linear.weight"]
        with torch.no_grad():
            layer.weight.copy_(weight)
    except (OSError, SafetensorError, RuntimeError, KeyError) as error:
        message = f"the weights of the projection are damaged: {shorten_error(error)}"
        raise ModelError(message, "fetch the model again", file=folder) from None


def load_late_head(
    folder: Path,
    modules: SentenceModules,
    dimension: int | None = None,
    loss: LateLoss | None = None,
    *,
    texts_at_once: int | None = None,
) -> Model:
    """Load the encoder of a model folder in float32 with a `LateHead`.

    Args:
        folder: Model folder; the projection of a `MultiVectorEncoder` is kept.
        modules: Settings for reading texts, which are saved with the model.
        dimension: Dimension of the vectors; by default the dimension of the folder's projection, or 128.
        loss: Loss of training, or None if the model is not trained.
        texts_at_once: Maximum number of texts to read at once; by default, as many as fit into memory.

    Raises:
        ModelError: If weights are damaged or do not fit the config.
        RecipeError: If the folder's projection has another dimension.
    """
    config = load_config(folder)
    trained = next((module for module in modules.transforms if isinstance(module, Dense)), None)
    if trained and dimension not in (None, trained.outputs):
        message = f"options.dimension is {dimension}, but the model's vectors have {trained.outputs} dimensions"
        raise RecipeError(message, "leave it out, or start from another model")
    config_class: type = type(config)
    model, _ = load_weights(build_head_class(LateHead, config_class, "ForLateInteraction"), folder, config)
    outputs = trained.outputs if trained else dimension or _DIMENSION
    projection = nn.Linear(config.hidden_size, outputs, bias=False)
    if trained:
        load_projection(projection, trained.folder)
    else:
        nn.init.normal_(projection.weight, std=config.hidden_size**-0.5)
    check_finite([("projection.weight", projection.weight)], folder)
    model.projection = projection
    configure_head(model, modules, loss, texts_at_once)
    return model
