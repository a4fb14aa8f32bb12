"""Classify texts, or pairs of texts, from a few examples per label, as SetFit does (Tunstall et al. 2022).

The encoder is trained so that vectors of the same label are nearer to each other than to vectors of other labels. Then
logistic regression is fitted to the vectors of the training rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.labels import compute_class_weights
from bertkit.errors import RecipeError
from bertkit.modeling.info import Model
from bertkit.modeling.sentence import texts
from bertkit.modeling.sentence.folder import read_modules, with_options
from bertkit.modeling.sentence.library_losses import CLASS, make_loss_option
from bertkit.recipe.records import Option, Recipe, read_option
from bertkit.recipe.sections import Row
from bertkit.tasks import RunModule, add_labels, text_classification
from bertkit.tokens.features import Feature, Features, Rows, TaskContext
from bertkit.tokens.multi_text import multi_text_collator

COLUMNS = replace(text_classification.COLUMNS, extra=())
HAS_LABEL_NAMES: bool = True
TYPES = text_classification.TYPES
METRICS = text_classification.METRICS
OPTIONS: Mapping[str, Any] = {
    "method": Option("contrastive", choices=("contrastive", "frozen")),
    "loss": make_loss_option(("class_cosent",), CLASS),
    **{name: texts.OPTIONS[name] for name in ("scale", "pooling", "prompts")},
}

decode, compare, score = text_classification.decode, text_classification.compare, text_classification.score
fit_baselines, baselines = text_classification.fit_baselines, text_classification.baselines
collator = multi_text_collator  # batches of shape (rows, 1, tokens)
combine, targets = text_classification.combine, text_classification.targets


def read(row: Row, recipe: Recipe) -> Row:
    """Check the texts and the label.

    Raises:
        DataError: If a value is not text, or there is not exactly one label.
        RecipeError: If ``training.label_smoothing`` is set.
    """
    if recipe.training.label_smoothing:
        message = "training.label_smoothing is for the loss of a classifier, which few_shot does not have"
        raise RecipeError(message, "leave it out")
    return text_classification.read(row, recipe)


def load_model(folder: Path, context: TaskContext, *, new_head: bool) -> Model:
    """Load an encoder with a linear layer over its vectors, which are scaled to length 1."""
    from bertkit.modeling.sentence.head import load_sentence_classifier
    from bertkit.modeling.sentence.losses import VectorLoss

    if not new_head:
        return load_sentence_classifier(folder, read_modules(folder), context, new_head=False)
    modules = with_options(texts.resolve_modules(folder, context), pooling=None, normalize=True, prompt=None)
    # SetFit samples pairs of texts; this loss compares all pairs of a batch instead.
    name, scale = (read_option(OPTIONS, context.recipe, key) for key in ("loss", "scale"))
    return load_sentence_classifier(folder, modules, context, VectorLoss(name, float(scale)), new_head=True)


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode each row as one text, or as two texts that are read together; ``labels`` is the label id."""
    # A pair is one input with a separator, as for a classifier, so that its vector can describe how the texts relate.
    pairs = [row["text_pair"] for row in rows] if rows and "text_pair" in rows[0] else None
    features = texts.encode_rows([[row["text"]] for row in rows], context, pairs=pairs)
    ids = context.label_ids
    return add_labels(features, rows, lambda row: ids[row["label"]])


def fit_head(model: Model, features: Features, context: TaskContext, run: RunModule) -> None:
    """Fit the linear layer to the vectors of the training rows, weighted by `training.class_weights`."""
    from bertkit.modeling.sentence.head import fit_logistic

    gold = [int(feature["labels"]) for feature in features]
    names = [context.labels[label] for label in gold]
    weights = compute_class_weights(context.recipe.training.class_weights, context.labels, names)
    # Each row is one text, so its vectors have the shape (1, dimension).
    vectors = np.stack([output["vectors"][0] for output in run(model, features)])
    fit_logistic(model, vectors, gold, [weights[label] for label in gold])


def precompute(model: Model, features: Mapping[str, Features], context: TaskContext, run: RunModule) -> bool:
    """Fit the linear layer once if the encoder is frozen, so that nothing is left to train."""
    # This import draws random numbers. If it came after training sets the seeds, a resumed run would draw others.
    import sklearn.linear_model  # noqa: F401

    if read_option(OPTIONS, context.recipe, "method") != "frozen":
        return False
    fit_head(model, features["train"], context, run)
    return True
