"""Train sparse vectors that find the text that belongs to another: one dimension per token, few of them not 0 (SPLADE).

Rows are read as in `contrastive`. Vectors are compared by dot products, and their cost in an inverted index is part
of the loss (Formal et al. 2021, 2022).
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
    """Load a masked language model, whose head makes the vectors."""
    import torch

    from bertkit.modeling.sentence.sparse import SparseLoss, load_sparse_head, load_table

    if not new_head:
        texts.check_format(folder, SPARSE)
        modules = read_format(folder, SPARSE)
        model = load_sparse_head(folder, modules)
        if modules.query_table:
            model.query_table, model.query_tokenizer = load_table(modules.query_table), context.tokenizer
        return model
    query, document, warmup, mini_batch, is_free = (
        read_option(OPTIONS, context.recipe, name)
        for name in ("query_weight", "document_weight", "warmup", "mini_batch", "inference_free")
    )
    # A fixed table has no cost that training could lower.
    costs = 0.0 if is_free else float(query), float(document)
    loss = SparseLoss(contrastive.get_loss_name(context.recipe), *costs, float(warmup))
    model = load_sparse_head(
        folder, texts.resolve_modules(folder, context, SPARSE), loss, texts_at_once=mini_batch and int(mini_batch)
    )
    model.config.pad_token_id = context.tokenizer.pad_token_id  # as `load_pretrained` does
    if is_free:
        model.use_table(torch.ones(model.config.vocab_size), context.tokenizer)  # `precompute` weighs the tokens
    if get_loading_info(model).new_weights:
        log.info(
            "the model has no head of a masked language model: vectors start from random weights, and need more rows"
        )
    return model


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode anchor, positive and negatives as `contrastive` does."""
    return contrastive.encode_in_format(rows, context, SPARSE)


def precompute(model: Model, features: Mapping[str, Features], context: TaskContext, run: RunModule) -> bool:
    """Weigh the tokens of queries by their inverse frequency in the positives of the training rows, as BM25 does."""
    if model.query_table is None:
        return False
    # A token in n of N texts has the weight ln(1 + (N - n + 0.5) / (n + 0.5)) (Robertson and Zaragoza 2009).
    train, counts = features["train"], np.zeros(model.config.vocab_size)
    for feature in train:
        counts[np.unique(feature["input_ids"][1])] += 1
    model.query_table *= model.query_table.new_tensor(np.log1p((len(train) - counts + 0.5) / (counts + 0.5)))
    return False


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Return the dot products of the anchor with positive and negatives, and how many dimensions of two are not 0."""
    # A model can have more outputs than its tokenizer has tokens.
    width = 1 + max((int(output["tokens"].max(initial=0)) for output in outputs), default=0)
    decoded = []
    for row, output in zip(rows, outputs, strict=True):
        count = len(contrastive.list_texts(row))  # another row of the batch can have more
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
        # Multiply all pairs of dimensions, and keep the products with equal tokens: (inputs, most, most)
        same = tokens[:, 0, :, None] == tokens[:, 1, None, :]
        return (values[:, 0, :, None] * values[:, 1, None, :] * same).sum(dim=(1, 2))

    return [Target("similarity", score, "dot product")]


def as_matrix(values: np.ndarray, tokens: np.ndarray, width: int) -> csr_array:
    """Build a sparse matrix (texts, width) of values and their tokens, (texts, most of any text)."""
    from scipy.sparse import csr_array

    # The values [[0.5, 0.25, 0], [1, 0, 0]] at the tokens [[3, 7, 0], [7, 0, 0]] are a matrix with 0.5 and 0.25 in the
    # columns 3 and 7 of row 0, and 1 in column 7 of row 1. The rows start at [0, 2, 3]. Their product is 0.25.
    above = values > 0
    starts = np.cumsum([0, *above.sum(axis=1)])
    return csr_array((values[above].astype(np.float64), tokens[above].astype(np.int64), starts), (len(values), width))


def compare(predictions: Predictions, rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Return the arrays of `contrastive.compare`, and the active dimensions of each row's anchor and positive."""
    from scipy.sparse import vstack

    def rank(anchors: Sequence[Any], positives: Sequence[Any]) -> np.ndarray:
        first, second = vstack(anchors, "csr"), vstack(positives, "csr")
        return rank_positives(rows, lambda rows_a, rows_b: (first[rows_a] @ second[rows_b].T).toarray())

    # Baselines have no vectors.
    counts = {name: [record.get(name, np.nan) for record in predictions] for name in ACTIVE_DIMENSIONS}
    active = {name: np.array(values, dtype=np.float64) for name, values in counts.items()}
    return {**contrastive.compare_ranks(predictions, rank), **active}


def details(predictions: Predictions, rows: Rows, context: TaskContext) -> TaskReport:
    """Report each row's rank as text."""
    return TaskReport(answers=contrastive.list_rank_answers(compare(predictions, rows, context), predictions))
