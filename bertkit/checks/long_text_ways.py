"""What a trained model scores on rows that are too long for it, in each way that it can read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from bertkit.checks import Finding
from bertkit.data.rows import Split
from bertkit.errors import UsageError
from bertkit.evaluation.checkpoint import SavedCheckpoint
from bertkit.evaluation.scoring import run_model
from bertkit.metrics import Numbers
from bertkit.metrics.basic import is_lower_better
from bertkit.metrics.calibration import gold_losses
from bertkit.metrics.intervals import bootstrap_intervals, take
from bertkit.metrics.linear import sample
from bertkit.modeling.load import load_tokenizer
from bertkit.tasks import Compared, Task, with_options
from bertkit.tokens.features import Setup
from bertkit.tokens.long_texts import HIERARCHICAL, SHORTENED, WINDOWS
from bertkit.tokens.lost import find_long

MOST_ROWS = 200
_LEAST_ROWS = 20
_GROUP, _SCORES, _ADVICE = "tokens", "long_text_scores", "long_text_advice"

_ScoredWay = tuple[Callable[[Numbers], float], float | None]
"""A function from rows to their score, and the mean loss of the gold labels, if there is one."""


def check_ways(saved: SavedCheckpoint) -> None:
    """Check that a checkpoint can read long texts in several ways.

    Raises:
        UsageError: its task family has no such option, or it is trained to read windows together.
    """
    if "long_text" not in saved.task.OPTIONS:
        raise UsageError(f"{saved.recipe.task} has no options.long_text to compare", "leave out --long-text")
    if saved.long_text == HIERARCHICAL:
        raise UsageError("a hierarchical model reads long texts in no other way", "leave out --long-text")


def compare_ways(saved: SavedCheckpoint, split: Split) -> list[Finding]:
    """Score a checkpoint on the rows of a split that are too long for it, read in each way, and advise one.

    A way is advised where its best metric is better than that of the recipe's way beyond an interval of the difference
    over rows, at 95% for all ways together (Bonferroni).
    """
    long, _ = find_long(split.rows, saved.task.encode, Setup(saved.recipe, load_tokenizer(saved.folder), saved.labels))
    if len(long) < _LEAST_ROWS:
        text = f"{split.name}: {len(long)} rows are too long, which are too few to compare ways to read them"
        return [Finding("good", _GROUP, _ADVICE, text)]
    chosen = split.select(sample(long, MOST_ROWS))
    metric, way_of_run = saved.recipe.best_metric, saved.long_text
    by_way = dict(_score_ways(saved, chosen))
    everything = np.arange(len(chosen.rows))
    scores = {way: score(everything) for way, (score, _) in by_way.items()}
    findings = [
        Finding("good", _GROUP, _SCORES, f"{split.name}: read by {way}: {metric} {scores[way]:.4f}{_loss(loss)}")
        for way, (_, loss) in by_way.items()
    ]
    sign = -1 if is_lower_better(metric) else 1
    # Of equally good ways, that of the run wins: a change needs a reason.
    best = max(scores, key=lambda way: (sign * scores[way], way == way_of_run))
    count = f"the {len(chosen.rows)} of {len(long)}" if len(long) > len(chosen.rows) else f"the {len(long)}"
    on = f"on {count} {split.name} rows that are too long"
    if best != way_of_run:
        gains = bootstrap_intervals(
            lambda rows: {"gain": sign * (by_way[best][0](rows) - by_way[way_of_run][0](rows))},
            len(chosen.rows),
            # The best of several ways is ahead by luck too, so the level is divided by their number (Bonferroni).
            level=1 - 0.05 / (len(by_way) - 1),
        )["gain"]
        if gains is not None and gains[0] > 0:
            text = f"{best} reads long texts better than {way_of_run}: {metric} {scores[best]:.4f}"
            text += f" instead of {scores[way_of_run]:.4f} {on} (gain {gains[0]:.4f} to {gains[1]:.4f})"
            text += f": --set options.long_text={best}"
            return [*findings, Finding("warn", _GROUP, _ADVICE, text)]
    text = f"stay with {way_of_run}: no way is shown to be better {on}"
    return [*findings, Finding("good", _GROUP, _ADVICE, text)]


def _score_ways(saved: SavedCheckpoint, split: Split) -> Iterator[tuple[str, _ScoredWay]]:
    """Yield each way with what it scores."""
    choices = saved.task.OPTIONS["long_text"].choices
    # windows are run once, and combined in several ways
    for ways in (*([way] for way in SHORTENED), list(WINDOWS)):
        options = {**saved.recipe.options, "long_text": ways[0]}
        recipe = saved.recipe.model_copy(update={"options": options})
        checkpoint = replace(saved, recipe=recipe).load(inference=True)
        task = checkpoint.task
        features = task.encode(split.rows, checkpoint.setup)
        outputs, _ = run_model(checkpoint, features, f"reading {split.name} by {ways[0]}")
        for way in (way for way in ways if way in choices):
            setup = with_options(checkpoint.setup, {"long_text": way})
            predictions = task.decode(outputs, features, split.rows, setup)
            compared = task.compare(predictions, split.rows, setup)
            loss = None
            if task.gold_probabilities is not None:
                decisions = task.gold_probabilities(predictions, split.rows, setup)
                loss = float(gold_losses(decisions.probabilities, decisions.gold).mean())
            yield way, (_scorer(task, compared, setup), loss)


def _scorer(task: Task, compared: Compared, setup: Setup) -> Callable[[Numbers], float]:
    """Return the function from rows to the best metric."""
    metric = setup.recipe.best_metric
    return lambda rows: task.score(take(compared, rows), setup)[metric]


def _loss(loss: float | None) -> str:
    return "" if loss is None else f", loss {loss:.4f}"
