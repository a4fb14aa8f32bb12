"""Score a trained checkpoint on the validation splits of its recipe, or on another split."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.data.checks import describe_lacking
from bertkit.data.rows import Split
from bertkit.data.sources import find_unsplit_file, is_validation, use_recorded_data
from bertkit.evaluation.baselines import compare_baselines, make_result, read_learned
from bertkit.evaluation.benchmarks import write_eval_results
from bertkit.evaluation.calibration import warn_of_tuned
from bertkit.evaluation.checkpoint import Checkpoint, CheckpointInfo, find_members
from bertkit.evaluation.folder import begin_evaluation, check_output, finish_evaluation
from bertkit.evaluation.forward import gather_from_all
from bertkit.evaluation.gates import judge_result
from bertkit.evaluation.scoring import (
    EvalOutput,
    EvalResult,
    score_ensemble,
    score_split,
    write_predictions,
)
from bertkit.evaluation.splits import OnOverlap, resolve_overlap, splits_to_score
from bertkit.hardware.device import is_launched
from bertkit.hardware.launch import join_process_group
from bertkit.metrics.intervals import combine_intervals
from bertkit.progress import Progress, log, stage, with_progress
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import expand_path
from bertkit.storage import runs
from bertkit.storage.files import null_for_nan
from bertkit.storage.outputs import lock_output


@with_progress
def evaluate(
    recipe: Recipe,
    *,
    split: str | None = None,
    output: str | Path | None = None,
    on_overlap: OnOverlap = "error",
    strict_labels: bool = False,
    progress: Progress | None = None,
) -> list[EvalResult]:
    """Score the checkpoint `recipe.model` on the validation splits of its recipe, or on another split.

    The processes of a launch divide the rows. All of them return the results, and the first one writes them.

    Args:
        recipe: Recipe of the checkpoint.
        split: Name of the split.
        output: Folder for predictions, under the names that they have in a run folder, and for a record of the scores
            and of the model; see `bertkit.evaluation.folder`.
        on_overlap: Treatment of rows that the checkpoint was trained on; see `resolve_overlap`.
        strict_labels: Reject labels that the checkpoint lacks; by default, such rows count as wrong.
        progress: Shows how far the work is.

    Raises:
        BertkitError: If the model or a row cannot be read, or the output cannot be written; see `bertkit.errors`.
    """
    results = _evaluate_all({"": recipe}, split, output, on_overlap, strict=strict_labels)
    return results[""]


def evaluate_languages(
    recipes: Mapping[str, Recipe],
    *,
    split: str | None = None,
    output: str | Path | None = None,
    on_overlap: OnOverlap = "error",
    strict_labels: bool = False,
) -> tuple[dict[str, list[EvalResult]], list[dict[str, Any]]]:
    """Score a checkpoint on rows of several languages, each as `evaluate` does.

    Args:
        recipes: Language -> recipe; only the data differs.
        split: As for `evaluate`.
        output: Folder that gets a folder of predictions per language.
        on_overlap: As for `evaluate`.
        strict_labels: As for `evaluate`.

    Returns:
        Results of each language, and the means of the metric that chooses the checkpoint; see `average_languages`.

    Raises:
        BertkitError: If the model or a row cannot be read, or the output cannot be written; see `bertkit.errors`.
    """
    results = _evaluate_all(recipes, split, output, on_overlap, strict=strict_labels)
    return results, average_languages(results, next(iter(recipes.values())).best_metric)


def average_languages(results: Mapping[str, Sequence[EvalResult]], metric: str) -> list[dict[str, Any]]:
    """Average a metric over languages with equal weights: once if each language has one split, else once per split.

    Returns:
        ``metric``, ``splits``, ``score`` and ``interval`` of each mean; no score for a single language or if a score is
        undefined. The interval takes rows of different languages as independent.
    """
    splits = list(dict.fromkeys(result.split for group in results.values() for result in group))
    means = []
    for names in [splits] if all(len(group) == 1 for group in results.values()) else [[split] for split in splits]:
        averaged = [result for group in results.values() for result in group if result.split in names]
        weight = 1 / len(averaged)
        scored = [(result.scores[metric], result.intervals.get(metric)) for result in averaged]
        terms = [(weight, score, interval) for score, interval in scored if score is not None]
        mean: dict[str, Any] = {"metric": metric, "splits": names, "score": None, "interval": None}
        if len(terms) >= max(2, len(averaged)):
            mean |= {"score": sum(score for _, score, _ in terms) * weight, "interval": combine_intervals(terms)}
        means.append(mean)
    return means


def _evaluate_all(
    recipes: Mapping[str, Recipe], split: str | None, output: str | Path | None, on_overlap: OnOverlap, *, strict: bool
) -> dict[str, list[EvalResult]]:
    """Score one checkpoint with several recipes that differ in their data; each writes into a subfolder by its name."""
    # 1. Check the checkpoint once, because only the data of the recipes differs, and read the rows of each recipe.
    folder = None if output is None else expand_path(output)
    with stage("reading the data", total=len(recipes)):
        saved = find_members(next(iter(recipes.values())))
        split = split or _choose_split(saved)
        # The checkpoint's run may have held out rows of a file. They are held out again, so that only they are scored.
        identity = saved.record.get("identity", {})
        by_name = {name: replace(saved, recipe=use_recorded_data(recipe, identity)) for name, recipe in recipes.items()}
        splits = {
            name: resolve_overlap(part, splits_to_score(part, split, strict=strict), on_overlap)
            for name, part in by_name.items()
        }

    # 2. Claim all folders before the first split is scored, so that no other process writes into one in the meantime.
    with ExitStack() as claims:
        for name in dict.fromkeys(["", *recipes]):
            claims.enter_context(_claimed(folder and folder / name, splits.get(name, {})))

        # 3. Load the checkpoint, and score.
        checkpoint = _load_checkpoint(saved)
        return {
            name: score_splits(checkpoint, part, splits[name], folder and folder / name)
            for name, part in by_name.items()
        }


@contextmanager
def _claimed(folder: Path | None, splits: Mapping[str, Split]) -> Iterator[None]:
    """Check the folder of an evaluation and hold its lock; only the first process of a launch writes into it."""
    if folder is None or not runs.is_main_process():
        yield
        return
    check_output(folder, splits)
    with lock_output(folder / "predictions.jsonl"):
        yield


def _choose_split(saved: CheckpointInfo) -> str | None:
    """Return ``validation`` for a model without a run and a file without splits, else None, the split of the run.

    A model before training is compared with the run that trains it, so it is scored on the rows that the run holds out.
    """
    if saved.record or saved.task.find_labels or find_unsplit_file(saved.recipe.data) is None:
        return None
    log.info("scoring the rows that finetune would hold out of this file; --split all scores every row")
    return "validation"


def _load_checkpoint(saved: CheckpointInfo) -> Checkpoint:
    """Load the model in each process of a launch, all in the precision that the first one chooses.

    Outputs in another precision would differ in rounding.
    """
    with stage(f"loading {saved.recipe.model_name}"):
        if not is_launched():
            return saved.load(inference=True)
        join_process_group()
        if not runs.is_main_process():
            # The first process sends its precision as soon as it has loaded the model.
            precision, *_ = gather_from_all(None)
            return saved.in_precision(precision).load(inference=True)
        checkpoint = saved.load(inference=True)
        gather_from_all(checkpoint.machine.precision)
        return checkpoint


def score_splits(
    checkpoint: Checkpoint, saved: CheckpointInfo, splits: dict[str, Split], folder: Path | None
) -> list[EvalResult]:
    """Score a loaded checkpoint on splits, and write predictions and scores into the folder, if there is one."""
    # 1. Read the baselines that were fitted when the model was trained: rows to score must not influence them.
    recipe, task, learned = saved.recipe, checkpoint.task, read_learned(saved)
    output = folder if runs.is_main_process() else None
    record = None if output is None else begin_evaluation(output, saved)
    results, labels, files = [], list(checkpoint.context.labels), list[str]()

    # 2. Score split by split.
    for split in splits.values():
        start = time.perf_counter()
        scored, member_tables = _score_split(checkpoint, saved, split)
        details = task.details(scored.predictions, split.rows, scored.context)
        compared_baselines = {} if learned is None else compare_baselines(task, learned, split.rows, scored.context)
        result = make_result(task, split, scored, details, compared_baselines)
        # Labels of the rows that the model does not have were added to the end, and are never predicted.
        unknown_labels = scored.context.labels[len(checkpoint.context.labels) :]
        warnings = describe_lacking(list(split.column(task.COLUMNS.gold)), unknown_labels) + scored.warnings
        if _was_tuned_on(saved, split):
            warnings += warn_of_tuned(name for name in saved.record.get("tuned", {}) if name not in recipe.options)
        result = replace(
            result,
            folder=None if folder is None else str(folder),
            warnings=warnings + result.warnings,
            tables={**member_tables, **result.tables},
            seconds=time.perf_counter() - start,
        )
        results.append(judge_result(recipe.gates, result, saved.member_folders or [saved.folder]))
        labels += unknown_labels
        if output is not None:
            files += write_predictions(output, split, scored.predictions, details)

    # 3. Write the record last: a folder without it counts as unfinished.
    if output is not None and record is not None:
        write_eval_results(output, recipe, results)
        finish_evaluation(output, record, results, splits, labels, files)
    return results


def _was_tuned_on(saved: CheckpointInfo, split: Split) -> bool:
    """Return whether the run of a checkpoint tuned its options on these rows."""
    data = saved.record.get("identity", {}).get("data", {})
    first = next(filter(is_validation, data), None)
    return first is not None and split.fingerprint() == data[first]


def _score_split(
    checkpoint: Checkpoint, saved: CheckpointInfo, split: Split
) -> tuple[EvalOutput, dict[str, list[dict[str, Any]]]]:
    """Score a split; for an ensemble, return a table with the scores of its members too."""
    if not checkpoint.members:
        return score_split(checkpoint, split), {}
    scored, members = score_ensemble(checkpoint, split)
    table = []
    for saved_member, member in zip(saved.members, members, strict=True):
        scores = {name: "n/a" if score is None else score for name, score in null_for_nan(member.scores).items()}
        table.append({"run": saved_member.folder.name, **scores})
    return scored, {"members of the ensemble": table}
