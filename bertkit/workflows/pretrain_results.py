"""Turn a pretrained model into a finished run folder: a plain checkpoint, scores, report and card."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import Any

from bertkit.data.remote import find_hub_dataset
from bertkit.metrics.baselines import find_baseline_warning, find_best_baseline_scores, tabulate
from bertkit.modeling.info import Model
from bertkit.recipe.records import PretrainRecipe
from bertkit.reports.card import pretrained_card
from bertkit.reports.html import ReportData, write_report
from bertkit.reports.templates import name_paths
from bertkit.storage import runs
from bertkit.storage.files import write_json
from bertkit.storage.runs import RunRecord, as_portable_record
from bertkit.training.run import (
    FitResult,
    Run,
    export_model,
    finish,
    finished_record,
    make_report_fields,
    write_settings,
)
from bertkit.workflows.pretrain_data import PretrainData


@dataclass(frozen=True)
class PretrainResult:
    """Result of a pretraining run."""

    recipe: str
    model: str
    objective: str
    scores: dict[str, float]
    """Scores of held-out text: ``loss`` in nats, ``perplexity``, ``masked_accuracy``, and scores of the objective."""
    baselines: dict[str, dict[str, float]]
    """Name of a baseline -> its scores on the same text."""
    parameters: int
    steps: int
    tokens: int
    """Tokens seen in training, including special tokens."""
    seconds: float
    corpus: dict[str, dict[str, Any]]
    """Split -> counts of documents, duplicates, sentences, tokens, unknown tokens and bytes."""
    folder: str
    compared_models: list[dict[str, Any]] = field(default_factory=list)
    """A teacher and its student; see `compare_with_teacher`."""
    warnings: list[str] = field(default_factory=list)

    @property
    def baseline(self) -> dict[str, float | None]:
        """Score of the strongest baseline for each score that any baseline has."""
        return find_best_baseline_scores(self.baselines)


def save_results(data: PretrainData, run: Run, fit_result: FitResult, model: Model, result: PretrainResult) -> None:
    """Write the files of a finished run folder; the record, which marks the run as finished, is written last."""
    if not runs.is_main_process():
        return
    # 1. Write the checkpoint of the encoder, and separate checkpoints of auxiliary models, such as the generator of
    #    ELECTRA, with which a later run continues.
    objective, context, folder = data.objective, data.context, run.plan.folder
    recipe, tokenizer = context.recipe, context.tokenizer
    encoder = objective.encoder(model, context)
    model_files = export_model(encoder, tokenizer, folder)
    for name, auxiliary_model in objective.auxiliary_checkpoints(model, context).items():
        model_files += export_model(auxiliary_model, tokenizer, folder, name)

    # 2. Write scores, report and card.
    write_settings(run, recipe, fit_result, private=())
    scores = {f"eval_{name}": value for name, value in result.scores.items()}
    totals = {name: getattr(result, name) for name in ("steps", "tokens", "seconds")}
    write_json(folder / "all_results.json", {**scores, **totals, "train_loss": fit_result.train_loss})
    record = finished_record(run, fit_result, result.seconds, result=as_portable_record(result))
    write_report(folder, _make_report_data(recipe, result, fit_result, record, objective.BEST_METRIC))
    # An ELECTRA discriminator cannot fill a mask.
    can_fill = encoder.get_output_embeddings() is not None
    mask, dataset_id = tokenizer.mask_token if can_fill else None, find_hub_dataset(recipe.data)
    card = pretrained_card(recipe, result, record["command"], mask, dataset_id)
    (folder / "README.md").write_text(card, encoding="utf-8", newline="\n")

    # 3. Write the record.
    finish(run, record, fit_result, model_files)


def next_commands(result: PretrainResult) -> list[str]:
    """Return commands to run after a pretraining."""
    folder = shlex.quote(result.folder)
    # An encoder that is not better than its baseline is not worth fine-tuning.
    has_learned = not find_baseline_warning(result.scores, result.baselines, "perplexity")
    return [
        f"open {folder}/report.html",
        *([f"bertkit finetune cola --model {folder}"] if has_learned else []),
        f"bertkit push {folder} YOUR_NAME/{shlex.quote(result.recipe)}",
    ]


def _make_report_data(
    recipe: PretrainRecipe, result: PretrainResult, fit_result: FitResult, record: RunRecord, best_metric: str
) -> ReportData:
    splits = [{"split": name, **counts} for name, counts in result.corpus.items()]
    return ReportData(
        **make_report_fields(recipe, record, fit_result),
        next_commands=next_commands(replace(result, folder=name_paths(result.folder))),
        model=result.model,
        split="held-out text",
        rows=result.corpus["validation"]["documents"],
        seed=recipe.training.seed,
        best_metric=best_metric,
        scores=result.scores,
        baselines=result.baselines,
        tables={"baselines": tabulate(result.baselines), "Text": splits, "Teacher and student": result.compared_models},
        warnings=result.warnings,
        provenance={
            "seed": str(recipe.training.seed),
            "tokens": f"{result.tokens:,}",
            "text": recipe.data.source or ", ".join(recipe.data.files.values()),
            **{f"text: {name}": digest[:12] for name, digest in record["identity"]["data"].items()},
            **record["versions"],
        },
    )
