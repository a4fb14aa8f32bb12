"""Write the run folder of a fine-tuned model: a plain checkpoint, predictions, results, report and card."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.checks import find_skew
from bertkit.data.remote import find_hub_dataset
from bertkit.data.rows import get_model_inputs
from bertkit.evaluation.baselines import (
    BASELINES_FILE,
    ScoredBaselines,
    find_missing_labels,
    make_result,
    write_learned,
)
from bertkit.evaluation.benchmarks import write_eval_results
from bertkit.evaluation.calibration import warn_of_tuned
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.evaluation.scoring import EvalOutput, EvalResult, get_split_suffix, write_predictions
from bertkit.metrics.baselines import tabulate
from bertkit.metrics.intervals import why_undefined
from bertkit.metrics.linear import sample
from bertkit.metrics.registry import describe_positive_label
from bertkit.modeling.info import Model
from bertkit.recipe.records import Recipe
from bertkit.reports.card import CardData, model_card, name_models
from bertkit.reports.examples import Example, make_example
from bertkit.reports.html import ReportData, write_report
from bertkit.reports.templates import name_model, name_paths
from bertkit.runtime.tokenizer import tokenizer_settings
from bertkit.storage import hub, runs
from bertkit.storage.files import write_json
from bertkit.storage.fingerprints import list_files
from bertkit.storage.runs import RunRecord, without_folder
from bertkit.tasks import RowScores, TaskReport, example_row, next_commands
from bertkit.training.auto_settings import choose_epochs
from bertkit.training.run import FitResult, Run, common_facts, export_model, finish, finished_record, write_settings
from bertkit.workflows.doctor import judge_curve
from bertkit.workflows.finetune_data import FinetuneData

_MAX_EXAMPLES = 100_000  # rows of a report; a kilobyte per row


@dataclass(frozen=True)
class _Outcome:
    """Results of a run by validation split."""

    data: FinetuneData
    fit_result: FitResult
    scored: Mapping[str, EvalOutput]
    details: Mapping[str, TaskReport]
    baselines: Mapping[str, Mapping[str, RowScores]]
    """Split -> baseline -> its predictions compared with the gold values."""
    seconds: float
    compared_models: Sequence[Mapping[str, Any]]
    """Teachers and student of a distillation, the student last."""
    results: list[EvalResult] = field(default_factory=list)


def save_results(
    data: FinetuneData,
    run: Run,
    fit_result: FitResult,
    checkpoint: Checkpoint,
    scored: Mapping[str, EvalOutput],
    baselines: ScoredBaselines,
    truncated: Mapping[str, int],
    compared_models: Sequence[Mapping[str, Any]],
) -> list[EvalResult]:
    """Write everything that a finished run folder holds; the record, which marks the run as finished, comes last.

    Args:
        data: Rows and recipe of the run.
        run: Claim on the run folder.
        fit_result: Steps, losses and the best step of the training.
        checkpoint: Model with the weights of the best step.
        scored: Scores and predictions of each validation split.
        baselines: Baselines of each validation split.
        truncated: Counts of truncated rows; see `RunRecord.truncated`.
        compared_models: Teachers and student of a distillation, the student last.
    """
    if not runs.is_main_process():
        return []
    model = checkpoint.model
    seconds, context, folder = run.seconds, scored[data.validation.name].context, run.plan.folder
    details = {
        name: data.task.details(split.predictions, data.splits[name].rows, context) for name, split in scored.items()
    }

    # 1. One result per split, which the record, the report, the card and the command all show.
    outcome = _Outcome(data, fit_result, scored, details, baselines.baseline_rows, seconds, compared_models)
    outcome.results.extend(_make_result(outcome, name) for name in scored)

    # 2. The checkpoint, predictions and scores. After a kill, the run is still unfinished and writes them again.
    published = export_model(model, context.tokenizer, folder)
    # `calibrate` rewrites this file, so it is not among the published files, whose checksums the record has.
    if context.recipe.task == "typed_questions":
        from bertkit.evaluation.decisions import write_decision_config

        write_decision_config(folder, context)
    prediction_files = [
        file
        for name, split in scored.items()
        for file in write_predictions(folder, data.splits[name], split.predictions, details[name])
    ]
    write_settings(run, context.recipe, fit_result, private=[*prediction_files, BASELINES_FILE, "report.html"])
    _write_results(outcome, folder)
    record = finished_record(
        run,
        fit_result,
        round(seconds, 3),
        tuned=_tuned(data, context.recipe),
        tokenizer=tokenizer_settings(context.tokenizer),
        baselines=write_learned(folder, baselines.learned),
        results=[without_folder(result) for result in outcome.results],
        predictions=list_files(folder, prediction_files),
        truncated=dict(truncated),
        **({"compared_models": list(compared_models)} if compared_models else {}),
    )

    write_eval_results(folder, context.recipe, outcome.results)

    # 3. The pages, which show the record. `finish` writes the record last.
    report = _gather_facts(outcome, record)
    write_report(folder, report)
    (folder / "README.md").write_text(_make_card(data, report, model), encoding="utf-8", newline="\n")
    finish(run, record, fit_result, [*published, runs.TRAINING_ROWS])
    return outcome.results


def _make_result(outcome: _Outcome, name: str) -> EvalResult:
    """Return the scores of a split with their warnings."""
    data, fit_result, scored = outcome.data, outcome.fit_result, outcome.scored[name]
    recipe, split, metric = data.recipe, data.splits[name], data.recipe.best_metric
    warnings = _find_warnings(data, fit_result) + scored.warnings
    if name == data.validation.name:
        warnings += warn_of_tuned(_tuned(data, scored.context.recipe))
    undefined = why_undefined(data.task.METRICS, scored.scores, scored.row_scores)
    if name == data.validation.name and metric in undefined:
        warnings.append(f"{metric} is undefined ({undefined[metric]}): the step with the lowest loss was chosen.")
    # A score no better than a baseline gets a remedy.
    missing, skew = list[str](), None
    if data.task.HAS_LABEL_NAMES:
        gold = data.task.COLUMNS.gold
        missing = find_missing_labels([row.get(gold) for row in split.rows], scored.predictions)
        skew = find_skew(data.splits["train"], gold)
    remedy = _remedy(recipe, fit_result, missing, skew[0] if skew else "")
    result = make_result(data.task, split, scored, outcome.details[name], outcome.baselines[name], remedy)
    curve = judge_curve(fit_result.history, fit_result.best_step, has_learned=True)
    warnings += [f"{finding.text}." for finding in curve if finding.name == "best_is_last"]
    return replace(
        result,
        model=recipe.model_name,
        seconds=outcome.seconds,
        folder=str(data.plan.folder),
        warnings=warnings + result.warnings,
        data_warnings=list(data.warnings),
    )


def _remedy(recipe: Recipe, fit_result: FitResult, missing: Sequence[str], frequent: str = "") -> str:
    """Return changes to try if a model is not above its baselines, the most promising change first.

    Args:
        recipe: Recipe of the run.
        fit_result: Steps of the run, planned and done.
        missing: Labels that no row is predicted to have.
        frequent: The label of most training rows if they are skewed.
    """
    training, steps = recipe.training, []
    # A run of fewer steps than `choose_epochs` recommends is too short; one epoch less is tolerated.
    per_epoch = max(1, round(fit_result.steps / max(fit_result.epochs, 1e-9)))
    enough = choose_epochs(per_epoch)
    is_short = fit_result.planned < (enough - 1) * per_epoch
    if is_short:
        longer = f"--set training.steps={enough * per_epoch}" if training.steps else f"--epochs {enough}"
        steps.append(f"{longer} (too few steps so far: {fit_result.planned:,})")
    if (missing or frequent) and training.class_weights is None:
        names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        reason = f"no row is given the label {names}" if missing else f"most training rows have the label {frequent}"
        steps.append(f"--set training.class_weights=balanced ({reason})")
    if fit_result.best_step < fit_result.steps:
        steps.append(f"another --learning-rate than {training.learning_rate:g}")
    elif not is_short and fit_result.evaluations > 1:  # A single evaluation is always the best.
        longer = f"--set training.steps={2 * training.steps}" if training.steps else f"--epochs {2 * training.epochs:g}"
        steps.append(f"{longer} ({recipe.best_metric} was best at the last evaluation)")
    steps += ["more --student-layers"] if recipe.distillation and recipe.distillation.student_layers else []
    return f" Try {', then '.join([*steps, 'more rows'])}."


def _tuned(data: FinetuneData, recipe: Recipe) -> dict[str, Any]:
    """Return the options that the task has tuned on the validation rows."""
    return {name: value for name, value in recipe.options.items() if data.recipe.options.get(name) != value}


def _find_warnings(data: FinetuneData, fit_result: FitResult) -> list[str]:
    """Return warnings that concern the scores of every split."""
    recipe, warnings = data.recipe, list[str]()
    if recipe.data.source == "demo":
        warnings.append("Demo data: an artificial grammar. These scores cannot be compared with others.")
    elif recipe.model == "demo":
        warnings.append("Demo model: it is tiny and knows only an artificial grammar. Choose an encoder with --model.")
    if recipe.data.limit is not None:
        warnings.append(f"Only the first {recipe.data.limit:,} rows of each split were used.")
    if fit_result.steps < fit_result.planned:
        warnings.append(
            f"Training stopped early, after {fit_result.steps:,} of {fit_result.planned:,} steps: "
            f"{recipe.best_metric} was no better in {recipe.training.patience} evaluations."
        )
    return warnings


def _write_results(outcome: _Outcome, folder: Path) -> None:
    """Write the result files under the names and keys of the Hugging Face example scripts."""
    fit_result, seconds = outcome.fit_result, outcome.seconds
    rows = outcome.data.rows["train"]
    train = {
        "epoch": fit_result.epochs,
        "train_loss": fit_result.train_loss,
        "train_runtime": round(seconds, 4),
        "train_samples": rows,
        "train_samples_per_second": round(rows * fit_result.epochs / seconds, 3),
        "train_steps_per_second": round(fit_result.steps / seconds, 3),
    }
    # All splits are in one file, so keys end with the name of the split, except for `validation`.
    evaluation: dict[str, Any] = {"epoch": fit_result.epochs}
    for result in outcome.results:
        suffix = get_split_suffix(result.split)
        evaluation[f"eval_loss{suffix}"] = outcome.scored[result.split].loss
        evaluation.update({f"eval_{metric}{suffix}": value for metric, value in result.scores.items()})
        evaluation[f"eval_samples{suffix}"] = result.rows
        if result.training_rows:
            evaluation[f"eval_training_rows{suffix}"] = result.training_rows
    write_json(folder / "train_results.json", train)
    write_json(folder / "eval_results.json", evaluation)
    write_json(folder / "all_results.json", {**evaluation, **train})


def _gather_facts(outcome: _Outcome, record: RunRecord) -> ReportData:
    data, first = outcome.data, outcome.results[0]
    recipe, split = data.recipe, data.validation
    soft_labels = recipe.distillation.soft_labels if recipe.distillation else None
    # Published scores are for the complete dataset. Next to scores on the demo or on a part of it, they would mislead.
    comparable = recipe.data.source != "demo" and recipe.data.limit is None
    return ReportData(
        **common_facts(recipe, record, outcome.fit_result),
        next_commands=next_commands(data.task, recipe, name_paths(str(data.plan.folder))),
        model=recipe.model_name,
        teachers=[f"the soft labels in column {soft_labels!r}"] if soft_labels else _teachers(recipe),
        split=split.name,
        rows=first.rows,
        seed=recipe.training.seed,
        best_metric=recipe.best_metric,
        scores=first.scores,
        score_notes=describe_positive_label(first.scores, first.positive_label),
        intervals=first.intervals,
        interval_methods=first.interval_methods,
        no_interval=first.undefined.get("intervals", {}),
        baselines=first.baselines,
        lead=first.lead,
        compared=_comparison(outcome),
        published=[entry.model_dump() for entry in recipe.published] if comparable else [],
        examples=_examples(outcome),
        decisions=_find_decisions(outcome),
        labels=list(data.labels),
        tables={"baselines": tabulate(first.baselines), **outcome.details[split.name].tables},
        warnings=first.warnings + first.data_warnings,
        other_splits={result.split: result.scores for result in outcome.results[1:]},
        provenance=_provenance(data, record),
    )


def _comparison(outcome: _Outcome) -> list[dict[str, Any]]:
    """Return the rows of the table of teachers, student and baseline."""
    metric, result = outcome.data.recipe.best_metric, outcome.results[0]
    rows = [
        {
            "model": f"{model['role']} {name_model(model['model'])}",
            "parameters": f"{model['parameters']:,}",
            "MB": f"{model['disk_bytes'] / 1e6:,.1f}",
            "ms/row": f"{1000 * model['row_seconds']:,.2f}",
            "rows/s": f"{model['rows_per_second']:,.0f}",
            metric: model["scores"][metric],
            "95% interval": model["intervals"].get(metric),
            "student - teacher": model["difference"].get(metric),
            "its 95% interval": model["difference_intervals"].get(metric),
        }
        for model in outcome.compared_models
    ]
    if rows and metric in result.baseline:
        rows.append({**dict.fromkeys(rows[0]), "model": "baseline", metric: result.baseline[metric]})
    return rows


def _provenance(data: FinetuneData, record: RunRecord) -> dict[str, str]:
    """Return seed, checksums and versions, which a repetition of the run needs."""
    recipe, identity = data.recipe, record["identity"]
    digests = zip(_teachers(recipe), identity.get("teachers", []), strict=True)
    return {
        "seed": str(recipe.training.seed),
        "data": recipe.data.source,
        **{f"rows: {name}": f"{count:,} (sha256 {identity['data'][name][:12]})" for name, count in data.rows.items()},
        "model weights": f"sha256 {identity['model'][:12]}",
        **{f"teacher {name}": f"sha256 {digest[:12]}" for name, digest in digests},
        **{f"soft labels: {name}": f"{value:.4f}" for name, value in record.get("soft_labels", {}).items()},
        **record["versions"],
    }


def _examples(outcome: _Outcome) -> list[Example]:
    """Return scored rows of the first validation split, with answers as the task family words them."""
    data, name = outcome.data, outcome.data.validation.name
    rows, scored = data.validation.rows, outcome.scored[name]
    gold, answers = data.task.COLUMNS.gold, outcome.details[name].answers
    return [
        replace(
            make_example(index, rows[index], gold, scored.predictions[index], answers[index] if answers else None),
            text=[(column, _as_text(column, value)) for column, value in get_model_inputs(rows[index], gold).items()],
        )
        for index in sample(range(len(rows)), _MAX_EXAMPLES)
    ]


def _find_decisions(outcome: _Outcome) -> tuple[str, np.ndarray, np.ndarray] | None:
    """Return confidence and correctness of each prediction or entity, or None without probabilities."""
    data, scored = outcome.data, outcome.scored[outcome.data.validation.name]
    rows, find = data.validation.rows, data.task.gold_probabilities
    # The verdicts are pairs of the confidence of an entity and whether it is right, 0 or 1.
    if (verdicts := outcome.details[data.validation.name].entity_verdicts) is not None:
        return "entity", *np.array(verdicts, dtype=float).reshape(-1, 2).T
    if find is None or "probabilities" not in scored.predictions[0]:
        return None
    indices = sample(range(len(rows)), _MAX_EXAMPLES)
    decisions = find([scored.predictions[i] for i in indices], [rows[i] for i in indices], scored.context)
    is_right = decisions.probabilities.argmax(axis=1) == decisions.gold
    return decisions.per, decisions.probabilities.max(axis=1), is_right.astype(float)


def _make_card(data: FinetuneData, report: ReportData, model: Model) -> str:
    recipe, columns = data.recipe, data.task.COLUMNS
    # The tag of the pipeline and the auto class follow from the class: BertForTokenClassification has the head
    # TokenClassification and the tag token-classification. Classes of bertkit count as the classes that they resemble.
    head = type(model).__name__.partition("For")[2].replace("LayerTagging", "TokenClassification")
    head = head.replace("WindowClassification", "SequenceClassification")
    is_of_transformers = type(model).__module__.startswith("transformers.")
    dataset_id = find_hub_dataset(recipe.data)
    # Either steps or epochs determine the length of the training.
    length = "steps" if recipe.training.steps is None else "epochs"
    tag = re.sub(r"(?<!^)(?=[A-Z])", "-", head).lower().replace("sequence", "text")
    card = CardData(
        pipeline_tag=data.task.PIPELINE_TAG or tag,
        # A sparse encoder has a class of transformers, but its vectors are made by sentence-transformers.
        auto_class=f"AutoModelFor{head}" if is_of_transformers and getattr(model, "reads", "") != "sparse" else "",
        dataset=name_paths(recipe.data.source or ", ".join(recipe.data.files.values())),
        rows=data.rows,
        columns=[*columns.inputs, *(name for name in columns.optional if name in recipe.data.columns)],
        predict_command=f"bertkit predict . {example_row(data.task, recipe)}",
        hyperparameters=recipe.training.model_dump(exclude={"extra", length}) | recipe.training.extra,
        base_model=hub.find_base_model(recipe.model),
        dataset_id=dataset_id,
        dataset_config=recipe.data.config if dataset_id else None,
        language=recipe.data.language,
        fingerprint=data.plan.identity["data"]["train"],
    )
    return model_card(name_models(report, recipe), card)


def _teachers(recipe: Recipe) -> list[str]:
    return recipe.distillation.teachers if recipe.distillation else []


def _as_text(column: str, value: object) -> str:
    separator = " " if column == "tokens" else " | "
    return separator.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
