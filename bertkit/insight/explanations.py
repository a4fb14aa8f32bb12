"""Explanations of a prediction: what each word of a row adds to a number that the model computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.errors import UsageError, did_you_mean
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.insight.attributions import ExplainedInput, integrated_gradients, occlusion
from bertkit.insight.words import find_words
from bertkit.modeling.heads.targets import Target, targets_of_logits
from bertkit.recipe.sections import Row
from bertkit.tasks import Prediction
from bertkit.tokens.features import Features, are_several_texts


@dataclass(frozen=True)
class WordValue:
    """Contribution of a word to the score, by two methods."""

    word: str
    segment: int
    """Index of its text among the texts between special tokens."""
    integrated_gradients: float
    occlusion: float


@dataclass(frozen=True)
class Explanation:
    """Contributions of the words of a row to one number that the model computes."""

    target: str
    measure: str
    """Name of the number: ``log-odds``, ``cosine`` and so on."""
    score: float
    baseline_score: float
    """Score of the row with all words replaced by the baseline."""
    steps: int
    gap: float
    """Difference between the sum of integrated gradients and the difference of the scores, as a fraction of it."""
    is_complete: bool
    """Whether the gap is within 1%."""
    words: list[WordValue]


@dataclass(frozen=True)
class PredictedRow:
    """A row with its prediction, and the features and outputs of the model for it."""

    row: Row
    prediction: Prediction
    features: Features
    outputs: Sequence[Mapping[str, Any]]


def explain(
    checkpoint: Checkpoint, answered: PredictedRow, *, targets: Sequence[str] = (), max_steps: int = 512
) -> list[Explanation]:
    """Explain a row: the number behind each target, word by word.

    Args:
        checkpoint: Model that has answered the row.
        answered: Row with its prediction.
        targets: Names of targets, or the words that they are about; empty for the targets of the prediction.
        max_steps: Maximum steps of integrated gradients.

    Raises:
        UsageError: If no target has one of the names.
        RecipeError: If the task family does not define what to explain.
    """
    tokenizer = checkpoint.context.tokenizer
    # [MASK] represents an unknown word in pretraining, so no other token carries less information.
    baseline = tokenizer.pad_token_id if tokenizer.mask_token_id is None else tokenizer.mask_token_id
    model, collate = checkpoint.model.eval(), checkpoint.task.collator(checkpoint.context)
    explanations = []
    for target in find_targets(checkpoint, answered, targets):
        feature = {**answered.features[target.feature], "row": 0}
        # Features of some task families, such as multiple choice, have several texts.
        ids = feature["input_ids"]
        words = find_words(ids if are_several_texts(ids) else [ids], tokenizer)
        positions = [position for word in words for position in word.positions]
        explained = ExplainedInput(model, feature, collate, target.score, int(baseline), positions)
        gradients = integrated_gradients(explained, max_steps)
        drops = occlusion(explained, [word.positions for word in words])
        values = []
        for word, drop in zip(words, drops.tolist(), strict=True):
            # Attributions of tokens add up, so the attribution of a word is their sum.
            total = float(sum(gradients.values[position] for position in word.positions))
            values.append(WordValue(word.text, word.segment, total, drop))
        scores = gradients.score, gradients.baseline_score, gradients.steps, gradients.gap, gradients.is_complete
        explanations.append(Explanation(target.name, target.measure, *scores, values))
    return explanations


def find_targets(checkpoint: Checkpoint, answered: PredictedRow, names: Sequence[str]) -> list[Target]:
    """Return the numbers to explain: the numbers of the prediction, or those with the requested names."""
    task, context = checkpoint.task, checkpoint.context
    if task.targets is None:
        # A family that defines no targets is explained by its logits.
        targets = targets_of_logits(answered.outputs, context, context.recipe.task)
    else:
        targets = task.targets(answered.prediction, answered.outputs, answered.features, answered.row, context)
    if not names:
        return [target for target in targets if target.chosen]
    selected = []
    for name in names:
        matches = [target for target in targets if name in (target.name, target.name.partition(": ")[0])]
        if not matches:
            raise UsageError(f"no target is called {name!r}", did_you_mean(name, [target.name for target in targets]))
        selected += matches
    return selected
