"""Targets of explanations: scores of a label, a word, a span or a pair of texts, as functions of a model's outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.errors import RecipeError
from bertkit.recipe.sections import Row
from bertkit.tokens.features import Features, TaskContext, Tensor

LOG_ODDS, LOG_PROBABILITY = "log-odds", "log-probability"

Record = Mapping[str, Any]
"""Prediction for a row, or outputs for a feature."""
Records = Sequence[Record]

Outputs = Mapping[str, Tensor]
"""Outputs of a model for a batch of inputs, by name."""


@dataclass(frozen=True)
class Target:
    """Score of a row to explain."""

    name: str
    """Name for users: a label, or a word with its tag, written ``word: TAG``."""
    score: Callable[[Outputs], Tensor]
    """Function that computes differentiable scores from the outputs for a batch. Shape: (inputs,)."""
    measure: str = LOG_ODDS
    """Unit of the score."""
    is_predicted: bool = True
    """Whether the target is part of the prediction."""
    feature: int = 0
    """Index of the row's feature that the score is computed from."""


def compute_log_odds(logits: Tensor, index: int) -> Tensor:
    """Compute ln(p / (1 - p)) of a class under a softmax over the last axis; return a single logit unchanged.

    >>> import torch
    >>> round(compute_log_odds(torch.tensor([2.0, 0.0, 0.0]), 0).item(), 3)  # 2 - ln(e^0 + e^0)
    1.307
    """
    if logits.shape[-1] == 1:
        return logits[..., 0].float()
    other_ids = [class_id for class_id in range(logits.shape[-1]) if class_id != index]
    return logits[..., index].float() - logits[..., other_ids].float().logsumexp(dim=-1)


def build_label_targets(names: Sequence[str], predicted: Sequence[str], score: Callable[..., Any]) -> list[Target]:
    """Build one target per label, predicted labels first; `score` takes outputs and the index of a label."""
    targets = [
        Target(name, lambda outputs, index=index: score(outputs, index), is_predicted=name in predicted)  # type: ignore[misc]
        for index, name in enumerate(names)
    ]
    return sorted(targets, key=lambda target: not target.is_predicted)


def compute_class_score(outputs: Outputs, index: int, *, several: bool = False, windows: str = "") -> Tensor:
    """Compute the log-odds of a class from logits (inputs, classes), or (inputs, windows, classes).

    Args:
        outputs: Outputs with ``logits``.
        index: Index of the class.
        several: Whether a row can have several classes.
        windows: How to combine the probabilities of windows, such as ``windows_mean``; empty for logits of rows.
    """
    logits = outputs["logits"]
    if not windows:
        return logits[..., index].float() if several else compute_log_odds(logits, index)
    # Some accelerators have no double precision.
    logits = logits.cpu().double()
    probabilities = logits.sigmoid() if several else logits.softmax(dim=-1)
    combined = probabilities.amax(dim=1) if windows == "windows_max" else probabilities.mean(dim=1)
    # The sum of maxima can exceed 1.
    if not several:
        combined = combined / combined.sum(dim=-1, keepdim=True)
    probability = combined[:, index].clamp(1e-12, 1 - 1e-12)
    return probability.log() - (1 - probability).log()


def build_vector_target(position: int, *, dot: bool) -> Target:
    """Build the target for a pair of texts: the cosine or dot product of the vectors at `position` and the next."""

    def score(outputs: Outputs) -> Tensor:
        from torch.nn.functional import normalize

        vectors = outputs["vectors"][:, position : position + 2].float()
        first_vector, second_vector = (vectors if dot else normalize(vectors, dim=-1)).unbind(dim=1)
        return (first_vector * second_vector).sum(dim=-1)

    return Target("similarity", score, "dot product" if dot else "cosine")


def build_tag_targets(
    prediction: Record, outputs: Records, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Build one target per word that the model reads: the log-odds of the word's predicted tag.

    `Target.is_predicted` is true for the first word of each predicted entity. Without entities, it is true for the word
    with the lowest probability, whose explanation is the most useful.
    """
    tags, probabilities = prediction["prediction"], prediction["word_probabilities"]
    starts = {word for word, tag in enumerate(tags) if tag.startswith(("B-", "S-", "U-"))}
    if "entities" not in prediction or not starts:
        words_read = [word for word, probability in enumerate(probabilities) if probability is not None]
        starts = {min(words_read, key=lambda word: probabilities[word])} if words_read else set()
    targets = []
    for index, feature in enumerate(features):
        for word, position in zip(feature["words"], feature["positions"], strict=True):
            label = context.labels.index(tags[word])

            def score(outputs: Outputs, position: int = position, label: int = label) -> Tensor:
                return compute_log_odds(outputs["logits"][:, position], label)

            name = f"{row['tokens'][word]}: {tags[word]}"
            targets.append(Target(name, score, is_predicted=word in starts, feature=index))
    return targets


def build_span_targets(
    prediction: Record, outputs: Records, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Build the target of an answer: the log-probability of its start plus the log-probability of its end.

    The softmax is over the tokens of the context in one window, and the first token, which represents no answer. If
    several windows contain the answer, the target uses the window with the highest logits. For no answer, it uses the
    window with the lowest logits.
    """
    # 1. Find the span in each window.
    # Logit, feature, first token and last token of each span.
    spans: list[tuple[float, int, int, int]] = []
    for index, (output, feature) in enumerate(zip(outputs, features, strict=True)):
        starts, ends = np.zeros(1, int), np.zeros(1, int)
        if prediction["start"] is not None:
            starts = feature["context"] + np.flatnonzero(feature["offsets"][:, 0] == prediction["start"])
            ends = feature["context"] + np.flatnonzero(feature["offsets"][:, 1] == prediction["end"])
        if len(starts) and len(ends):
            first = starts[output["start_logits"][starts].argmax()]
            last = ends[output["end_logits"][ends].argmax()]
            logit = float(output["start_logits"][first] + output["end_logits"][last])
            spans.append((logit, index, int(first), int(last)))
    # 2. Select the window.
    _, index, first, last = (max if prediction["start"] is not None else min)(spans)
    first_token, length = features[index]["context"], len(features[index]["offsets"])
    tokens = [0, *range(first_token, first_token + length)]

    def score(outputs: Outputs) -> Tensor:
        start, end = (outputs[name][:, tokens].float().log_softmax(-1) for name in ("start_logits", "end_logits"))
        return start[:, tokens.index(first)] + end[:, tokens.index(last)]

    return [Target(prediction["prediction"] or "no answer", score, LOG_PROBABILITY, feature=index)]


def build_logit_targets(outputs: Sequence[Mapping[str, Any]], context: TaskContext, task: str) -> list[Target]:
    """Build targets for a task family without the function `targets`: one per logit, the highest first.

    Raises:
        RecipeError: If the model does not return one row of logits per input.
    """
    logits = outputs[0].get("logits")
    if len(outputs) != 1 or logits is None or logits.ndim != 1 or not len(logits):
        message = f"the task family {task} does not define explanation targets"
        raise RecipeError(message, "add the function `targets` to it; see docs/own-task.md")
    names = context.labels if len(context.labels) == len(logits) else [f"output {n}" for n in range(len(logits))]
    if len(logits) == 1:
        return [Target("value", lambda outputs: outputs["logits"][:, 0].float(), "value")]
    return build_label_targets(names, [names[int(logits.argmax())]], compute_class_score)
