"""How fast several checkpoints answer the same rows on this machine, measured in turns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import mean

from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.evaluation.scoring import Scored
from bertkit.progress import Progress
from bertkit.tokens.features import Collator

_ALONE = 32  # rows that are timed one at a time
_TOGETHER = 512  # rows that are timed in batches


def time_in_turns(models: Sequence[tuple[Checkpoint, Scored]], progress: Progress) -> tuple[list[float], list[float]]:
    """Measure each model's mean seconds for a single row, and the rows per second that it reads in batches.

    Models take turns row by row and batch by batch, and the fastest of several passes counts: other work disturbs.

    Args:
        models: checkpoints with the features of the same rows.
        progress: shows how far it is.
    """
    from bertkit.evaluation.forward import forward, sorted_batches
    from bertkit.hardware.speed import time_by_turns
    from bertkit.tokens.feature_cache import lengths_of

    features = models[-1][1].features
    count = len(features)
    timed = range(0, count, max(1, count // _TOGETHER))
    lengths = lengths_of(features)[list(timed)].tolist()
    batches = [[timed[number] for number in batch] for batch in sorted_batches(lengths)]
    singles = [[number] for number in range(0, count, max(1, count // _ALONE))]

    def read(checkpoint: Checkpoint, scored: Scored, collate: Collator, numbers: Sequence[int]) -> None:
        checkpoint.use_machine()
        batch = [scored.features[number] for number in numbers]
        forward(checkpoint.model, batch, collate, precision=checkpoint.machine.precision)

    runs = [
        partial(read, checkpoint, scored, checkpoint.task.collator(checkpoint.setup)) for checkpoint, scored in models
    ]
    fastest = time_by_turns(runs, singles + batches, progress)
    alone = len(singles)
    single = [mean(seconds[:alone]) for seconds in fastest]
    return single, [len(timed) / sum(seconds[alone:]) for seconds in fastest]
