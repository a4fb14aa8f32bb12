"""Score the relevance of passages to a query, to sort them (cross-encoder; Nogueira and Cho 2019).

The encoder reads query and passage together and computes one logit. A row is a query with one passage. All rows of a
query are a ranking, which nDCG, MRR and MAP score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.columns import ColumnSpec
from bertkit.data.labels import make_placeholder_names
from bertkit.data.rows import check_texts, read_number
from bertkit.errors import DataError, RecipeError
from bertkit.metrics.intervals import Metric
from bertkit.metrics.linear import find_words, fit_linear, sample_rows, score_linear
from bertkit.metrics.retrieval import RERANKING, score_rankings
from bertkit.modeling.checkpoint import read_config
from bertkit.modeling.heads.targets import LOG_ODDS, Target
from bertkit.modeling.info import Model
from bertkit.modeling.load import load_pretrained
from bertkit.recipe.records import Option, Recipe, read_option
from bertkit.recipe.sections import Row
from bertkit.tasks import Outputs, Prediction, Predictions, RowScores, TaskReport, encode_texts, score_table
from bertkit.tasks.text_classification import AUTO_CLASS
from bertkit.tokens.features import (
    Collator,
    Feature,
    Features,
    Rows,
    TaskContext,
    Tensors,
    are_several_texts,
    max_tokens,
    padding_collator,
)
from bertkit.tokens.multi_text import multi_text_collator

COLUMNS = ColumnSpec(inputs=("query", "passage"), gold="relevance", groups=("query",))
PIPELINE_TAG = "text-ranking"
TYPES: Mapping[str, Any] = {"prediction": float}
METRICS: Mapping[str, Metric] = RERANKING
OPTIONS: Mapping[str, Any] = {"loss": Option("pointwise", choices=("pointwise", "listwise"))}

score = partial(score_table, METRICS)
_RANDOM, _ROW_ORDER, _SHARED, _PASSAGES = "random order", "order of the rows", "shared words", "passages alone"


def read(row: Row, recipe: Recipe) -> Row:
    """Check the texts, and divide the relevance by its maximum: the end of ``data.label_range``, or 1.

    No metric depends on the scale of the relevance.

    Raises:
        DataError: If a value is not text, or the relevance is not a number in the range.
        RecipeError: If the range does not start at 0.
    """
    check_texts(row, "query", "passage")
    if "relevance" not in row:
        return row
    relevance = read_number(row, "relevance", "give a number, 0 for a passage that is not relevant")
    if relevance < 0:
        raise DataError(f"relevance {relevance:g} is below 0", "use 0 for irrelevant passages", column="relevance")
    lowest, highest = recipe.data.label_range or (0.0, 1.0)
    if lowest:
        raise RecipeError(f"data.label_range starts at {lowest:g}", "start it at 0, for irrelevant passages")
    if relevance > highest:
        remedy = f"correct it, or extend the range: --set 'data.label_range=[0, {relevance:g}]'"
        raise DataError(f"relevance {relevance:g} is above {highest:g}", remedy, column="relevance")
    return {**row, "relevance": relevance / highest}


def load_model(folder: Path, context: TaskContext, *, new_head: bool) -> Model:
    """Load an encoder with one output: a reranker of bertkit, or a CrossEncoder of sentence-transformers."""
    from bertkit.modeling.heads.mixins import LOGIT, PROBABILITY, enable_passage_lists, find_activation, set_activation

    # `problem_type` selects the loss, also of a student: pointwise or, if None, listwise.
    problem_type = "multi_label_classification" if _is_pointwise(context) else None
    if not new_head:
        problem_type = read_config(folder).get("problem_type") or problem_type
    # This is the label name of a CrossEncoder, whose head is loaded only if the names match.
    names = make_placeholder_names(1)
    model = load_pretrained(AUTO_CLASS, folder, context, labels=names, new_head=new_head, problem_type=problem_type)
    if new_head:
        activation = PROBABILITY if _is_pointwise(context) else LOGIT
        # This length is saved with the model, so that other programs truncate equally and compute equal scores.
        context.tokenizer.model_max_length = max_tokens(context)
    else:
        activation = find_activation(folder)
    set_activation(model.config, activation)
    enable_passage_lists(model, activation)
    return model


def _is_pointwise(context: TaskContext) -> bool:
    return bool(read_option(OPTIONS, context.recipe, "loss") == "pointwise")


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode query and passage of each row; for the listwise loss, all passages of a query are one feature.

    ``labels`` has the relevance of each passage of the feature. Without relevance, each row is a feature.
    """
    features = encode_texts([{"text": row["query"], "text_pair": row["passage"]} for row in rows], context)
    if not rows or "relevance" not in rows[0]:
        return features
    for row, feature in zip(rows, features, strict=True):
        feature["labels"] = [row["relevance"]]
    return features if _is_pointwise(context) else [_as_list(features, indices) for indices in _group_by_query(rows)]


def _as_list(features: Features, indices: Sequence[int]) -> Feature:
    """Join the features of one query: ``input_ids`` and so on are lists of lists, and ``row`` is the first row."""
    first, *_ = passages = [features[index] for index in indices]
    texts = {name: [passage[name] for passage in passages] for name in first if name not in ("row", "labels")}
    return {"row": indices[0], **texts, "labels": [passage["labels"][0] for passage in passages]}


def _group_by_query(rows: Rows) -> list[list[int]]:
    """Return the row indices of each query, in the order in which queries first occur."""
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row["query"], []).append(index)
    return list(groups.values())


def collator(context: TaskContext) -> Collator:
    """Build the padding collator, which also pads the number of passages per query for the listwise loss.

    ``input_ids`` and other keys of a listwise batch have the shape (queries, passages, tokens), and ``labels`` the
    shape (queries, passages). A padded passage has a single token, unlike any real passage, and relevance 0.
    """
    collate_one = padding_collator(context, label_type="float32")
    collate_list = multi_text_collator(context, "float32")

    def collate(features: Features) -> Tensors:
        return (collate_list if are_several_texts(features[0]["input_ids"]) else collate_one)(features)

    return collate


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Return each row's score: a probability or any number, depending on the model's activation."""
    are_lists = len(features) > 0 and are_several_texts(features[0]["input_ids"])
    groups = _group_by_query(rows) if are_lists else [[index] for index in range(len(rows))]
    decoded: list[dict[str, Any]] = [{} for _ in rows]
    for indices, output in zip(groups, outputs, strict=True):
        # Drop padded passages, which come last. In float64, probabilities near 1 still differ.
        logits = output["logits"][: len(indices)].astype(np.float64)
        scores = np.exp(-np.logaddexp(0, -logits)) if "probabilities" in output else logits
        for index, value in zip(indices, scores.tolist(), strict=True):
            decoded[index] = {"prediction": value}
    return decoded


def targets(
    prediction: Prediction, outputs: Outputs, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Return the explainable output: the score, or the log-odds if the score is a probability."""
    measure = LOG_ODDS if "probabilities" in outputs[0] else "score"
    return [Target("relevance", lambda outputs: outputs["logits"][:, 0].float(), measure)]


def compare(predictions: Predictions, rows: Rows, context: TaskContext) -> RowScores:
    """Score the ranking of each query that has a relevant passage. Shape: (queries with a relevant passage,).

    Passages with equal scores are ranked by relevance, the lowest first, so that equal scores never help.

    Raises:
        DataError: If no query has a relevant passage.
    """
    scores = [record["prediction"] for record in predictions]
    groups = _group_by_query(rows)
    relevance = [{index: rows[index]["relevance"] for index in indices} for indices in groups]
    # Ranked by scores only, equal scores would keep the order of the rows, which often starts with relevant passages.
    rankings = [sorted(indices, key=lambda index: (-scores[index], rows[index]["relevance"])) for indices in groups]
    query_scores = score_rankings(rankings, relevance, recall_cutoffs=())
    has_relevant = ~np.isnan(query_scores["map"])
    if not has_relevant.any():
        raise DataError("no query has a relevant passage", "give rows whose relevance is above 0", column="relevance")
    return {name: values[has_relevant] for name, values in query_scores.items()}


def fit_baselines(training_rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Fit a model that predicts relevance from the words of a passage, without the query.

    Raises:
        DataError: If all rows (for the listwise loss, all rows of each query) have the same relevance.
    """
    # The listwise loss compares the passages of one query, so it learns nothing if they are equally relevant.
    lists = [range(len(training_rows))] if _is_pointwise(context) else _group_by_query(training_rows)
    if all(len({training_rows[index]["relevance"] for index in indices}) == 1 for indices in lists):
        message = f"all passages {'' if _is_pointwise(context) else 'of each query '}have the same relevance"
        raise DataError(message, "give passages that are not relevant, too", column="relevance")
    rows = sample_rows(training_rows)
    words = [find_words(row["passage"]) for row in rows]
    return {_PASSAGES: fit_linear(words, [int(row["relevance"] > 0) for row in rows])}


def baselines(state: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, list[Prediction]]:
    """Rank at random, in the order of the rows, by the query words in a passage, or by the words of passages only.

    The order of the rows is a baseline because it is usually the result of a search. If the passages of each query are
    sorted by relevance, it is not, and is left out.
    """
    scores = {_RANDOM: np.random.default_rng(0).random(len(rows))}
    relevance = np.array([row["relevance"] for row in rows])
    if any((np.diff(relevance[indices]) > 0).any() for indices in _group_by_query(rows)):
        scores[_ROW_ORDER] = -np.arange(len(rows), dtype=np.float64)
    scores[_SHARED] = np.array([_share_words(row) for row in rows])
    if state[_PASSAGES]:
        scores[_PASSAGES] = score_linear(state[_PASSAGES], [find_words(row["passage"]) for row in rows])[:, 1]
    return {name: [{"prediction": value} for value in values.tolist()] for name, values in scores.items()}


def _share_words(row: Row) -> float:
    """Return the fraction of the query's words that the passage has."""
    words = find_words(row["query"]).keys()
    return len(words & find_words(row["passage"]).keys()) / max(len(words), 1)


def details(predictions: Predictions, rows: Rows, context: TaskContext) -> TaskReport:
    """Count queries and their passages, and warn of queries without a relevant passage."""
    groups = _group_by_query(rows)
    relevant_counts = [sum(rows[index]["relevance"] > 0 for index in indices) for indices in groups]
    num_scored = sum(count > 0 for count in relevant_counts)
    table = {
        "queries": f"{len(groups):,}",
        "with a relevant passage": f"{num_scored:,}",
        "passages per query": len(rows) / len(groups),
        "relevant ones": sum(relevant_counts) / len(groups),
    }
    num_skipped = len(groups) - num_scored
    warnings = [f"{num_skipped:,} of {len(groups):,} queries have no relevant passage and are not scored."]
    return TaskReport({"queries": [table]}, warnings=warnings if num_skipped else [])
