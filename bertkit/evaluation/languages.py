"""The scores of one model in several languages side by side, and how far each is from the language of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bertkit.data.rows import Split
from bertkit.errors import UsageError
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint
from bertkit.evaluation.scoring import Result, score_split
from bertkit.metrics.basic import is_lower_better
from bertkit.metrics.intervals import Interval, combine_intervals
from bertkit.progress import stage
from bertkit.storage.checkpoints import whole_checkpoints
from bertkit.storage.records import RunRecord

StepScores = dict[int, dict[str, dict[str, float | None]]]
"""Step of a checkpoint -> language -> split -> score."""


@dataclass(frozen=True)
class LanguageScore:
    """The score of the rows of one language."""

    language: str
    split: str
    rows: int
    score: float | None
    interval: Interval
    baseline: float | None
    """The score of the strongest baseline; None where there is none."""
    gap: float | None = None
    """The score minus that of the reference; None for the reference itself, and where one is undefined."""
    gap_interval: Interval = None
    """For rows that are independent of those of the reference."""
    oracle: float | None = None
    """The best score of any checkpoint of the run, chosen on these very rows; None where only the model was scored."""
    oracle_step: int | None = None


@dataclass(frozen=True)
class LanguageMean:
    """The mean score of several languages, each with the same weight."""

    languages: list[str]
    score: float
    interval: Interval
    """For rows of one language that are independent of those of another."""


@dataclass(frozen=True)
class LanguageTable:
    """One split of each language, scored by the metric that chooses the checkpoint."""

    metric: str
    scores: list[LanguageScore]
    means: list[LanguageMean]
    """Mean over all languages, and over those that are not the reference; none where a score is undefined."""


@dataclass(frozen=True)
class LanguageScores:
    """What a checkpoint scored in several languages."""

    recipe: str
    model: str
    reference: str
    """The language that gaps are measured from."""
    is_recorded: bool
    """Whether the run's record names the reference as the language of training; else it is the first one asked for."""
    results: dict[str, list[Result]]
    """Language -> a result for each split."""
    tables: list[LanguageTable]
    checkpoints: list[int] = field(default_factory=list)
    """Steps of the checkpoints that were scored too."""


def find_checkpoints(saved: SavedCheckpoint) -> dict[int, Path]:
    """Find the checkpoints that a run has kept: step -> folder.

    Raises:
        UsageError: it has kept none, or is no run, or they hold adapters apart.
    """
    saves = {} if saved.members else whole_checkpoints(saved.folder)
    training = saved.record.get("identity", {}).get("recipe", {}).get("training", {})
    if saves and training.get("lora"):
        what = f"--oracle with {saved.recipe.model}, whose checkpoints hold adapters that are not merged"
        raise UsageError(what, "leave it out, or name a run that trained all weights")
    if not saves:
        what = f"--oracle with {saved.recipe.model}, which has no checkpoints"
        raise UsageError(what, "name the folder of a run, trained with `--set training.keep_all_checkpoints=true`")
    return saves


def score_checkpoints(
    folders: Mapping[int, Path],
    checkpoint: Checkpoint,
    splits: Mapping[str, Mapping[str, Split]],
    metric: str,
    known: StepScores,
) -> StepScores:
    """Score the rows of each language with each checkpoint of a run, decoded as its model is, which is `checkpoint`.

    The scores of a step that are `known` already, such as those of the best one, are taken as they are.
    """
    scores: StepScores = {}
    for step, folder in folders.items():
        if step in known:
            scores[step] = known[step]
            continue
        with stage(f"loading {folder.name}"):
            model = checkpoint.task.load_model(folder, checkpoint.setup, new_head=False)
        other = replace(checkpoint, model=model.to(checkpoint.machine.device))
        scores[step] = {
            language: {name: score_split(other, split).scores[metric] for name, split in of.items()}
            for language, of in splits.items()
        }
    return scores


def with_oracle(table: LanguageTable, by_step: StepScores) -> LanguageTable:
    """Add to each score of a table the best one of any checkpoint; of equal ones, that of the first."""
    sign = -1 if is_lower_better(table.metric) else 1
    scores = []
    for of_split in table.scores:
        of_steps = {step: scored[of_split.language][of_split.split] for step, scored in by_step.items()}
        known = {step: score for step, score in of_steps.items() if score is not None}
        step = max(known, key=lambda step: sign * known[step], default=None)
        scores.append(of_split if step is None else replace(of_split, oracle=known[step], oracle_step=step))
    return replace(table, scores=scores)


def find_reference(record: RunRecord, languages: Sequence[str]) -> tuple[str, bool]:
    """Return the language that gaps are measured from, and whether it is that of training, which the record names."""
    trained = record.get("identity", {}).get("recipe", {}).get("data", {}).get("language")
    return (str(trained), True) if trained else (languages[0], False)


def tabulate_languages(results: Mapping[str, Sequence[Result]], metric: str, reference: str) -> list[LanguageTable]:
    """Put the languages beside each other: in one table if each has one split, else in a table per split."""
    if all(len(of_language) == 1 for of_language in results.values()):
        return [_tabulate_split({language: of[0] for language, of in results.items()}, metric, reference)]
    splits = dict.fromkeys(result.split for of_language in results.values() for result in of_language)
    by_split = (
        {language: result for language, of in results.items() for result in of if result.split == split}
        for split in splits
    )
    return [_tabulate_split(of_split, metric, reference) for of_split in by_split]


def _tabulate_split(results: Mapping[str, Result], metric: str, reference: str) -> LanguageTable:
    scores = [_score_language(language, result, metric, results.get(reference)) for language, result in results.items()]
    others = [score for score in scores if score.language != reference]
    groups = [scores, others] if len(others) < len(scores) else [scores]
    return LanguageTable(metric, scores, [mean for group in groups if (mean := _average_languages(group))])


def _score_language(language: str, result: Result, metric: str, reference: Result | None) -> LanguageScore:
    score, interval = result.scores[metric], result.intervals.get(metric)
    gap, gap_interval = None, None
    if reference is not None and reference is not result:
        base = reference.scores[metric]
        if score is not None and base is not None:
            gap = score - base
            gap_interval = combine_intervals([(1, score, interval), (-1, base, reference.intervals.get(metric))])
    baseline = result.baseline.get(metric)
    return LanguageScore(language, result.split, result.rows, score, interval, baseline, gap, gap_interval)


def _average_languages(scores: Sequence[LanguageScore]) -> LanguageMean | None:
    """Return the mean of at least two scores; None if one is undefined."""
    known = [(score.score, score.interval) for score in scores if score.score is not None]
    if len(known) < max(2, len(scores)):
        return None
    share = 1 / len(known)
    interval = combine_intervals([(share, score, ends) for score, ends in known])
    return LanguageMean([score.language for score in scores], sum(score for score, _ in known) * share, interval)
