"""Score a run without each of its heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bertkit.modeling.load import read_config
from bertkit.progress import stage
from bertkit.recipe import Recipe
from bertkit.storage import hub

if TYPE_CHECKING:
    from bertkit.compression.importance import HeadImportance
    from bertkit.metrics.intervals import Interval


@dataclass(frozen=True)
class ImportantHeads:
    """The score of a run without each of its heads."""

    run: str
    recipe: str
    split: str
    rows: int
    metric: str
    score: float
    """With all heads."""
    interval: Interval
    heads: list[HeadImportance]

    def ranked(self) -> list[HeadImportance]:
        """Return the heads from the one that is missed most to the one that is best left out."""
        return sorted(self.heads, key=lambda one: (one.difference, -one.gradient))


def rank_by_importance(recipe: Recipe, *, split: str | None = None, rows: int = 256) -> ImportantHeads:
    """Score a run without each of its heads in turn.

    Args:
        recipe: that of the run, with the run as its model.
        split: ``validation`` by default.
        rows: how many of the first rows are scored, once for each head.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    from bertkit.evaluation.checkpoint import find_checkpoint
    from bertkit.evaluation.splits import judge_training_rows
    from bertkit.workflows.evaluate import splits_to_score

    read_config(hub.find_model(recipe.model))  # of an exported run no head can be left out
    saved = find_checkpoint(recipe)
    with stage("reading the data", total=1):
        name, chosen = next(iter(judge_training_rows(saved, splits_to_score(saved, split), "refuse").items()))
    # A model of BERT base has 144 heads, and each costs a pass over these rows.
    chosen = chosen.first(rows)
    from bertkit.compression.choose_units import load_to_measure
    from bertkit.compression.importance import score_heads
    from bertkit.evaluation.scoring import find_intervals, score_split

    with stage(f"loading {recipe.model_name}"):
        checkpoint = load_to_measure(saved, saved.load(inference=True, calibrated=False))
    features = saved.task.encode(chosen.rows, checkpoint.setup)
    heads = score_heads(checkpoint, chosen, features)
    whole, metric = score_split(checkpoint, chosen, features=features), recipe.best_metric
    return ImportantHeads(
        run=str(recipe.model),
        recipe=recipe.name,
        split=name,
        rows=len(chosen.rows),
        metric=metric,
        score=float(whole.scores[metric]),
        interval=find_intervals(saved.task, whole).ends[metric],
        heads=heads,
    )
