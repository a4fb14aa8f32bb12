"""Train an encoder whose vectors are similar for texts that belong together, from pairs and optional negatives.

The other positives of a batch serve as negatives (Henderson et al. 2017, section 4.4), so rows need no score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.columns import ColumnSpec
from bertkit.data.rows import check_texts, read_texts
from bertkit.errors import DataError, RecipeError
from bertkit.metrics.intervals import Metric
from bertkit.metrics.retrieval import RETRIEVAL, draw_chance_ranks, rank_by_words, rank_positives
from bertkit.modeling.heads.targets import Target, build_vector_target
from bertkit.modeling.info import Model
from bertkit.modeling.sentence import library_losses, texts
from bertkit.modeling.sentence.folder import DENSE
from bertkit.recipe.records import Option, Recipe, read_option
from bertkit.recipe.sections import Row
from bertkit.tasks import Answer, Outputs, Prediction, Predictions, RunModule, TaskReport, score_table
from bertkit.tokens.features import Collator, Feature, Features, Rows, TaskContext
from bertkit.tokens.multi_text import hash_text, multi_text_collator

COLUMNS: ColumnSpec = ColumnSpec(
    inputs=("anchor", "positive"),
    gold="",
    optional=("negative", "margin"),
    blank=("negative",),
    lists=("negative", "margin"),
    predicted=("negative_scores",),
    groups=("anchor",),
)
TYPES: Mapping[str, Any] = {"prediction": float}
METRICS: Mapping[str, Metric] = RETRIEVAL
OPTIONS: Mapping[str, Any] = {
    "loss": library_losses.make_loss_option(("mnrl", "margin_mse"), library_losses.NONE),
    "mine": Option(0, minimum=0),
    "mine_margin": Option(0.05, minimum=0, maximum=1),
    **texts.OPTIONS,
}

score, check_training = partial(score_table, METRICS), library_losses.check_training
_ROLES = ("query", "document")


def read(row: Row, recipe: Recipe) -> Row:
    """Check the texts, and read negatives and margins as lists; empty negatives at the end are dropped.

    Raises:
        DataError: If a value is not text, a negative is empty, or the numbers of margins and negatives differ.
    """
    check_texts(row, "anchor", "positive")
    if "negative" in row:
        row = {**row, "negative": read_texts([] if row["negative"] is None else row["negative"], "negative", first=1)}
    # MarginMSE (Hofstätter et al. 2020) learns a teacher's difference of scores, so each row needs a negative.
    if get_loss_name(recipe) == "margin_mse":
        for column in ("negative", "margin"):
            if not row.get(column):
                meaning = "a margin is the teacher's score of the positive minus its score of the negative"
                message = f"the loss margin_mse needs a {column} in each row"
                raise DataError(message, f"add --set data.columns.{column}=COLUMN; {meaning}")
    return row if "margin" not in row else {**row, "margin": _read_margins(row["margin"], len(row.get("negative", ())))}


def load_model(folder: Path, context: TaskContext, *, new_head: bool) -> Model:
    """Load an encoder whose vectors are trained; no weights are added to it."""
    return texts.load_encoder(folder, context, new_head=new_head, loss=get_loss_name(context.recipe))


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode anchor, positive and negatives; ``texts`` has the id of each text, and ``labels`` the margins."""
    return encode_in_format(rows, context, DENSE)


def encode_in_format(rows: Rows, context: TaskContext, model_format: str) -> list[Feature]:
    """Encode rows as `encode` does, for a model in one of the formats of sentence-transformers."""
    text_lists = [list_texts(row) for row in rows]
    features = texts.encode_rows(text_lists, context, _ROLES, model_format=model_format)
    loss = get_loss_name(context.recipe)
    library_loss = library_losses.find_library_loss(loss)
    is_distinct = library_loss.needs_distinct_texts if library_loss else loss == "mnrl"
    for row, texts_in_row, feature in zip(rows, text_lists, features, strict=True):
        # By the ids, the loss finds equal texts, which are not negatives of each other.
        if is_distinct:
            feature["texts"] = list(map(hash_text, texts_in_row))
        elif loss == "margin_mse" and "margin" in row:
            feature["labels"] = row["margin"]
    return features


def collator(context: TaskContext) -> Collator:
    """Build the collator. Shapes: (rows, texts, tokens); ``labels`` (rows, negatives)."""
    return multi_text_collator(context, "float32")


def precompute(model: Model, features: Mapping[str, Features], context: TaskContext, run: RunModule) -> bool:
    """Mine hard negatives for the training rows with the initial model, if the recipe sets ``mine``.

    Raises:
        RecipeError: If the loss learns from margins, which mined negatives do not have.
    """
    from bertkit.modeling.sentence.losses import add_negatives, mine_negatives

    count, margin = (read_option(OPTIONS, context.recipe, name) for name in ("mine", "mine_margin"))
    if not count:
        return False
    if get_loss_name(context.recipe) != "mnrl":
        raise RecipeError(f"options.mine = {count} needs the loss mnrl", "leave one of them out")
    train = features["train"]
    # Vectors of anchors and positives; mining does not compare negatives. Shape: (rows, 2, dimension).
    pairs = np.stack([texts.normalize(output["vectors"][:2], dot=False) for output in run(model, train)])
    text_ids = [list(map(int, feature["texts"])) for feature in train]
    add_negatives(train, mine_negatives(pairs, text_ids, int(count), margin))
    return False


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Return the cosine (or dot product) of the anchor with the positive, and with each negative, of each row."""
    dot = texts.uses_dot_product(context, get_loss_name(context.recipe))
    decoded = []
    for row, output in zip(rows, outputs, strict=True):
        # Drop padding, because other rows of the batch can have more texts. Shape: (texts of the batch, dimension).
        anchor, *candidates = texts.normalize(output["vectors"][: len(list_texts(row))], dot=dot)
        decoded.append(make_record([float(anchor @ text) for text in candidates], _vectors=(anchor, candidates[0])))
    return decoded


def make_record(scores: Sequence[float], **fields: object) -> Prediction:
    """Return the prediction of a row, given the scores of its positive and negatives, in this order."""
    positive, *negatives = scores
    return {"prediction": positive, **fields} | ({"negative_scores": negatives} if negatives else {})


def targets(
    prediction: Prediction, outputs: Outputs, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Return the explainable outputs: the similarity of anchor and positive."""
    return [build_vector_target(0, dot=texts.uses_dot_product(context, get_loss_name(context.recipe)))]


def compare(predictions: Predictions, rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Return ``rank`` and ``beats`` of each row's positive, among the positives of all rows; see `compare_ranks`."""

    def rank(anchors: Sequence[np.ndarray], positives: Sequence[np.ndarray]) -> np.ndarray:
        first, second = np.stack(anchors), np.stack(positives)
        return rank_positives(rows, lambda rows_a, rows_b: first[rows_a] @ second[rows_b].T)

    return compare_ranks(predictions, rank)


def compare_ranks(
    predictions: Predictions, rank: Callable[[Sequence[Any], Sequence[Any]], np.ndarray]
) -> dict[str, Any]:
    """Rank the positive of each row: ``rank``, and ``beats``, which is 1 if it scores higher than the row's negatives.

    Args:
        predictions: Records with the vectors of anchor and positive or, for baselines, with the rank.
        rank: Ranks the positives, given the vectors of all anchors and of all positives.

    Returns:
        Two arrays of shape (rows,). ``beats`` is 1 or 0, or NaN for a row without negatives.
    """
    if "_rank" in predictions[0]:
        ranks = np.array([record["_rank"] for record in predictions])
    else:
        ranks = rank(*zip(*(record["_vectors"] for record in predictions), strict=True))
    wins = []
    for record in predictions:
        beaten = [record["prediction"] > score for score in record.get("negative_scores", ())]
        wins.append(float(all(beaten)) if beaten else math.nan)
    return {"rank": ranks, "beats": np.array(wins)}


def baselines(state: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, list[Prediction]]:
    """Rank the positives by chance, and by the words that they share with the anchor."""
    draw = np.random.default_rng(0).random
    chance = draw_chance_ranks(len(rows)), [draw(len(list_texts(row)) - 1).tolist() for row in rows]
    return {
        name: [make_record(scores, _rank=rank) for rank, scores in zip(*ranks_and_scores, strict=True)]
        for name, ranks_and_scores in (("chance", chance), ("shared words", rank_by_words(rows)))
    }


def details(predictions: Predictions, rows: Rows, context: TaskContext) -> TaskReport:
    """Report the rank of each row's positive, and the scores of truncated (Matryoshka) vectors."""
    answers = list_rank_answers(compare(predictions, rows, context), predictions)
    table = []
    # Kusupati et al. 2022 train vectors whose first components can be used alone. Truncation changes the length of a
    # vector, so truncated vectors are compared by the cosine.
    for count in sorted(read_option(OPTIONS, context.recipe, "dimensions"), reverse=True):
        truncated = [
            {**record, "_vectors": tuple(texts.normalize(vector[:count], dot=False) for vector in record["_vectors"])}
            for record in predictions
        ]
        table.append({"dimension": str(count), **score(compare(truncated, rows, context), context)})
    return TaskReport({"by dimension": table} if table else {}, answers=answers)


def list_rank_answers(row_scores: Mapping[str, Any], predictions: Predictions) -> list[Answer]:
    """Return the rank of each row's positive as an answer; rank 1 is correct."""
    return [
        Answer("1", str(rank), bool(rank == 1), record["prediction"])
        for rank, record in zip(row_scores["rank"], predictions, strict=True)
    ]


def list_texts(row: Row) -> list[str]:
    """List the texts of a row in the order of its feature: anchor, positive, negatives."""
    return [row["anchor"], row["positive"], *row.get("negative", ())]


def get_loss_name(recipe: Recipe) -> str:
    """Return the name of the recipe's loss."""
    return str(read_option(OPTIONS, recipe, "loss"))


def _read_margins(value: Any, count: int) -> list[float]:
    values = value if isinstance(value, (list, tuple)) else [value]
    # Drop empty margins: in a table, rows with fewer negatives than others have empty cells.
    try:
        margins = [float(margin) for margin in values if margin not in (None, "")]
    except (TypeError, ValueError):
        margins = [math.nan]
    if not all(map(math.isfinite, margins)):
        raise DataError(f"margin {value!r} is not a number", "give one number per negative", column="margin")
    if len(margins) != count:
        raise DataError(f"{len(margins)} margins for {count} negatives", "give one per negative", column="margin")
    return margins
