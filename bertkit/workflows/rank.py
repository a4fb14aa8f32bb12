"""Rank encoders by how well their frozen vectors tell the gold answers of a recipe's rows, with what each costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bertkit.data.checks import share_of
from bertkit.data.row_digests import mark_training_rows, read_digests
from bertkit.data.rows import Split
from bertkit.errors import UsageError
from bertkit.hardware.speed import describe_spreads
from bertkit.insight.layer_vectors import LayerReader
from bertkit.insight.ranking.cost import EncoderCost, max_tokens, measure_costs
from bertkit.insight.ranking.examples import choose_examples, read_features
from bertkit.insight.ranking.layers import check_layers
from bertkit.insight.ranking.measure import H_SCORE, LOGME, EncoderScores, score_encoder
from bertkit.insight.ranking.uncertainty import are_alike
from bertkit.metrics.seeds import find_pareto
from bertkit.modeling.layers import count_layers
from bertkit.progress import log, stage
from bertkit.recipe import Recipe
from bertkit.storage import hub
from bertkit.tasks import load_task
from bertkit.workflows.finetune.inputs import read_labeled


@dataclass(frozen=True)
class RankSettings:
    """How encoders are ranked."""

    by: str | None = None
    """``logme`` or ``h_score``, each less its value on shuffled gold values; None for the former."""
    layers: str = "mean"
    """``mean``, ``last``, ``best`` or the number of a layer."""
    examples: int = 2000
    """Training rows (of taggers, words) that are read at most."""


@dataclass(frozen=True)
class RankedEncoder:
    """An encoder with its scores and its cost."""

    model: str
    scores: dict[str, float]
    interval: tuple[float, float]
    """The 95% interval of the score that encoders are ordered by."""
    shuffled: float
    """That score where the gold values are shuffled: what many dimensions alone come to."""
    layer: str | int
    cost: EncoderCost
    is_efficient: bool
    """Whether no other encoder is both as good and as fast, and better in one of the two."""
    is_like_first: bool
    """Whether its score cannot be told apart from that of the first encoder."""
    is_like_next: bool
    """The same for the one after it."""
    seconds: float
    """Time to read its vectors, where these were not on disk, and to score them."""

    @property
    def is_chance(self) -> bool:
        """Whether the score may be what shuffled gold values score too."""
        return self.interval[0] <= self.shuffled


@dataclass(frozen=True)
class Ranking:
    """Encoders, the best first."""

    recipe: str
    task: str
    unit: str
    """What an example is: ``text``, ``pair``, ``two texts``, ``word`` or ``target``."""
    split: str
    examples: int
    classes: int | None
    """None where gold values are numbers."""
    by: str
    layers: str
    encoders: list[RankedEncoder]
    precision: str
    threads: int
    seconds: float
    notes: list[str] = field(default_factory=list)


def rank(recipe: Recipe, models: Sequence[str], settings: RankSettings = RankSettings()) -> Ranking:
    """Rank encoders on the training rows of a recipe, without training any.

    All that can be wrong about the models and the rows is found before the first vector is read.

    Args:
        recipe: whose rows are read; its own model does not matter.
        models: at least two encoders.
        settings: how they are ranked.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    began = time.perf_counter()
    check_models(models, check_layers(settings.layers))
    task = load_task(recipe)
    if recipe.task == "zero_shot":
        what = "frozen vectors do not tell what a model that was trained on other labels answers (zero-shot)"
        raise UsageError(what, "bertkit eval --zero-shot scores such models; rank with --set task=text_classification")
    with stage("reading the data", total=1):
        _, splits = read_labeled(recipe)
        examples = choose_examples(task, splits["train"], settings.examples)
    by = settings.by or LOGME
    if by == H_SCORE and not examples.is_named:
        raise UsageError("the H-score is one of classes, and these gold values are numbers", f"--by {LOGME}")
    with stage("loading torch and transformers"):
        readers = [open_reader(model, recipe) for model in models]
    # What encoders cost is measured for all together: they take turns at every batch.
    costs = measure_costs([reader.embedder for reader in readers], examples.rows)
    scored, seconds = [], []
    for reader in readers:
        start = time.perf_counter()
        log.info(f"ranking {reader.model} ...")
        scored.append(score_encoder(read_features(reader, examples), examples, settings.layers, by))
        seconds.append(time.perf_counter() - start)
    import torch

    return Ranking(
        recipe=recipe.name,
        task=recipe.task,
        unit=examples.unit,
        split=splits["train"].name,
        examples=len(examples.gold),
        classes=examples.classes,
        by=by,
        layers=settings.layers,
        encoders=_order_encoders(models, by, scored, costs, seconds),
        precision=readers[0].embedder.load()[0],
        threads=torch.get_num_threads(),
        seconds=time.perf_counter() - began,
        notes=[*_find_trained(readers, splits["train"], task.COLUMNS.gold), *_describe_notes(settings.layers, costs)],
    )


def check_models(models: Sequence[str], layers: str = "mean") -> None:
    """Check that there are several encoders, each named once, with a readable config and as many layers as asked for.

    Neither torch is loaded nor are weights fetched.

    Raises:
        UsageError: there is one only, one is named twice, or one has fewer layers.
        ModelError: one is no encoder.
        UnavailableError: one is neither on disk nor to be had from the hub.
    """
    if len(models) < 2:
        what = "no encoders to rank" if not models else f"{models[0]} alone cannot be ranked"
        raise UsageError(what, "name two or more: --models A B")
    known: dict[Path, str] = {}
    with hub.without_weights():
        for model in models:
            embedder = LayerReader(model).embedder
            folder = embedder.folder.resolve()
            if folder in known:
                same = known[folder]
                what = f"{model} twice" if same == model else f"{model} and {same} are one model"
                raise UsageError(what, "name each encoder once")
            known[folder] = model
            count = count_layers(embedder.config)
            if layers.isdigit() and count is not None and int(layers) > count:
                raise UsageError(f"--layers {layers}, and {model} has {count} layers", f"give at most {count}")


def open_reader(model: str, recipe: Recipe) -> LayerReader:
    """Return a reader of an encoder's vectors, of rows as long as the recipe and the encoder have them."""
    length = min(recipe.training.max_length, max_tokens(LayerReader(model).embedder))
    return LayerReader(model, length, recipe.training.precision)


def _order_encoders(
    models: Sequence[str],
    by: str,
    scored: Sequence[EncoderScores],
    costs: Sequence[EncoderCost],
    seconds: Sequence[float],
) -> list[RankedEncoder]:
    # what wide vectors come to by chance tells nothing about them
    values = [one.scores[by] - one.shuffled for one in scored]
    order = sorted(range(len(models)), key=lambda number: -values[number])
    efficient = find_pareto(values, [cost.tokens_per_second for cost in costs])

    def is_like(one: int, other: int) -> bool:
        return are_alike((values[one], values[other]), (scored[one].left_out, scored[other].left_out))

    return [
        RankedEncoder(
            model=models[number],
            scores=scored[number].scores,
            interval=scored[number].interval,
            shuffled=scored[number].shuffled,
            layer=scored[number].layer,
            cost=costs[number],
            is_efficient=efficient[number],
            is_like_first=is_like(number, order[0]),
            is_like_next=after is not None and is_like(number, after),
            seconds=seconds[number],
        )
        for number, after in zip(order, [*order[1:], None], strict=True)
    ]


def _find_trained(readers: Sequence[LayerReader], split: Split, gold: str) -> list[str]:
    """Say which encoders come from a run that was trained on these rows, whose labels their vectors know."""
    notes = []
    for reader in readers:
        trained = read_digests(reader.embedder.folder)
        seen = [] if trained is None else mark_training_rows(split, gold, trained).training_rows
        if seen:
            share = share_of(len(seen), len(split.rows))
            notes.append(f"{reader.model} was trained on {share} of these rows: its scores are too high.")
    return notes


def _describe_notes(layers: str, costs: Sequence[EncoderCost]) -> list[str]:
    notes = [f"{note[0].upper()}{note[1:]}." for note in describe_spreads(cost.spread for cost in costs)]
    if layers == "best":
        notes.append(
            "The best layer was chosen on the rows that it is scored on, which favors encoders of many layers."
        )
    if any(cost.memory_bytes is None for cost in costs):
        notes.append("Memory is not known: the system does not tell its peak.")
    return notes
