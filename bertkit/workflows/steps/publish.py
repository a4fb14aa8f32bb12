"""Turn a trained model into a finished run folder: a plain checkpoint, predictions, results, report and card."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.rows import Split
from bertkit.evaluation.scoring import Result, Scored, find_intervals, suffix_of, write_predictions
from bertkit.modeling.info import tagger_head
from bertkit.recipe import Recipe, write_yaml
from bertkit.reports.card import CardFacts, model_card
from bertkit.reports.examples import Example
from bertkit.reports.html import Facts, write_report
from bertkit.storage import runs
from bertkit.storage.files import write_json
from bertkit.tasks import Answer, Details, example_row
from bertkit.tokens.features import Setup, count_tokens
from bertkit.workflows.steps.inputs import Inputs

if TYPE_CHECKING:
    from bertkit.training.fit import FitResult


def publish(
    inputs: Inputs,
    record: dict[str, Any],
    fitted: FitResult,
    model: Any,
    setup: Setup,
    scored: dict[str, Scored],
    baseline: dict[str, dict[str, float]],
    seconds: float,
) -> list[Result]:
    """Write everything a finished run holds; the record, last of all, says that it is finished."""
    if not runs.is_main_process():
        return []
    splits, task = inputs.splits, inputs.task
    details = {name: task.details(each.predictions, splits[name].rows, setup) for name, each in scored.items()}
    results = [
        _result(inputs, each, details[name], splits[name], baseline[name], seconds) for name, each in scored.items()
    ]
    folder = inputs.folder
    export_model(model, setup.tokenizer, folder)
    write_yaml(setup.recipe.model_dump(mode="json", exclude_defaults=True), folder / "recipe.yaml")
    for name, each in scored.items():
        write_predictions(folder, splits[name], each.predictions, details[name])
    _write_results(folder, fitted, inputs, results, scored, seconds)
    given, options = inputs.recipe.options, setup.recipe.options
    finished = {
        **record,
        "status": "finished",
        "finished": runs.now(),
        "seconds": round(seconds, 3),
        "steps": fitted.steps,
        "best_step": fitted.best_step,
        "best_checkpoint": fitted.best.name if fitted.best else None,
        "tuned": {name: value for name, value in options.items() if given.get(name) != value},
        "results": [dataclasses.asdict(result) for result in results],
    }
    first = inputs.validation.name
    facts = _gather_facts(inputs, finished, fitted, scored[first], results, details[first])
    write_report(folder, facts)
    (folder / "README.md").write_text(_card(inputs, facts, model), encoding="utf-8")
    runs.write_record(folder, finished)
    return results


def _result(
    inputs: Inputs, scored: Scored, details: Details, split: Split, baseline: dict[str, float], seconds: float
) -> Result:
    return Result(
        recipe=inputs.recipe.name,
        model=inputs.recipe.model_name,
        split=split.name,
        scores=scored.scores,
        rows=len(scored.predictions),
        seconds=seconds,
        intervals=find_intervals(inputs.task, scored),
        baseline=baseline,
        folder=str(inputs.folder),
        source=split.source,
        warnings=find_warnings(inputs, scored) + details.warnings,
        tables=details.tables,
    )


def find_warnings(inputs: Inputs, scored: Scored) -> list[str]:
    """Say what a reader of the scores must know."""
    warnings = []
    if "demo" in (inputs.recipe.data.source, inputs.recipe.model):
        warnings.append("Demo data or model: an artificial grammar. These scores compare with nothing.")
    answers = {str(prediction["prediction"]) for prediction in scored.predictions}
    if len(answers) == 1 and len(scored.predictions) > 1:
        warnings.append(f"The model gives every row the same answer, {min(answers)!r}: it has learned nothing yet.")
    if inputs.recipe.data.limit is not None:
        warnings.append(f"Only the first {inputs.recipe.data.limit:,} rows of each split were used.")
    return warnings


def export_model(model: Any, tokenizer: Any, folder: Path, part: str = "") -> None:
    """Write a plain checkpoint into a run's folder or a part of it, file by file, so that none is ever half there."""
    staging = folder / ".export"
    shutil.rmtree(staging, ignore_errors=True)
    model.save_pretrained(staging)
    tokenizer.save_pretrained(staging)
    (folder / part).mkdir(exist_ok=True)
    for file in sorted(staging.iterdir()):
        file.chmod((folder / runs.RECORD).stat().st_mode)  # safetensors makes files that nobody else may read
        file.replace(folder / part / file.name)
    staging.rmdir()


def _write_results(
    folder: Path,
    fitted: FitResult,
    inputs: Inputs,
    results: list[Result],
    scored: dict[str, Scored],
    seconds: float,
) -> None:
    """Write the result files under the names and keys of the Hugging Face scripts."""
    rows = inputs.rows["train"]
    seen = fitted.steps * inputs.recipe.training.batch_size if rows is None else rows * fitted.epochs
    epochs = None if rows is None else fitted.epochs  # a stream's passes are not counted
    train = {
        "epoch": epochs,
        "train_loss": fitted.train_loss,
        "train_runtime": round(seconds, 4),
        "train_samples": rows,
        "train_samples_per_second": round(seen / seconds, 3),
        "train_steps_per_second": round(fitted.steps / seconds, 3),
    }
    evaluation: dict[str, Any] = {"epoch": epochs}
    for result in results:
        suffix = suffix_of(result.split)
        evaluation[f"eval_loss{suffix}"] = scored[result.split].loss
        evaluation.update({f"eval_{metric}{suffix}": value for metric, value in result.scores.items()})
        evaluation[f"eval_samples{suffix}"] = result.rows
    write_json(folder / "train_results.json", train)
    write_json(folder / "eval_results.json", without_nan(evaluation))
    write_json(folder / "all_results.json", without_nan({**evaluation, **train}))
    if fitted.last is not None:
        shutil.copyfile(fitted.last / "trainer_state.json", folder / "trainer_state.json")


def _gather_facts(
    inputs: Inputs,
    record: dict[str, Any],
    fitted: FitResult,
    scored: Scored,
    results: list[Result],
    details: Details,
) -> Facts:
    recipe, split = inputs.recipe, inputs.validation
    comparable = recipe.data.source != "demo" and recipe.data.limit is None
    first = results[0]
    return Facts(
        name=recipe.name,
        about=recipe.about,
        command=record["command"],
        model=recipe.model_name,
        teachers=_teachers(recipe),
        split=split.name,
        rows=first.rows,
        seconds=record["seconds"],
        device=record["machine"]["reason"],
        seed=recipe.training.seed,
        best_metric=recipe.best_metric,
        scores=first.scores,
        intervals=first.intervals,
        baseline=first.baseline,
        published=[entry.model_dump() for entry in recipe.published] if comparable else [],
        history=fitted.history,
        best_step=fitted.best_step,
        examples=_examples(inputs, scored, details),
        labels=list(inputs.labels),
        tables=details.tables,
        warnings=first.warnings,
        other_splits={result.split: result.scores for result in results[1:]},
        provenance={
            "seed": str(recipe.training.seed),
            "data": recipe.data.source,
            **{
                f"rows: {name}": _rows_text(count, record["identity"]["data"][name][:12])
                for name, count in inputs.rows.items()
            },
            "model weights": f"sha256 {record['identity']['model'][:12]}",
            **{
                f"teacher {name}": f"sha256 {digest[:12]}"
                for name, digest in zip(_teachers(recipe), record["identity"].get("teachers", []), strict=True)
            },
            **record["versions"],
        },
    )


def _examples(inputs: Inputs, scored: Scored, details: Details) -> list[Example]:
    """Give the scored rows of the first validation split, with the family's own words for answers where it has some."""
    rows = inputs.validation.rows
    lengths = Counter[int]()
    for feature in scored.features:
        lengths[feature["row"]] += count_tokens(feature)
    gold = inputs.task.COLUMNS.gold
    answers: Sequence[Answer | None] = details.answers or [None] * len(rows)
    return [
        Example(
            id=str(row.get("id", number)),
            text=[(column, _as_text(column, value)) for column, value in row.items() if column not in (gold, "id")],
            gold=row[gold] if answer is None else answer.gold,
            predicted=prediction["prediction"] if answer is None else answer.predicted,
            right=None if answer is None else answer.right,
            confidence=None if answer is None else answer.confidence,
            probabilities=prediction.get("probabilities") if answer is None else None,
            length=lengths.get(number),
        )
        for number, (row, prediction, answer) in enumerate(zip(rows, scored.predictions, answers, strict=True))
    ]


def _card(inputs: Inputs, facts: Facts, model: Any) -> str:
    recipe = inputs.recipe
    head = type(model).__name__.partition("For")[2].replace("LayerTagging", "TokenClassification")
    on_hub = not Path(recipe.data.source).exists() and recipe.data.source != "demo" and not recipe.data.files
    length = "steps" if recipe.training.steps is None else "epochs"  # the one that does not count
    card = CardFacts(
        pipeline_tag=re.sub(r"(?<!^)(?=[A-Z])", "-", head).lower().replace("sequence", "text"),
        auto_class="" if tagger_head(model.config) else f"AutoModelFor{head}",
        dataset=recipe.data.source or ", ".join(recipe.data.files.values()),
        rows=inputs.rows,
        predict_command=f"bertkit predict recipe.yaml --model . {example_row(inputs.task, recipe)}",
        hyperparameters=recipe.training.model_dump(exclude={"extra", length}) | recipe.training.extra,
        base_model=recipe.model if not Path(recipe.model).exists() and recipe.model != "demo" else None,
        dataset_id=recipe.data.source if on_hub else None,
        dataset_config=recipe.data.config if on_hub else None,
        fingerprint=inputs.identity["data"]["train"] + (" (of the first window)" if inputs.stream else ""),
    )
    return model_card(facts, card)


def _teachers(recipe: Recipe) -> list[str]:
    return recipe.distillation.teachers if recipe.distillation else []


def _as_text(column: str, value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return (" " if column == "tokens" else " | ").join(map(str, value))
    return str(value)


def _rows_text(rows: int | None, digest: str) -> str:
    return f"streamed (sha256 {digest} of the first window)" if rows is None else f"{rows:,} (sha256 {digest})"


def without_nan(values: dict[str, Any]) -> dict[str, Any]:
    """Give values with None for what is not a number, which JSON does not know."""
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in values.items()}
