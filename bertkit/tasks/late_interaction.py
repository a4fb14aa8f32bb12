"""Train one vector per token, to find the text that belongs to another text (ColBERT; Khattab and Zaharia 2020).

Rows are read as in `contrastive`. The score of two texts is the sum, over the tokens of the first, of the highest
similarity to a token of the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.metrics.retrieval import rank_positives
from bertkit.modeling.heads.targets import Target
from bertkit.modeling.info import Model
from bertkit.modeling.sentence import texts
from bertkit.modeling.sentence.folder import LATE, read_format
from bertkit.modeling.sentence.texts import drop_padding, max_sim
from bertkit.recipe.records import Option, read_option
from bertkit.recipe.sections import Row
from bertkit.tasks import Outputs, Prediction, Predictions, TaskReport, contrastive
from bertkit.tokens.features import Batch, Feature, Features, Rows, TaskContext

COLUMNS = contrastive.COLUMNS
TYPES = contrastive.TYPES
METRICS = contrastive.METRICS
OPTIONS: Mapping[str, Any] = {
    "scale": Option(1.0, minimum=0.01, maximum=1000),
    "dimension": Option(None, minimum=1),
    "prompts": texts.OPTIONS["prompts"],
    "mini_batch": texts.OPTIONS["mini_batch"],
}

read, collator, score, baselines = contrastive.read, contrastive.collator, contrastive.score, contrastive.baselines


def load_model(folder: Path, context: TaskContext, *, new_head: bool) -> Model:
    """Load an encoder with a projection of its token vectors; a projection in the folder is used."""
    from bertkit.modeling.sentence.late import LateLoss, load_late_head

    if not new_head:
        texts.check_format(folder, LATE)
        return load_late_head(folder, read_format(folder, LATE))
    dimension, scale, mini_batch = (
        read_option(OPTIONS, context.recipe, name) for name in ("dimension", "scale", "mini_batch")
    )
    modules, loss = texts.resolve_modules(folder, context, LATE), LateLoss(float(scale))
    model = load_late_head(
        folder, modules, dimension and int(dimension), loss, texts_at_once=mini_batch and int(mini_batch)
    )
    # `load_pretrained` sets the id, too.
    model.config.pad_token_id = context.tokenizer.pad_token_id
    return model


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode anchor, positive and negatives as `contrastive` does."""
    return contrastive.encode_in_format(rows, context, LATE)


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Return the scores of the anchor with the positive and the negatives of each row."""
    decoded = []
    for row, output in zip(rows, outputs, strict=True):
        # Drop padding, which could be most similar to a token of the anchor; other rows of the batch can have more or
        # longer texts. Shape: (texts of the batch, tokens, dimension).
        anchor, *candidates = map(drop_padding, output["vectors"][: len(contrastive.list_texts(row))])
        scores = max_sim([anchor], candidates)[0].tolist()
        decoded.append(contrastive.make_record(scores, _vectors=(anchor, candidates[0])))
    return decoded


def targets(
    prediction: Prediction, outputs: Outputs, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Return the explainable outputs: the score of the anchor with the positive."""
    import torch

    from bertkit.modeling.sentence.late import score_texts

    def score(outputs: Batch) -> torch.Tensor:
        # One input per variant of the explained row. Shape: (inputs, 2, tokens, dimension).
        return torch.cat([score_texts(pair[:1], pair[1:])[0] for pair in outputs["vectors"][:, :2].float()])

    return [Target("similarity", score, "score")]


def compare(predictions: Predictions, rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Return the same arrays as `contrastive.compare`."""

    def rank(anchors: Sequence[Any], positives: Sequence[Any]) -> np.ndarray:
        return rank_positives(
            rows, lambda rows_a, rows_b: max_sim([anchors[row] for row in rows_a], [positives[row] for row in rows_b])
        )

    return contrastive.compare_ranks(predictions, rank)


def details(predictions: Predictions, rows: Rows, context: TaskContext) -> TaskReport:
    """Report the rank of each row's positive."""
    return TaskReport(answers=contrastive.list_rank_answers(compare(predictions, rows, context), predictions))
