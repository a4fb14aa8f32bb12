"""Score a trained checkpoint on the validation splits of its recipe, or on another split."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.data.checks import describe_lacking
from bertkit.data.labels import (
    CORRECT,
    list_names,
    name_split,
    placeholder_names,
    say_counted,
    spelled_names,
    with_unseen,
)
from bertkit.data.rows import Split
from bertkit.data.sources import ALL, is_validation, unsplit_file
from bertkit.errors import DataError, UsageError
from bertkit.evaluation.baselines import describe_split, judge_baselines, read_learned
from bertkit.evaluation.calibration import warn_of_tuned
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint, find_members
from bertkit.evaluation.forward import tokens_at_once
from bertkit.evaluation.gates import judge_result
from bertkit.evaluation.languages import LanguageMean, average_languages
from bertkit.evaluation.output_parts import OutputParts
from bertkit.evaluation.scoring import (
    Result,
    Scored,
    compute_outputs,
    score_ensemble,
    score_split,
    write_predictions,
)
from bertkit.evaluation.splits import Choice, judge_training_rows, read_task_splits
from bertkit.evaluation.stored.folder import begin_evaluation, check_output, describe_maker, finish_evaluation
from bertkit.hardware.launch import Launch, refuse_launch
from bertkit.metrics.basic import check_metrics
from bertkit.progress import Progress, log, stage, takes_progress
from bertkit.recipe import Recipe, typed_path
from bertkit.storage import runs
from bertkit.storage.files import null_for_nan
from bertkit.storage.fingerprints import file_fingerprint
from bertkit.storage.outputs import claimed
from bertkit.storage.parts import PartFolder


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
    """Score the checkpoint `recipe.model` on the validation splits of its recipe, or on `split`.

    With `output`, a folder, predictions are written there under the names they have in a run folder, with a record of
    the scores and of the model; see `bertkit.evaluation.stored.folder`. Rows that the
    checkpoint was trained on are refused, dropped or kept as `training_rows` says; see `judge_training_rows`. A label
    that the checkpoint lacks counts as wrong, or is refused with `strict_labels`.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    folder = None if output is None else typed_path(output)
    with stage("reading the data", total=1):
        saved = find_members(recipe)
        split = split or _choose_split(saved)
        splits = judge_training_rows(saved, splits_to_score(saved, split, strict=strict_labels), training_rows)
    launch = Launch.join()
    if launch.size > 1:
        return _evaluate_together(saved, splits, folder, launch)
    with ExitStack() as claim:
        if folder is not None and runs.is_main_process():
            check_output(folder, splits)
            claim.enter_context(claimed(folder / "predictions.jsonl"))
        return score_splits(_load_checkpoint(saved), saved, splits, folder)


def _evaluate_together(
    saved: SavedCheckpoint, splits: dict[str, Split], folder: Path | None, launch: Launch
) -> list[Result]:
    """Run the model as one of several processes, and score as the one that joins their outputs; else return nothing."""
    if folder is None:
        raise UsageError("several processes without an --output", "name the folder that all of them work on")
    check_output(folder, splits)
    parts = PartFolder(folder / "predictions.jsonl", describe_maker(saved), launch)
    outputs, loaded = OutputParts(parts), list[Checkpoint]()

    def load(settled: str | None) -> str:
        # Outputs of two precisions, or of batches that are split otherwise, would differ in rounding.
        precision, tokens = settled.split() if settled else (None, tokens_at_once())
        outputs.tokens = int(tokens)
        loaded.append(replace(_load_checkpoint(saved.in_precision(precision)), parts=outputs))
        return f"{loaded[0].machine.precision} {tokens}"

    with parts.opened(load):
        for split in splits.values():
            compute_outputs(loaded[0], split)
        with parts.joined(outputs.files) as outputs.reads:
            return score_splits(loaded[0], saved, splits, folder) if outputs.reads else []


def evaluate_languages(
    recipes: Mapping[str, Recipe],
    *,
    split: str | None = None,
    output: str | Path | None = None,
    training_rows: Choice = "refuse",
    strict_labels: bool = False,
) -> tuple[dict[str, list[Result]], list[LanguageMean]]:
    """Score one checkpoint on rows of several languages, as `evaluate` scores it on those of one.

    Args:
        recipes: language -> the recipe with its data; they differ in nothing else.
        split: as `evaluate` takes it.
        output: folder that gets a folder of predictions for each language.
        training_rows: as `evaluate` takes it.
        strict_labels: as `evaluate` takes it.

    Returns:
        The results of each language, and the means of the metric that chooses the checkpoint.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    folder = None if output is None else typed_path(output)
    refuse_launch("--languages in several processes", "score each language by a command of its own")
    with stage("reading the data", total=len(recipes)):
        saved = find_members(next(iter(recipes.values())))
        split = split or _choose_split(saved)
        # One checkpoint, many languages: only the data of the recipes differ, so it is checked and loaded once.
        by_language = {language: replace(saved, recipe=recipe) for language, recipe in recipes.items()}
        splits = {
            language: judge_training_rows(of, splits_to_score(of, split, strict=strict_labels), training_rows)
            for language, of in by_language.items()
        }
    # All folders are claimed before anything is scored, so that no other process writes one of them in between.
    with ExitStack() as claim:
        if folder is not None and runs.is_main_process():
            check_output(folder, {})
            for language in recipes:
                check_output(folder / language, splits[language])
                claim.enter_context(claimed(folder / language / "predictions.jsonl"))
        checkpoint = _load_checkpoint(saved)
        results = {
            language: score_splits(checkpoint, of, splits[language], folder and folder / language)
            for language, of in by_language.items()
        }
    return results, average_languages(results, saved.recipe.best_metric)


def _choose_split(saved: SavedCheckpoint) -> str | None:
    """Return ``validation`` for a model without a run and a file without splits, else None, the split of the run.

    A model before training is compared with the run that trains it, so it is scored on the rows that the run holds out.
    """
    if saved.record or saved.task.find_labels or unsplit_file(saved.recipe.data) is None:
        return None
    log.info("scoring the rows that finetune would hold out of this file; --split all scores every row")
    return "validation"


def _load_checkpoint(saved: SavedCheckpoint) -> Checkpoint:
    with stage(f"loading {saved.recipe.model_name}"):
        return saved.load(inference=True)


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


def splits_to_score(saved: SavedCheckpoint, split: str | None, *, strict: bool = True) -> dict[str, Split]:
    """Read the splits to score, with gold values as the checkpoint's label names.

    Unless it is `strict`, or the recipe declares the labels, gold values may be labels that the checkpoint lacks.
    """
    recipe, task = saved.recipe, saved.task
    check_metrics(recipe, task.METRICS)  # To open a model, they are not needed.
    file = unsplit_file(recipe.data)
    is_own = file is not None and split != ALL and file_fingerprint(file) == saved.record.get("split_file")
    if split is None and file and not is_own:
        split = ALL  # not the file whose rows the run held out, so all of it is new
    splits = read_task_splits(recipe, task, is_validation if split is None else lambda name: name == split)
    if not splits:
        raise DataError(f"no split {split or 'validation'!r} in {recipe.data.source}", "name one with --split")
    if not task.NAMED:
        return splits
    gold, is_open = task.COLUMNS.gold, not strict and not recipe.labels
    for rows in splits.values() if not recipe.labels else ():  # a recipe says how it counts
        say_counted(rows.column(gold), saved.labels)
    return {
        name: name_split(
            rows,
            gold,
            with_unseen(saved.labels, rows.column(gold)) if is_open else saved.labels,
            recipe.data,
            _remedy(saved, rows, gold),
        )
        for name, rows in splits.items()
    }


def _remedy(saved: SavedCheckpoint, split: Split, gold: str) -> str:
    """Return what to do about a label that the checkpoint does not have: its outputs may have names that are no use."""
    label_names = sorted({name for value in split.column(gold) for name in spelled_names(value)})
    outputs = len(saved.labels)
    if saved.recipe.labels or (len(label_names) != outputs and list(saved.labels) != placeholder_names(outputs)):
        return CORRECT
    names = list_names(label_names) if len(label_names) == outputs else "..."
    return f"if you know the meaning of its {outputs} outputs, name them in its order: --set 'model_labels=[{names}]'"
