"""The numbers of a head's outputs that can be explained: what a model says of a label, a word, a span or two texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.errors import RecipeError
from bertkit.recipe.sections import Row
from bertkit.tokens.features import Features, Setup, Tensor

LOG_ODDS, LOG_PROBABILITY = "log-odds", "log-probability"

Record = Mapping[str, Any]
"""A prediction, or the output for one feature."""
Records = Sequence[Record]

Outputs = Mapping[str, Tensor]
"""The outputs of a model for a batch of inputs, by name."""


@dataclass(frozen=True)
class Target:
    """A number that a model computes for a row."""

    name: str
    """What the model says: a label, or a word with its tag, written ``word: TAG``."""
    score: Callable[[Outputs], Tensor]
    """Computes the number for each input of a batch, shape (inputs,), from outputs that gradients can pass."""
    measure: str = LOG_ODDS
    chosen: bool = True
    """Whether it belongs to the prediction."""
    feature: int = 0
    """Which of the features of the row it is computed from."""


def log_odds(logits: Tensor, index: int) -> Tensor:
    """Compute ln(p / (1 - p)) of a class under a softmax over the last axis; of a single output, the output itself."""
    if logits.shape[-1] == 1:
        return logits[..., 0].float()
    others = [number for number in range(logits.shape[-1]) if number != index]
    return logits[..., index].float() - logits[..., others].float().logsumexp(dim=-1)


def label_targets(names: Sequence[str], chosen: Sequence[str], score: Callable[[Outputs, int], Any]) -> list[Target]:
    """Build a target for each label, those of the prediction first; `score` takes the number of a label."""
    targets = [
        Target(name, lambda outputs, number=number: score(outputs, number), chosen=name in chosen)  # type: ignore[misc]
        for number, name in enumerate(names)
    ]
    return sorted(targets, key=lambda target: not target.chosen)


def class_score(outputs: Outputs, number: int, *, several: bool = False, windows: str = "") -> Tensor:
    """Compute the log-odds of a class: of logits (inputs, classes), or of (inputs, windows, classes) combined.

    Args:
        outputs: with ``logits``.
        number: of the class.
        several: whether each class is a choice of its own.
        windows: how the probabilities of windows are combined, ``windows_mean`` and so on; empty for logits of rows.
    """
    logits = outputs["logits"]
    if not windows:
        return logits[..., number].float() if several else log_odds(logits, number)
    wide = logits.cpu().double()  # which some accelerators lack
    found = wide.sigmoid() if several else wide.softmax(dim=-1)
    combined = found.amax(dim=1) if windows == "windows_max" else found.mean(dim=1)
    if not several:  # the highest are more than 1 together
        combined = combined / combined.sum(dim=-1, keepdim=True)
    probability = combined[:, number].clamp(1e-12, 1 - 1e-12)
    return probability.log() - (1 - probability).log()


def vector_target(first: int, *, dot: bool) -> Target:
    """Build the target of two texts: the cosine of vectors `first` and `first` + 1 of each row, or their product."""

    def score(outputs: Outputs) -> Tensor:
        from torch.nn.functional import normalize

        one, other = (outputs["vectors"][:, number].float() for number in (first, first + 1))
        return ((one if dot else normalize(one, dim=-1)) * (other if dot else normalize(other, dim=-1))).sum(dim=-1)

    return Target("similarity", score, "dot product" if dot else "cosine")


def tag_targets(prediction: Record, outputs: Records, features: Features, row: Row, setup: Setup) -> list[Target]:
    """Build a target for the tag of each word that is read.

    Those of the prediction are the first words of its entities. Without entities it is the word whose tag is least
    sure, of which there is most to learn.
    """
    tags, sure = prediction["prediction"], prediction["word_probabilities"]
    starts = {number for number, tag in enumerate(tags) if tag.startswith(("B-", "S-", "U-"))}
    if "entities" not in prediction or not starts:
        read = [number for number, one in enumerate(sure) if one is not None]
        starts = {min(read, key=lambda number: sure[number])} if read else set()
    targets = []
    for number, feature in enumerate(features):
        for word, position in zip(feature["words"], feature["positions"], strict=True):
            label = setup.labels.index(tags[word])

            def score(outputs: Outputs, position: int = position, label: int = label) -> Tensor:
                return log_odds(outputs["logits"][:, position], label)

            name = f"{row['tokens'][word]}: {tags[word]}"
            targets.append(Target(name, score, chosen=word in starts, feature=number))
    return targets


def span_targets(prediction: Record, outputs: Records, features: Features, row: Row, setup: Setup) -> list[Target]:
    """Build the target of an answer: the log-probability of where it starts plus that of where it ends.

    Both are among the tokens of the text in the window that holds the answer, and the first token, which stands for no
    answer. Of several windows it is the one with the highest logits; of no answer, the one with the lowest.
    """
    places: list[tuple[float, int, int, int]] = []  # logits, feature, first and last token
    for number, (output, feature) in enumerate(zip(outputs, features, strict=True)):
        begins, ends = np.zeros(1, int), np.zeros(1, int)
        if prediction["start"] is not None:
            begins = feature["context"] + np.flatnonzero(feature["offsets"][:, 0] == prediction["start"])
            ends = feature["context"] + np.flatnonzero(feature["offsets"][:, 1] == prediction["end"])
        if len(begins) and len(ends):
            first = begins[output["start_logits"][begins].argmax()]
            last = ends[output["end_logits"][ends].argmax()]
            logit = float(output["start_logits"][first] + output["end_logits"][last])
            places.append((logit, number, int(first), int(last)))
    _, number, first, last = (max if prediction["start"] is not None else min)(places)
    context, length = features[number]["context"], len(features[number]["offsets"])
    tokens = [0, *range(context, context + length)]

    def score(outputs: Outputs) -> Tensor:
        start, end = (outputs[name][:, tokens].float().log_softmax(-1) for name in ("start_logits", "end_logits"))
        return start[:, tokens.index(first)] + end[:, tokens.index(last)]

    return [Target(prediction["prediction"] or "no answer", score, LOG_PROBABILITY, feature=number)]


def targets_of_logits(outputs: Sequence[Mapping[str, Any]], setup: Setup, task: str) -> list[Target]:
    """Build targets where a task family says nothing: the highest logit of one row of logits per input.

    Raises:
        RecipeError: the model has no such output.
    """
    logits = outputs[0].get("logits")
    if len(outputs) != 1 or logits is None or logits.ndim != 1 or not len(logits):
        what = f"the task family {task} does not say what there is to explain"
        raise RecipeError(what, "give it the function `targets`; see docs/own-task.md")
    names = setup.labels if len(setup.labels) == len(logits) else [f"output {n}" for n in range(len(logits))]
    if len(logits) == 1:
        return [Target("value", lambda outputs: outputs["logits"][:, 0].float(), "value")]
    return label_targets(names, [names[int(logits.argmax())]], class_score)
