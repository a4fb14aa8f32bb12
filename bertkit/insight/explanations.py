"""Why a checkpoint answers a row as it does: what each word adds to what the model says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.errors import UsageError, closest
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.insight.attributions import Explained, integrated_gradients, occlusion
from bertkit.insight.settings import Settings
from bertkit.insight.words import Word, find_words
from bertkit.modeling.heads.targets import Target, targets_of_logits
from bertkit.recipe import Row
from bertkit.tasks import Prediction
from bertkit.tokens.features import Features, Tokenizer, special_ids


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


def explain(checkpoint: Checkpoint, answered: Answered, settings: Settings) -> list[Explanation]:
    """Explain a row: the number behind each target that is asked for, word by word.

    Raises:
        UsageError: no target is called as asked for.
        RecipeError: the task family does not say what there is to explain.
    """
    explanations = []
    for target in find_targets(checkpoint, answered, settings.targets):
        explained, words = open_target(checkpoint, answered, target, settings)
        gradients = integrated_gradients(explained, settings.most_steps)
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


def open_target(
    checkpoint: Checkpoint, answered: Answered, target: Target, settings: Settings
) -> tuple[Explained, list[Word]]:
    """Return the input that a target is computed from, and its words."""
    tokenizer, feature = checkpoint.setup.tokenizer, answered.features[target.feature]
    explained = Explained(
        checkpoint.model.eval(),
        {**feature, "row": 0},
        checkpoint.task.collator(checkpoint.setup),
        target.score,
        _baseline(tokenizer, settings.baseline),
        frozenset(special_ids(tokenizer)),
    )
    names = [name for name in checkpoint.task.COLUMNS.names if name != "id"]
    columns = {name: answered.row[name] for name in names if name in answered.row}
    return explained, find_words(explained.texts(), tokenizer, columns)


def _baseline(tokenizer: Tokenizer, name: str) -> int:
    mask, padding = tokenizer.mask_token_id, tokenizer.pad_token_id
    return int(padding if mask is None or name == "padding" else mask)
