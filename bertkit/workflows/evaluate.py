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
from bertkit.evaluation.baselines import compare_baselines, make_result, read_baselines
from bertkit.evaluation.benchmarks import write_eval_results
from bertkit.evaluation.calibration import warn_of_tuned_options
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
        progress: Shows the progress of the work.

    Raises:
        BertkitError: If the model or a row cannot be read, or the output cannot be written; see `bertkit.errors`.
    """
    return _evaluate_all({"": recipe}, split, output, on_overlap, strict=strict_labels)[""]


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
        Results of each language, and means of the metric that selects the checkpoint; see `average_languages`.

    Raises:
        BertkitError: If the model or a row cannot be read, or the output cannot be written; see `bertkit.errors`.
    """
    results = _evaluate_all(recipes, split, output, on_overlap, strict=strict_labels)
    return results, average_languages(results, next(iter(recipes.values())).best_metric)


def average_languages(results: Mapping[str, Sequence[EvalResult]], metric: str) -> list[dict[str, Any]]:
    """Average a metric over languages with equal weights: once if each language has one split, else once per split.

    Returns:
        ``metric``, ``splits``, ``score`` and ``interval`` of each mean. A single language, or an undefined score, has
        no mean. The interval treats rows of different languages as independent.
    """
    splits = list(dict.fromkeys(result.split for group in results.values() for result in group))
    means = []
    for names in [splits] if all(len(group) == 1 for group in results.values()) else [[split] for split in splits]:
        split_results = [result for group in results.values() for result in group if result.split in names]
        weight = 1 / len(split_results)
        scores = [(result.scores[metric], result.intervals.get(metric)) for result in split_results]
        terms = [(weight, score, interval) for score, interval in scores if score is not None]
        mean: dict[str, Any] = {"metric": metric, "splits": names, "score": None, "interval": None}
        if len(terms) >= max(2, len(split_results)):
            mean |= {"score": sum(score for _, score, _ in terms) * weight, "interval": combine_intervals(terms)}
        means.append(mean)
    return means


def _evaluate_all(
    recipes: Mapping[str, Recipe], split: str | None, output: str | Path | None, on_overlap: OnOverlap, *, strict: bool
) -> dict[str, list[EvalResult]]:
    """Score one checkpoint with recipes that differ only in their data; each writes into a subfolder with its name."""
    # 1. Check the checkpoint once, and read the rows of each recipe.
    folder = None if output is None else expand_path(output)
    with stage("reading the data", total=len(recipes)):
        info = find_members(next(iter(recipes.values())))
        split = split or _choose_split(info)
        # If the checkpoint's run held out rows of a file, hold out the same rows, to score only these.
        identity = info.record.get("identity", {})
        infos = {name: replace(info, recipe=use_recorded_data(recipe, identity)) for name, recipe in recipes.items()}
        splits = {
            name: resolve_overlap(part, splits_to_score(part, split, strict=strict), on_overlap)
            for name, part in infos.items()
        }

    # 2. Lock all folders before the first split is scored, so that no other process writes into them.
    with ExitStack() as locks:
        for name in dict.fromkeys(["", *recipes]):
            locks.enter_context(_lock_folder(folder and folder / name, splits.get(name, {})))

        # 3. Load the checkpoint, and score.
        checkpoint = _load_checkpoint(info)
        return {
            name: score_splits(checkpoint, part, splits[name], folder and folder / name) for name, part in infos.items()
        }


@contextmanager
def _lock_folder(folder: Path | None, splits: Mapping[str, Split]) -> Iterator[None]:
    """Check the folder of an evaluation and hold its lock; only the first process of a launch writes into it."""
    if folder is None or not runs.is_main_process():
        yield
        return
    check_output(folder, splits)
    with lock_output(folder / "predictions.jsonl"):
        yield


def _choose_split(info: CheckpointInfo) -> str | None:
    """Return ``validation`` for a model that bertkit did not train and a file without splits, else None.

    Such a model is scored on the rows that a run would hold out, so that its scores can be compared with the run's.
    """
    if info.record or info.task.find_labels or find_unsplit_file(info.recipe.data) is None:
        return None
    log.info("scoring the rows that finetune would hold out of this file; --split all scores every row")
    return "validation"


def _load_checkpoint(info: CheckpointInfo) -> Checkpoint:
    """Load the model in each process of a launch, in the precision that the first process chooses."""
    with stage(f"loading {info.recipe.model_name}"):
        if not is_launched():
            return info.load(inference=True)
        join_process_group()
        if not runs.is_main_process():
            precision, *_ = gather_from_all(None)
            return info.in_precision(precision).load(inference=True)
        checkpoint = info.load(inference=True)
        gather_from_all(checkpoint.machine.precision)
        return checkpoint


def score_splits(
    checkpoint: Checkpoint, info: CheckpointInfo, splits: dict[str, Split], folder: Path | None
) -> list[EvalResult]:
    """Score a loaded checkpoint on splits, and write predictions and scores into the folder, if there is one."""
    # 1. Read the baselines from the training of the model, because the scored rows must not influence them.
    recipe, task, baselines = info.recipe, checkpoint.task, read_baselines(info)
    output = folder if runs.is_main_process() else None
    record = None if output is None else begin_evaluation(output, info)
    results, labels, files = [], list(checkpoint.context.labels), list[str]()

    # 2. Score split by split.
    for split in splits.values():
        start = time.perf_counter()
        eval_output, member_tables = _score_split(checkpoint, info, split)
        context = eval_output.context
        details = task.details(eval_output.predictions, split.rows, context)
        baseline_rows = {} if baselines is None else compare_baselines(task, baselines, split.rows, context)
        result = make_result(task, split, eval_output, details, baseline_rows)
        # Labels that the model lacks were appended to the model's labels; they are never predicted.
        model_labels = checkpoint.context.labels
        unknown_labels = context.labels[len(model_labels) :]
        gold = list(split.column(task.COLUMNS.gold))
        warnings = describe_lacking(gold, unknown_labels, model_labels) + eval_output.warnings
        if _was_tuned_on(info, split):
            warnings += warn_of_tuned_options(
                name for name in info.record.get("tuned", {}) if name not in recipe.options
            )
        result = replace(
            result,
            folder=None if folder is None else str(folder),
            warnings=warnings + result.warnings,
            tables={**member_tables, **result.tables},
            seconds=time.perf_counter() - start,
        )
        results.append(judge_result(recipe.gates, result, info.member_folders or [info.folder]))
        labels += unknown_labels
        if output is not None:
            files += write_predictions(output, split, eval_output.predictions, details)

    # 3. Write the record last, because a folder without a record counts as unfinished.
    if output is not None and record is not None:
        write_eval_results(output, recipe, results)
        finish_evaluation(output, record, results, splits, labels, files)
    return results


def _was_tuned_on(info: CheckpointInfo, split: Split) -> bool:
    """Return whether the run of a checkpoint tuned its options on these rows."""
    data = info.record.get("identity", {}).get("data", {})
    first_split = next(filter(is_validation, data), None)
    return first_split is not None and split.fingerprint() == data[first_split]


def _score_split(
    checkpoint: Checkpoint, info: CheckpointInfo, split: Split
) -> tuple[EvalOutput, dict[str, list[dict[str, Any]]]]:
    """Score a split. For an ensemble, also return a table with the scores of its members."""
    if not checkpoint.members:
        return score_split(checkpoint, split), {}
    eval_output, member_outputs = score_ensemble(checkpoint, split)
    table = []
    for member, output in zip(info.members, member_outputs, strict=True):
        scores = {name: "n/a" if score is None else score for name, score in null_for_nan(output.scores).items()}
        table.append({"run": member.folder.name, **scores})
    return eval_output, {"members of the ensemble": table}
