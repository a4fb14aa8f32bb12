"""Why a checkpoint answers a row as it does: what each word adds to what the model says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.errors import UsageError, closest
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.insight.attributions import Explained, integrated_gradients, occlusion
from bertkit.insight.words import find_words
from bertkit.modeling.heads.targets import Target, targets_of_logits
from bertkit.recipe.sections import Row
from bertkit.tasks import Prediction
from bertkit.tokens.features import Features, special_ids


@dataclass(frozen=True)
class WordValue:
    """What a word adds to the score, as two methods find it."""

    word: str
    segment: int
    """Which of the texts between special tokens it stands in."""
    integrated_gradients: float
    occlusion: float


@dataclass(frozen=True)
class Explanation:
    """What the words of a row add to one number that the model computes."""

    target: str
    measure: str
    """What the number is: ``log-odds``, ``cosine`` and so on."""
    score: float
    baseline_score: float
    """Score of the row with all words replaced by the baseline."""
    steps: int
    gap: float
    """How far integrated gradients are from adding up to the difference of the two scores, as a share of it."""
    is_complete: bool
    """Whether that is within 1 %."""
    words: list[WordValue]


@dataclass(frozen=True)
class Answered:
    """A row with its prediction, and what the model has computed for it."""

    row: Row
    prediction: Prediction
    features: Features
    outputs: Sequence[Mapping[str, Any]]


def explain(
    checkpoint: Checkpoint, answered: Answered, *, targets: Sequence[str] = (), max_steps: int = 512
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
    tokenizer = checkpoint.setup.tokenizer
    mask = tokenizer.mask_token_id
    baseline = int(tokenizer.pad_token_id if mask is None else mask)
    explanations = []
    for target in find_targets(checkpoint, answered, targets):
        explained = Explained(
            checkpoint.model.eval(),
            {**answered.features[target.feature], "row": 0},
            checkpoint.task.collator(checkpoint.setup),
            target.score,
            baseline,
            frozenset(special_ids(tokenizer)),
        )
        words = find_words(explained.texts(), tokenizer)
        gradients = integrated_gradients(explained, max_steps)
        dropped = occlusion(explained, [word.positions for word in words])
        values = [
            WordValue(
                word.text, word.segment, float(sum(gradients.values[each] for each in word.positions)), float(drop)
            )
            for word, drop in zip(words, dropped, strict=True)
        ]
        scores = gradients.score, gradients.baseline_score, gradients.steps, gradients.gap, gradients.is_complete
        explanations.append(Explanation(target.name, target.measure, *scores, values))
    return explanations


def find_targets(checkpoint: Checkpoint, answered: Answered, wanted: Sequence[str]) -> list[Target]:
    """Find the numbers to explain: those of the prediction, or those that are asked for by name."""
    task, setup = checkpoint.task, checkpoint.setup
    if task.targets is None:
        # A family without targets of its own is explained by its logits.
        targets = targets_of_logits(answered.outputs, setup, setup.recipe.task)
    else:
        targets = task.targets(answered.prediction, answered.outputs, answered.features, answered.row, setup)
    if not wanted:
        return [target for target in targets if target.chosen]
    chosen = []
    for name in wanted:
        named = [target for target in targets if name in (target.name, target.name.partition(": ")[0])]
        if not named:
            raise UsageError(f"no target is called {name!r}", closest(name, [target.name for target in targets]))
        chosen += named
    return chosen
