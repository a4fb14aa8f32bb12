"""What an ablation comes to: how each encoder was pretrained, and what fine-tuning it scores beside the first one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from bertkit.metrics.baselines import Baselines, find_unbeaten
from bertkit.metrics.paired import Difference
from bertkit.recipe.space import Point, name_value
from bertkit.storage.runs import RunRecord


@dataclass(frozen=True)
class Variant:
    """One setting of an ablation: what differs from the others, and how its encoder was pretrained."""

    name: str
    settings: Point
    scores: dict[str, float] = field(default_factory=dict)
    """Scores of held-out text; objectives that predict different tokens have no common scale."""
    parameters: int = 0
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    failure: str = ""
    """Why there is no encoder, or not all of its fine-tunings."""


@dataclass(frozen=True)
class AblatedScore:
    """What fine-tuning the encoder of a variant scores on a task, and how that differs from the first variant."""

    variant: str
    mean: float
    seed_scores: list[float]
    difference: Difference | None
    """None for the first variant."""
    failures: dict[int, str] = field(default_factory=dict)
    """Seed -> why its run counts as failed; see `bertkit.evaluation.seeds.describe_run`."""


@dataclass(frozen=True)
class AblatedTask:
    """The scores of all variants on a task, by its best metric."""

    recipe: str
    split: str
    rows: int
    metric: str
    scores: list[AblatedScore]
    notes: list[str]
    baseline: float | None = None
    """What the null model scores, which reads nothing."""


@dataclass(frozen=True)
class AblationSummary:
    """Several ways to pretrain, and what each is worth on the tasks."""

    recipe: str
    folder: str
    space: dict[str, str]
    seeds: list[int]
    variants: list[Variant]
    tasks: list[AblatedTask]


def name_variants(points: Sequence[Point]) -> dict[str, Point]:
    """Name the points of a grid by their values, as folders may be called; what is no word has its key before it.

    >>> list(name_variants([{"objective": "mlm", "options.mask_rate": 0.15}, {"size": "a/b"}]))
    ['mlm-mask_rate=0.15', 'b']
    """
    names = ["-".join(_name_setting(key, value) for key, value in point.items()) for point in points]
    counts = Counter(names)
    return {
        name if counts[name] == 1 and name.strip(".") else f"{name}-{number}": point
        for number, (name, point) in enumerate(zip(names, points, strict=True), start=1)
    }


def _name_setting(key: str, value: object) -> str:
    name = re.sub(r"[^\w.+-]+", "_", name_value(value).split("/")[-1])
    return name if isinstance(value, str) else f"{key.split('.')[-1]}={name}"


def describe_variant(name: str, settings: Point, record: RunRecord | None, error: Exception | None = None) -> Variant:
    """Describe a variant from the record of its pretraining, if that is finished."""
    found = record["result"] if record is not None and record["status"] == "finished" else {}
    facts = {key: found[key] for key in ("scores", "parameters", "steps", "tokens", "seconds") if key in found}
    return Variant(name, settings, **facts, failure="" if error is None else str(error))


def describe_failures(scores: Sequence[AblatedScore]) -> list[str]:
    """Describe the seeds of each variant that failed."""
    failed = [(score.variant, *failure) for score in scores for failure in score.failures.items()]
    return [f"failed: {variant}, seed {seed}. {reason}" for variant, seed, reason in failed]


def find_unlearned(task: str, means: Sequence[float], baselines: Baselines, metric: str) -> list[str]:
    """Return a note that no encoder has learned a task, where no mean score beats the null baseline; else nothing.

    >>> find_unlearned("cola", [0.0, 0.1], {"most frequent label": {"f1": 0.0}}, "f1")
    []
    """
    unbeaten = [find_unbeaten({metric: mean}, baselines, metric) for mean in means]
    if not all(unbeaten):
        return []
    return [
        f"No encoder has learned {task}: no mean score beats a baseline, so these differences say nothing. Pretrain "
        f"for more --steps, or fine-tune for longer: --then '{task} training.epochs=10'."
    ]
