"""Train an encoder's vectors on plain texts: a text is read twice with different dropout, and must match itself.

The other texts of a batch are negatives (Gao et al. 2021, "SimCSE: Simple Contrastive Learning of Sentence Embeddings",
section 3). There are no labels, so the score is how often the first half of a text finds its second half.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.data.columns import ColumnSpec
from bertkit.data.rows import check_texts
from bertkit.modeling.heads.targets import Target, build_vector_target
from bertkit.modeling.info import Model
from bertkit.modeling.sentence import texts
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import Row
from bertkit.tasks import Outputs, Prediction, Predictions, TaskReport, contrastive
from bertkit.tokens.features import Feature, Features, Rows, TaskContext
from bertkit.tokens.multi_text import hash_text, multi_text_collator

COLUMNS = ColumnSpec(inputs=("text",), gold="", groups=("text",))
TYPES: Mapping[str, Any] = {"prediction": float}
METRICS = {name: contrastive.METRICS[name] for name in ("mrr@10", "recall@1", "recall@10")}
OPTIONS: Mapping[str, Any] = texts.OPTIONS

collator, score = multi_text_collator, contrastive.score


def read(row: Row, recipe: Recipe) -> Row:
    """Check the text.

    Raises:
        DataError: If the value is not text.
    """
    check_texts(row, "text")
    return row


def load_model(folder: Path, context: TaskContext, *, new_head: bool) -> Model:
    """Load an encoder whose vectors are trained; no weights are added to it."""
    return texts.load_encoder(folder, context, new_head=new_head, loss="simcse", simcse_texts=1)


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode each text, for training, and its two halves, for scoring; ``texts`` has the id of the text."""
    text_lists = [[row["text"], *pair.values()] for row, pair in zip(rows, _halves(rows), strict=True)]
    features = texts.encode_rows(text_lists, context)
    for row, feature in zip(rows, features, strict=True):
        feature["texts"] = [hash_text(row["text"])]
    return features


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Return the cosine of the two halves of each text (or their dot product)."""
    # The first vector is the complete text's, which is only for training.
    halves = [{"vectors": output["vectors"][1:]} for output in outputs]
    return contrastive.decode(halves, features, _halves(rows), context)


def targets(
    prediction: Prediction, outputs: Outputs, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Return the explainable outputs: the similarity of the two halves."""
    return [build_vector_target(1, dot=texts.uses_dot_product(context))]


def compare(predictions: Predictions, rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Return the ``rank`` of each text's second half among the second halves of all texts, given the first half."""
    return contrastive.compare(predictions, _halves(rows), context)


def baselines(state: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, list[Prediction]]:
    """Rank second halves by chance, and by the words that they share with the first half."""
    return contrastive.baselines(state, _halves(rows), context)


def details(predictions: Predictions, rows: Rows, context: TaskContext) -> TaskReport:
    """Report the rank of each text's second half, and the scores of truncated (Matryoshka) vectors."""
    return contrastive.details(predictions, _halves(rows), context)


def _halves(rows: Rows) -> list[Row]:
    """Split each text in the middle of its words or, if it has one word, of its characters."""
    pairs = []
    for row in rows:
        words, text = row["text"].split(), row["text"]
        if len(words) > 1:
            middle = len(words) // 2
            first, second = " ".join(words[:middle]), " ".join(words[middle:])
        else:
            # Chinese and Japanese have no spaces. A single character has an empty second half.
            first, second = text[: len(text) // 2] or text, text[len(text) // 2 :]
        pairs.append({"anchor": first, "positive": second})
    return pairs
