"""Train sparse vectors to find the text that belongs to another text (SPLADE; Formal et al. 2021, 2022).

A vector has one dimension per vocabulary entry, and most are 0. Rows are read as in `contrastive`. Vectors are compared
by dot products, and the loss includes their cost in an inverted index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.metrics.intervals import Metric
from bertkit.metrics.retrieval import ACTIVE_DIMENSIONS, rank_positives
from bertkit.modeling.heads.targets import Target
from bertkit.modeling.info import Model, get_loading_info
from bertkit.modeling.sentence import texts
from bertkit.modeling.sentence.folder import SPARSE, read_format
from bertkit.progress import log
from bertkit.recipe.records import Option, read_option
from bertkit.recipe.sections import Row
from bertkit.tasks import Outputs, Prediction, Predictions, RunModule, TaskReport, contrastive, score_table
from bertkit.tokens.features import Batch, Feature, Features, Rows, TaskContext, Tensor

if TYPE_CHECKING:
    from scipy.sparse import csr_array


COLUMNS = contrastive.COLUMNS
TYPES = contrastive.TYPES
METRICS: Mapping[str, Metric] = {**contrastive.METRICS, **ACTIVE_DIMENSIONS}
OPTIONS: Mapping[str, Any] = {
    "loss": Option("mnrl", choices=("mnrl", "margin_mse")),
    "query_weight": Option(5e-5, minimum=0),
    "document_weight": Option(3e-5, minimum=0),
    "warmup": Option(1 / 3, minimum=0, maximum=1),
    "inference_free": Option(False),
    "prompts": texts.OPTIONS["prompts"],
    "mini_batch": texts.OPTIONS["mini_batch"],
}

read, collator, baselines = contrastive.read, contrastive.collator, contrastive.baselines
score = partial(score_table, METRICS)


def load_model(folder: Path, context: TaskContext, *, new_head: bool) -> Model:
    """Load a masked language model, whose head computes the vectors."""
    import torch

    from bertkit.modeling.sentence.sparse import SparseLoss, load_sparse_head, load_table

    if not new_head:
        texts.check_format(folder, SPARSE)
        modules = read_format(folder, SPARSE)
        model = load_sparse_head(folder, modules)
        if modules.query_table:
            model.query_table, model.query_tokenizer = load_table(modules.query_table), context.tokenizer
        return model
    query_weight, document_weight, warmup, mini_batch, is_inference_free = (
        read_option(OPTIONS, context.recipe, name)
        for name in ("query_weight", "document_weight", "warmup", "mini_batch", "inference_free")
    )
    # Training cannot lower the cost of queries whose vectors come from a fixed table.
    weights = 0.0 if is_inference_free else float(query_weight), float(document_weight)
    loss = SparseLoss(contrastive.get_loss_name(context.recipe), *weights, float(warmup))
    model = load_sparse_head(
        folder, texts.resolve_modules(folder, context, SPARSE), loss, texts_at_once=mini_batch and int(mini_batch)
    )
    # `load_pretrained` sets the id, too.
    model.config.pad_token_id = context.tokenizer.pad_token_id
    if is_inference_free:
        # `precompute` sets the weights.
        model.use_table(torch.ones(model.config.vocab_size), context.tokenizer)
    if get_loading_info(model).new_weights:
        log.info("the model has no masked-language-model head: vectors start from random weights, and need more rows")
    return model


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode anchor, positive and negatives as `contrastive` does."""
    return contrastive.encode_in_format(rows, context, SPARSE)


def precompute(model: Model, features: Mapping[str, Features], context: TaskContext, run: RunModule) -> bool:
    """Weigh query tokens by their inverse document frequency in the training positives, as BM25 does, if they need it.

    Queries need weights if they are not encoded by the model (``inference_free``).
    """
    if model.query_table is None:
        return False
    # A token in n of N texts has the weight ln(1 + (N - n + 0.5) / (n + 0.5)) (Robertson and Zaragoza 2009).
    train_features, counts = features["train"], np.zeros(model.config.vocab_size)
    for feature in train_features:
        counts[np.unique(feature["input_ids"][1])] += 1
    idf = np.log1p((len(train_features) - counts + 0.5) / (counts + 0.5))
    model.query_table *= model.query_table.new_tensor(idf)
    return False


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Return the dot products of the anchor with positive and negatives, and the active dimensions of the first two."""
    # A model can have more outputs than its tokenizer has tokens.
    width = 1 + max((int(output["tokens"].max(initial=0)) for output in outputs), default=0)
    decoded = []
    for row, output in zip(rows, outputs, strict=True):
        # Texts after these are padding.
        count = len(contrastive.list_texts(row))
        vectors = as_matrix(output["values"][:count], output["tokens"][:count], width)
        scores = (vectors[1:] @ vectors[[0]].T).toarray()[:, 0].tolist()
        # `indptr` counts the values before each row, so its differences are the active dimensions of each text.
        active = dict(zip(ACTIVE_DIMENSIONS, np.diff(vectors.indptr)[:2].tolist(), strict=True))
        decoded.append(contrastive.make_record(scores, **active, _vectors=(vectors[[0]], vectors[[1]])))
    return decoded


def targets(
    prediction: Prediction, outputs: Outputs, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Return the explainable outputs: the dot product of anchor and positive."""

    def score(outputs: Batch) -> Tensor:
        values, tokens = outputs["values"].float(), outputs["tokens"]
        # Multiply all pairs of active dimensions, and keep the products with equal tokens. Shape: (inputs, max, max).
        is_same = tokens[:, 0, :, None] == tokens[:, 1, None, :]
        return (values[:, 0, :, None] * values[:, 1, None, :] * is_same).sum(dim=(1, 2))

    return [Target("similarity", score, "dot product")]


def as_matrix(values: np.ndarray, tokens: np.ndarray, width: int) -> csr_array:
    """Build a sparse matrix of shape (texts, width) from values and their tokens, of shape (texts, max dimensions)."""
    from scipy.sparse import csr_array

    # The values [[0.5, 0.25, 0], [1, 0, 0]] of the tokens [[3, 7, 0], [7, 0, 0]] are a matrix with 0.5 and 0.25 in the
    # columns 3 and 7 of row 0, and 1 in column 7 of row 1. `starts` is [0, 2, 3]. The dot product of the rows is 0.25.
    active = values > 0
    starts = np.cumsum([0, *active.sum(axis=1)])
    return csr_array((values[active].astype(np.float64), tokens[active].astype(np.int64), starts), (len(values), width))


def compare(predictions: Predictions, rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Return the arrays of `contrastive.compare`, and the active dimensions of each anchor and positive.

    Active dimensions are NaN for baselines, which have no vectors.
    """
    from scipy.sparse import vstack

    def rank(anchors: Sequence[Any], positives: Sequence[Any]) -> np.ndarray:
        first, second = vstack(anchors, "csr"), vstack(positives, "csr")
        return rank_positives(rows, lambda rows_a, rows_b: (first[rows_a] @ second[rows_b].T).toarray())

    counts = {name: [record.get(name, np.nan) for record in predictions] for name in ACTIVE_DIMENSIONS}
    active = {name: np.array(values, dtype=np.float64) for name, values in counts.items()}
    return {**contrastive.compare_ranks(predictions, rank), **active}


def details(predictions: Predictions, rows: Rows, context: TaskContext) -> TaskReport:
    """Report the rank of each row's positive."""
    return TaskReport(answers=contrastive.list_rank_answers(compare(predictions, rows, context), predictions))
