"""Score a trained checkpoint on the validation splits of its recipe, or on another split."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.data.checks import describe_lacking
from bertkit.data.rows import Split
from bertkit.data.sources import is_validation, unsplit_file
from bertkit.evaluation.baselines import describe_split, judge_baselines, read_learned
from bertkit.evaluation.calibration import warn_of_tuned
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint, find_members
from bertkit.evaluation.forward import gather_from_all
from bertkit.evaluation.gates import judge_result
from bertkit.evaluation.languages import LanguageMean, average_languages
from bertkit.evaluation.scoring import (
    Result,
    Scored,
    score_ensemble,
    score_split,
    write_predictions,
)
from bertkit.evaluation.splits import Choice, judge_training_rows, splits_to_score
from bertkit.evaluation.stored.folder import begin_evaluation, check_output, finish_evaluation
from bertkit.hardware.device import is_launched
from bertkit.hardware.launch import join_process_group
from bertkit.progress import Progress, log, stage, takes_progress
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import typed_path
from bertkit.storage import runs
from bertkit.storage.files import null_for_nan
from bertkit.storage.outputs import claimed


@takes_progress
def evaluate(
    recipe: Recipe,
    *,
    split: str | None = None,
    output: str | Path | None = None,
    training_rows: Choice = "refuse",
    strict_labels: bool = False,
    progress: Progress | None = None,
) -> list[Result]:
    """Score the checkpoint `recipe.model` on the validation splits of its recipe, or on another split.

    The processes of a launch divide the rows. All of them return the results, and the first one writes them.

    Args:
        recipe: Recipe of the checkpoint.
        split: Name of the split.
        output: Folder for predictions, under the names that they have in a run folder, and for a record of the scores
            and of the model; see `bertkit.evaluation.stored.folder`.
        training_rows: Treatment of rows that the checkpoint was trained on; see `judge_training_rows`.
        strict_labels: Reject labels that the checkpoint lacks; by default, such rows count as wrong.
        progress: Shows how far the work is.

    Raises:
        BertkitError: If the model or a row cannot be read, or the output cannot be written; see `bertkit.errors`.
    """
    folder = None if output is None else typed_path(output)
    with stage("reading the data", total=1):
        saved = find_members(recipe)
        split = split or _choose_split(saved)
        splits = judge_training_rows(saved, splits_to_score(saved, split, strict=strict_labels), training_rows)
    with _claimed(folder, splits):
        return score_splits(_load_checkpoint(saved), saved, splits, folder)


def evaluate_languages(
    recipes: Mapping[str, Recipe],
    *,
    split: str | None = None,
    output: str | Path | None = None,
    training_rows: Choice = "refuse",
    strict_labels: bool = False,
) -> tuple[dict[str, list[Result]], list[LanguageMean]]:
    """Score a checkpoint on rows of several languages, each as `evaluate` does.

    Args:
        recipes: Language -> recipe; only the data differs.
        split: As for `evaluate`.
        output: Folder that gets a folder of predictions per language.
        training_rows: As for `evaluate`.
        strict_labels: As for `evaluate`.

    Returns:
        Results of each language, and the means of the metric that chooses the checkpoint.

    Raises:
        BertkitError: If the model or a row cannot be read, or the output cannot be written; see `bertkit.errors`.
    """
    folder = None if output is None else typed_path(output)
    with stage("reading the data", total=len(recipes)):
        saved = find_members(next(iter(recipes.values())))
        split = split or _choose_split(saved)
        # Only the data of the recipes differs, so the checkpoint is checked and loaded once.
        by_language = {language: replace(saved, recipe=recipe) for language, recipe in recipes.items()}
        splits = {
            language: judge_training_rows(
                language_saved, splits_to_score(language_saved, split, strict=strict_labels), training_rows
            )
            for language, language_saved in by_language.items()
        }
    # All folders are claimed before the first split is scored, so that no other process writes one in the meantime.
    with ExitStack() as claims:
        claims.enter_context(_claimed(folder, {}))
        for language in recipes:
            claims.enter_context(_claimed(folder and folder / language, splits[language]))
        checkpoint = _load_checkpoint(saved)
        results = {
            language: score_splits(checkpoint, language_saved, splits[language], folder and folder / language)
            for language, language_saved in by_language.items()
        }
    return results, average_languages(results, saved.recipe.best_metric)


@contextmanager
def _claimed(folder: Path | None, splits: Mapping[str, Split]) -> Iterator[None]:
    """Check the folder of an evaluation and hold its lock; only the first process of a launch writes into it."""
    if folder is None or not runs.is_main_process():
        yield
        return
    check_output(folder, splits)
    with claimed(folder / "predictions.jsonl"):
        yield


def _choose_split(saved: SavedCheckpoint) -> str | None:
    """Return ``validation`` for a model without a run and a file without splits, else None, the split of the run.

    A model before training is compared with the run that trains it, so it is scored on the rows that the run holds out.
    """
    if saved.record or saved.task.find_labels or unsplit_file(saved.recipe.data) is None:
        return None
    log.info("scoring the rows that finetune would hold out of this file; --split all scores every row")
    return "validation"


def _load_checkpoint(saved: SavedCheckpoint) -> Checkpoint:
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
    checkpoint: Checkpoint, saved: SavedCheckpoint, splits: dict[str, Split], folder: Path | None
) -> list[Result]:
    """Score a loaded checkpoint on splits, and write predictions and scores into the folder, if there is one."""
    # Baselines were fitted when the model was trained: rows to score must not choose them.
    recipe, task, learned = saved.recipe, checkpoint.task, read_learned(saved)
    output = folder if runs.is_main_process() else None
    record = None if output is None else begin_evaluation(output, saved)
    results, labels, files = [], list(checkpoint.setup.labels), list[str]()
    for rows in splits.values():
        start = time.perf_counter()
        scored, single = _score_split(checkpoint, saved, rows)
        details = task.details(scored.predictions, rows.rows, scored.setup)
        judged = {} if learned is None else judge_baselines(task, learned, rows.rows, scored.setup)
        gold = [row.get(task.COLUMNS.gold) for row in rows.rows]
        # Labels of the rows that the model does not have were added to the end, and no row is given one.
        warnings = describe_lacking(gold, scored.setup.labels[len(checkpoint.setup.labels) :])
        tuned = [option for option in saved.record.get("tuned", {}) if option not in recipe.options]
        warnings += scored.warnings + (warn_of_tuned(tuned) if _chose_on(saved, rows) else [])
        fields = describe_split(task, rows, scored, details, judged)
        fields["warnings"], fields["tables"] = warnings + fields["warnings"], {**single, **fields["tables"]}
        seconds = time.perf_counter() - start
        if output is not None:
            files += write_predictions(output, rows, scored.predictions, details)
        where = None if folder is None else str(folder)
        result = Result(recipe=recipe.name, model=recipe.model, seconds=seconds, folder=where, **fields)
        results.append(judge_result(recipe.gates, result, saved.member_folders or [saved.folder]))
        labels += scored.setup.labels[len(checkpoint.setup.labels) :]
    # The record comes last, and makes the folder count.
    if output is not None and record is not None:
        finish_evaluation(output, record, results, splits, labels, files)
    return results


def _chose_on(saved: SavedCheckpoint, split: Split) -> bool:
    """Tell whether the rows are those that the run of a checkpoint tuned its options on."""
    data = saved.record.get("identity", {}).get("data", {})
    first = next(filter(is_validation, data), None)
    return first is not None and split.fingerprint() == data[first]


def _score_split(
    checkpoint: Checkpoint, saved: SavedCheckpoint, split: Split
) -> tuple[Scored, dict[str, list[dict[str, Any]]]]:
    """Score a split; of an ensemble, return a table of the scores of its members too."""
    if not checkpoint.members:
        return score_split(checkpoint, split), {}
    scored, singles = score_ensemble(checkpoint, split)
    names = [member.folder.name for member in saved.members]
    rows = [{"run": name, **null_for_nan(single.scores)} for name, single in zip(names, singles, strict=True)]
    return scored, {"members of the ensemble": [{k: "n/a" if v is None else v for k, v in row.items()} for row in rows]}
