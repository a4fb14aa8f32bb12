"""Train sparse vectors that find the text that belongs to another: one dimension per token, few of them not 0 (SPLADE).

Rows are those of `contrastive`. Vectors are compared by dot products, and what these cost in an inverted index is part
of the loss (Formal et al. 2021, 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.metrics import Numbers
from bertkit.metrics.basic import Undefined
from bertkit.metrics.retrieval import partner_ranks
from bertkit.modeling.heads.targets import Target
from bertkit.modeling.info import Model, get_loading_info
from bertkit.modeling.sentence import texts
from bertkit.modeling.sentence.folder import SPARSE, read_format
from bertkit.progress import log
from bertkit.recipe.records import Option, read_option
from bertkit.recipe.sections import Row
from bertkit.tasks import Details, Outputs, Prediction, Predictions, contrastive
from bertkit.tokens.features import Batch, Feature, Features, Rows, Setup, Tensor

if TYPE_CHECKING:
    from scipy.sparse import csr_array


_ACTIVE = ("query_active_dims", "document_active_dims")

COLUMNS = contrastive.COLUMNS
TYPES = contrastive.TYPES
METRICS: tuple[str, ...] = (*contrastive.METRICS, *_ACTIVE)
OPTIONS: Mapping[str, Any] = {
    "loss": contrastive.OPTIONS["loss"],
    "query_weight": Option(5e-5, minimum=0),
    "document_weight": Option(3e-5, minimum=0),
    "warmup": Option(1 / 3, minimum=0, maximum=1),
    "prompts": texts.OPTIONS["prompts"],
    "mini_batch": texts.OPTIONS["mini_batch"],
}

read, collator, baselines = contrastive.read, contrastive.collator, contrastive.baselines


def load_model(folder: Path, setup: Setup, *, new_head: bool) -> Model:
    """Load a masked language model, whose head makes the vectors."""
    from bertkit.modeling.sentence.sparse import SparseLoss, load_sparse_head

    if not new_head:
        texts.check_format(folder, SPARSE)
        return load_sparse_head(folder, read_format(folder, SPARSE))
    query, document, warmup, mini_batch = (
        read_option(OPTIONS, setup.recipe, name) for name in ("query_weight", "document_weight", "warmup", "mini_batch")
    )
    loss = SparseLoss(contrastive.loss_of(setup.recipe), float(query), float(document), float(warmup))
    model = load_sparse_head(
        folder, texts.modules_of(folder, setup, SPARSE), loss, texts_at_once=mini_batch and int(mini_batch)
    )
    model.config.pad_token_id = setup.tokenizer.pad_token_id  # as `load_pretrained` does
    if get_loading_info(model).new_weights:
        log.info(
            "the model has no head of a masked language model: vectors start from random weights, and need more rows"
        )
    return model


def encode(rows: Rows, setup: Setup) -> list[Feature]:
    """Encode anchor, positive and negatives as `contrastive` does."""
    return contrastive.encode_for(rows, setup, SPARSE)


def decode(outputs: Outputs, features: Features, rows: Rows, setup: Setup) -> list[Prediction]:
    """Return the dot products of the anchor with positive and negatives, and how many dimensions of two are not 0."""
    # a model may have more outputs than its tokenizer has tokens
    width = 1 + max((int(output["tokens"].max(initial=0)) for output in outputs), default=0)
    decoded = []
    for row, output in zip(rows, outputs, strict=True):
        count = len(contrastive.texts_of(row))  # another row of the batch may have had more
        vectors = as_matrix(output["values"][:count], output["tokens"][:count], width)
        scores = (vectors[1:] @ vectors[[0]].T).toarray()[:, 0].tolist()
        active = dict(zip(_ACTIVE, np.diff(vectors.indptr)[:2].tolist(), strict=True))
        decoded.append(contrastive.make_record(scores, **active, _vectors=(vectors[[0]], vectors[[1]])))
    return decoded


def targets(prediction: Prediction, outputs: Outputs, features: Features, row: Row, setup: Setup) -> list[Target]:
    """Return what can be explained: the dot product of anchor and positive."""

    def score(outputs: Batch) -> Tensor:
        values, tokens = outputs["values"].float(), outputs["tokens"]
        # products of all pairs of dimensions, of which those of one token count: (inputs, most, most)
        same = tokens[:, 0, :, None] == tokens[:, 1, None, :]
        return (values[:, 0, :, None] * values[:, 1, None, :] * same).sum(dim=(1, 2))

    return [Target("similarity", score, "dot product")]


def as_matrix(values: Numbers, tokens: Numbers, width: int) -> csr_array:
    """Build a sparse matrix (texts, width) of values and their tokens, (texts, most of any text)."""
    from scipy.sparse import csr_array

    kept = values > 0
    starts = np.cumsum([0, *kept.sum(axis=1)])
    return csr_array((values[kept].astype(np.float64), tokens[kept].astype(np.int64), starts), (len(values), width))


def compare(predictions: Predictions, rows: Rows, setup: Setup) -> dict[str, Any]:
    """Return what `contrastive` does, and the active dimensions of each row's anchor and positive."""
    from scipy.sparse import vstack

    if "_rank" in predictions[0]:  # of a baseline, which has no vectors
        none = np.full(len(rows), np.nan)
        return {**contrastive.compare(predictions, rows, setup), **dict.fromkeys(_ACTIVE, none)}
    anchors, positives = (vstack(vectors, "csr") for vectors in zip(*(p["_vectors"] for p in predictions), strict=True))
    ranks = partner_ranks(rows, lambda one, other: (anchors[one] @ positives[other].T).toarray())
    active = {name: np.array([record[name] for record in predictions], dtype=np.float64) for name in _ACTIVE}
    return {**contrastive.compare_ranks(predictions, ranks), **active}


def score(compared: Mapping[str, Any], setup: Setup) -> dict[str, float]:
    """Compute the scores of `contrastive`, and the mean number of active dimensions of anchors and of positives."""
    scores = contrastive.score_ranks(compared)
    for name in _ACTIVE:
        mean = float(compared[name].mean())
        scores[name] = Undefined("a baseline has no vectors") if np.isnan(mean) else mean
    return {name: scores[name] for name in setup.recipe.metrics}


def details(predictions: Predictions, rows: Rows, setup: Setup) -> Details:
    """Report each row's rank as text."""
    return Details(answers=contrastive.answers_of(compare(predictions, rows, setup), predictions))
