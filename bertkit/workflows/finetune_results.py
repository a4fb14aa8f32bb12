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
    write_baselines,
)
from bertkit.evaluation.benchmarks import write_eval_results
from bertkit.evaluation.calibration import warn_of_tuned_options
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.evaluation.scoring import EvalOutput, EvalResult, get_split_suffix, write_predictions
from bertkit.metrics.baselines import tabulate
from bertkit.metrics.intervals import find_undefined_reasons
from bertkit.metrics.linear import sample_rows
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
from bertkit.storage.runs import RunRecord, as_portable_record
from bertkit.tasks import RowScores, TaskReport, example_row, next_commands
from bertkit.training.auto_settings import choose_epochs
from bertkit.training.run import (
    FitResult,
    Run,
    export_model,
    finish,
    finished_record,
    make_report_fields,
    write_settings,
)
from bertkit.workflows.doctor import judge_curve
from bertkit.workflows.finetune_data import FinetuneData

_MAX_EXAMPLES = 100_000  # rows of a report; a kilobyte per row


@dataclass(frozen=True)
class _Outcome:
    """Results of a run."""

    data: FinetuneData
    fit_result: FitResult
    outputs: Mapping[str, EvalOutput]
    """Validation split -> its scores and predictions."""
    details: Mapping[str, TaskReport]
    baselines: Mapping[str, Mapping[str, RowScores]]
    """Validation split -> baseline -> its predictions compared with the gold values."""
    seconds: float
    compared_models: Sequence[Mapping[str, Any]]
    """Teachers and student of a distillation, the student last."""
    results: list[EvalResult] = field(default_factory=list)


def save_results(
    data: FinetuneData,
    run: Run,
    fit_result: FitResult,
    checkpoint: Checkpoint,
    outputs: Mapping[str, EvalOutput],
    baselines: ScoredBaselines,
    truncation: Mapping[str, int],
    compared_models: Sequence[Mapping[str, Any]],
) -> list[EvalResult]:
    """Write all files of a finished run folder. The record comes last, because it marks the run as finished.

    Args:
        data: Rows and recipe of the run.
        run: Open run, which locks its folder.
        fit_result: Steps, losses and the best step of the training.
        checkpoint: Model with the weights of the best step.
        outputs: Scores and predictions of each validation split.
        baselines: Baselines of each validation split.
        truncation: Counts of truncated rows; see `RunRecord.truncated`.
        compared_models: Teachers and student of a distillation, the student last.
    """
    if not runs.is_main_process():
        return []
    model = checkpoint.model
    seconds, folder = run.seconds, run.plan.folder
    context = outputs[data.validation.name].context
    details = {
        name: data.task.details(output.predictions, data.splits[name].rows, context) for name, output in outputs.items()
    }

    # 1. Make one result per split, for the record, the report, the card and the command.
    outcome = _Outcome(data, fit_result, outputs, details, baselines.row_scores, seconds, compared_models)
    outcome.results.extend(_make_result(outcome, name) for name in outputs)

    # 2. Write the checkpoint, predictions and scores. After a kill, the run is unfinished, and writes them again.
    published_files = export_model(model, context.tokenizer, folder)
    # This file is not published, because the record has checksums of published files, and `calibrate` rewrites it.
    if context.recipe.task == "typed_questions":
        from bertkit.evaluation.decisions import write_decision_config

        write_decision_config(folder, context)
    prediction_files = [
        file
        for name, output in outputs.items()
        for file in write_predictions(folder, data.splits[name], output.predictions, details[name])
    ]
    write_settings(run, context.recipe, fit_result, private=[*prediction_files, BASELINES_FILE, "report.html"])
    _write_results(outcome, folder)
    record = finished_record(
        run,
        fit_result,
        round(seconds, 3),
        tuned=_get_tuned_options(data, context.recipe),
        tokenizer=tokenizer_settings(context.tokenizer),
        baselines=write_baselines(folder, baselines.state),
        results=[as_portable_record(result) for result in outcome.results],
        predictions=list_files(folder, prediction_files),
        truncated=dict(truncation),
        **({"compared_models": list(compared_models)} if compared_models else {}),
    )

    write_eval_results(folder, context.recipe, outcome.results)

    # 3. Write the report and the card, and then the record.
    report = _make_report(outcome, record)
    write_report(folder, report)
    (folder / "README.md").write_text(_make_card(data, report, model), encoding="utf-8", newline="\n")
    finish(run, record, fit_result, [*published_files, runs.TRAINING_ROWS])
    return outcome.results


def _make_result(outcome: _Outcome, name: str) -> EvalResult:
    """Return the scores of a split with their warnings."""
    data, fit_result, output = outcome.data, outcome.fit_result, outcome.outputs[name]
    recipe, split, metric = data.recipe, data.splits[name], data.recipe.best_metric
    warnings = _find_warnings(data, fit_result) + output.warnings
    if name == data.validation.name:
        warnings += warn_of_tuned_options(_get_tuned_options(data, output.context.recipe))
    reasons = find_undefined_reasons(data.task.METRICS, output.scores, output.row_scores)
    if name == data.validation.name and metric in reasons:
        warnings.append(f"{metric} is undefined ({reasons[metric]}), so the step with the lowest loss was selected.")
    missing_labels, skew = list[str](), None
    if data.task.HAS_LABEL_NAMES:
        gold = data.task.COLUMNS.gold
        missing_labels = find_missing_labels([row.get(gold) for row in split.rows], output.predictions)
        skew = find_skew(data.splits["train"], gold)
    # `make_result` adds the remedy if the score is not better than a baseline.
    remedy = _suggest_changes(recipe, fit_result, missing_labels, skew[0] if skew else "")
    result = make_result(data.task, split, output, outcome.details[name], outcome.baselines[name], remedy)
    findings = judge_curve(fit_result.history, fit_result.best_step, has_learned=True)
    warnings += [f"{finding.text}." for finding in findings if finding.name == "best_is_last"]
    return replace(
        result,
        model=recipe.model_name,
        seconds=outcome.seconds,
        folder=str(data.plan.folder),
        warnings=warnings + result.warnings,
        data_warnings=list(data.warnings),
    )


def _suggest_changes(recipe: Recipe, fit_result: FitResult, missing_labels: Sequence[str], majority: str = "") -> str:
    """Return changes to try if a model is not above its baselines, the most promising change first.

    Args:
        recipe: Recipe of the run.
        fit_result: Planned and completed steps.
        missing_labels: Labels that are never predicted.
        majority: Most frequent training label, or "" if the labels are balanced.
    """
    training, changes = recipe.training, []
    # A run is too short if it has at least one epoch less than `choose_epochs` recommends.
    epoch_steps = max(1, round(fit_result.steps / max(fit_result.epochs, 1e-9)))
    epochs = choose_epochs(epoch_steps)
    is_short = fit_result.planned_steps < (epochs - 1) * epoch_steps
    if is_short:
        option = f"--set training.steps={epochs * epoch_steps}" if training.steps else f"--epochs {epochs}"
        changes.append(f"{option} (too few steps so far: {fit_result.planned_steps:,})")
    if (missing_labels or majority) and training.class_weights is None:
        names = ", ".join(missing_labels[:5]) + (", ..." if len(missing_labels) > 5 else "")
        reason = f"never predicted: {names}" if missing_labels else f"most training rows have the label {majority}"
        changes.append(f"--set training.class_weights=balanced ({reason})")
    if fit_result.best_step < fit_result.steps:
        changes.append(f"another --learning-rate than {training.learning_rate:g}")
    elif not is_short and fit_result.evaluations > 1:  # A single evaluation is always the best.
        option = f"--set training.steps={2 * training.steps}" if training.steps else f"--epochs {2 * training.epochs:g}"
        changes.append(f"{option} ({recipe.best_metric} was best at the last evaluation)")
    changes += ["more --student-layers"] if recipe.distillation and recipe.distillation.student_layers else []
    return f" Try {', then '.join([*changes, 'more rows'])}."


def _get_tuned_options(data: FinetuneData, recipe: Recipe) -> dict[str, Any]:
    """Return the options that the task tuned on the validation rows."""
    return {name: value for name, value in recipe.options.items() if data.recipe.options.get(name) != value}


def _find_warnings(data: FinetuneData, fit_result: FitResult) -> list[str]:
    """Return warnings about the scores of all splits."""
    recipe, warnings = data.recipe, list[str]()
    if recipe.data.source == "demo":
        warnings.append("Demo data: an artificial grammar. These scores cannot be compared with others.")
    elif recipe.model == "demo":
        warnings.append("Demo model: it is tiny and knows only an artificial grammar. Choose an encoder with --model.")
    if recipe.data.limit is not None:
        warnings.append(f"Only the first {recipe.data.limit:,} rows of each split were used.")
    if fit_result.steps < fit_result.planned_steps:
        warnings.append(
            f"Training stopped early, after {fit_result.steps:,} of {fit_result.planned_steps:,} steps: "
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
    # The file has all splits, so keys end with the name of the split, except for `validation`.
    evaluation: dict[str, Any] = {"epoch": fit_result.epochs}
    for result in outcome.results:
        suffix = get_split_suffix(result.split)
        evaluation[f"eval_loss{suffix}"] = outcome.outputs[result.split].loss
        evaluation.update({f"eval_{metric}{suffix}": value for metric, value in result.scores.items()})
        evaluation[f"eval_samples{suffix}"] = result.rows
        if result.training_rows:
            evaluation[f"eval_training_rows{suffix}"] = result.training_rows
    write_json(folder / "train_results.json", train)
    write_json(folder / "eval_results.json", evaluation)
    write_json(folder / "all_results.json", {**evaluation, **train})


def _make_report(outcome: _Outcome, record: RunRecord) -> ReportData:
    data, first_result = outcome.data, outcome.results[0]
    recipe, split = data.recipe, data.validation
    soft_labels = recipe.distillation.soft_labels if recipe.distillation else None
    # Published scores are for the complete dataset, so show none next to scores on demo data or on a part of the rows.
    is_comparable = recipe.data.source != "demo" and recipe.data.limit is None
    return ReportData(
        **make_report_fields(recipe, record, outcome.fit_result),
        next_commands=next_commands(data.task, recipe, name_paths(str(data.plan.folder))),
        model=recipe.model_name,
        teachers=[f"the soft labels in column {soft_labels!r}"] if soft_labels else _list_teachers(recipe),
        split=split.name,
        rows=first_result.rows,
        seed=recipe.training.seed,
        best_metric=recipe.best_metric,
        scores=first_result.scores,
        score_notes=describe_positive_label(first_result.scores, first_result.positive_label),
        intervals=first_result.intervals,
        interval_methods=first_result.interval_methods,
        no_interval=first_result.undefined.get("intervals", {}),
        baselines=first_result.baselines,
        lead=first_result.lead,
        compared_models=_tabulate_models(outcome),
        published=[entry.model_dump() for entry in recipe.published] if is_comparable else [],
        examples=_make_examples(outcome),
        decisions=_find_decisions(outcome),
        labels=list(data.labels),
        tables={"baselines": tabulate(first_result.baselines), **outcome.details[split.name].tables},
        warnings=first_result.warnings + first_result.data_warnings,
        other_splits={result.split: result.scores for result in outcome.results[1:]},
        provenance=_collect_provenance(data, record),
    )


def _tabulate_models(outcome: _Outcome) -> list[dict[str, Any]]:
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
            "95% interval of the difference": model["difference_intervals"].get(metric),
        }
        for model in outcome.compared_models
    ]
    if rows and metric in result.baseline:
        rows.append({**dict.fromkeys(rows[0]), "model": "baseline", metric: result.baseline[metric]})
    return rows


def _collect_provenance(data: FinetuneData, record: RunRecord) -> dict[str, str]:
    """Return seed, checksums and versions, which are needed to reproduce the run."""
    recipe, identity = data.recipe, record["identity"]
    digests = zip(_list_teachers(recipe), identity.get("teachers", []), strict=True)
    return {
        "seed": str(recipe.training.seed),
        "data": recipe.data.source,
        **{f"rows: {name}": f"{count:,} (sha256 {identity['data'][name][:12]})" for name, count in data.rows.items()},
        "model weights": f"sha256 {identity['model'][:12]}",
        **{f"teacher {name}": f"sha256 {digest[:12]}" for name, digest in digests},
        **{f"soft labels: {name}": f"{value:.4f}" for name, value in record.get("soft_labels", {}).items()},
        **record["versions"],
    }


def _make_examples(outcome: _Outcome) -> list[Example]:
    """Return scored rows of the first validation split, with the task's texts for the answers."""
    data, name = outcome.data, outcome.data.validation.name
    rows, predictions = data.validation.rows, outcome.outputs[name].predictions
    gold, answers = data.task.COLUMNS.gold, outcome.details[name].answers
    return [
        replace(
            make_example(index, rows[index], gold, predictions[index], answers[index] if answers else None),
            text=[
                (column, _format_column(column, value)) for column, value in get_model_inputs(rows[index], gold).items()
            ],
        )
        for index in sample_rows(range(len(rows)), _MAX_EXAMPLES)
    ]


def _find_decisions(outcome: _Outcome) -> tuple[str, np.ndarray, np.ndarray] | None:
    """Return the unit of decisions, and confidence and correctness of each, or None without probabilities."""
    data, output = outcome.data, outcome.outputs[outcome.data.validation.name]
    rows, get_decisions = data.validation.rows, data.task.gold_probabilities
    # A verdict is the confidence of an entity, and 1 if the entity is correct, else 0.
    if (verdicts := outcome.details[data.validation.name].entity_verdicts) is not None:
        return "entity", *np.array(verdicts, dtype=float).reshape(-1, 2).T
    if get_decisions is None or "probabilities" not in output.predictions[0]:
        return None
    indices = sample_rows(range(len(rows)), _MAX_EXAMPLES)
    decisions = get_decisions([output.predictions[i] for i in indices], [rows[i] for i in indices], output.context)
    is_right = decisions.probabilities.argmax(axis=1) == decisions.gold
    return decisions.unit, decisions.probabilities.max(axis=1), is_right.astype(float)


def _make_card(data: FinetuneData, report: ReportData, model: Model) -> str:
    recipe, columns = data.recipe, data.task.COLUMNS
    # The pipeline tag and the auto class follow from the class: BertForTokenClassification has the head
    # TokenClassification and the tag token-classification. Replace heads of bertkit by the most similar head.
    head = type(model).__name__.partition("For")[2].replace("LayerTagging", "TokenClassification")
    head = head.replace("WindowClassification", "SequenceClassification")
    is_of_transformers = type(model).__module__.startswith("transformers.")
    dataset_id = find_hub_dataset(recipe.data)
    # Either steps or epochs determine the length of the training; leave out the other.
    unused_key = "steps" if recipe.training.steps is None else "epochs"
    tag = re.sub(r"(?<!^)(?=[A-Z])", "-", head).lower().replace("sequence", "text")
    card = CardData(
        pipeline_tag=data.task.PIPELINE_TAG or tag,
        # A sparse encoder has a class of transformers, but sentence-transformers computes its vectors.
        auto_class=f"AutoModelFor{head}" if is_of_transformers and getattr(model, "reads", "") != "sparse" else "",
        dataset=name_paths(recipe.data.source or ", ".join(recipe.data.files.values())),
        rows=data.rows,
        columns=[*columns.inputs, *(name for name in columns.optional if name in recipe.data.columns)],
        predict_command=f"bertkit predict . {example_row(data.task, recipe)}",
        hyperparameters=recipe.training.model_dump(exclude={"extra", unused_key}) | recipe.training.extra,
        base_model=hub.find_base_model(recipe.model),
        dataset_id=dataset_id,
        dataset_config=recipe.data.config if dataset_id else None,
        language=recipe.data.language,
        fingerprint=data.plan.identity["data"]["train"],
    )
    return model_card(name_models(report, recipe), card)


def _list_teachers(recipe: Recipe) -> list[str]:
    return recipe.distillation.teachers if recipe.distillation else []


def _format_column(column: str, value: object) -> str:
    separator = " " if column == "tokens" else " | "
    return separator.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
