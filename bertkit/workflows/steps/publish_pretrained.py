"""Turn a pretrained model into a finished run folder: a plain checkpoint, scores, report and card."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.objectives import load_objective
from bertkit.recipe import PretrainRecipe, write_yaml
from bertkit.reports.card import pretrained_card
from bertkit.reports.html import Facts, write_report
from bertkit.storage import runs
from bertkit.storage.files import write_json
from bertkit.workflows.steps.publish import export_model, without_nan

if TYPE_CHECKING:
    from bertkit.training.fit import FitResult
    from bertkit.workflows.pretrain import Pretrained


def publish(
    recipe: PretrainRecipe,
    result: Pretrained,
    fitted: FitResult,
    model: Any,
    auxiliary_checkpoints: Mapping[str, Any],
    tokenizer: Any,
    record: dict[str, Any],
) -> None:
    """Write everything a finished run holds; the record, last of all, says that it is finished."""
    if not runs.is_main_process():
        return
    folder = Path(result.folder)
    export_model(model, tokenizer, folder)
    for name, auxiliary in auxiliary_checkpoints.items():
        export_model(auxiliary, tokenizer, folder, name)
    write_yaml(recipe.model_dump(mode="json", exclude_defaults=True), folder / "recipe.yaml")
    scores = {f"eval_{name}": value for name, value in result.scores.items()}
    told = {"steps": result.steps, "tokens": result.tokens, "train_loss": fitted.train_loss, "seconds": result.seconds}
    write_json(folder / "all_results.json", without_nan({**scores, **told}))
    if fitted.last is not None:
        shutil.copyfile(fitted.last / "trainer_state.json", folder / "trainer_state.json")
    finished = {
        **record,
        "status": "finished",
        "finished": runs.now(),
        "seconds": result.seconds,
        "steps": fitted.steps,
        "best_step": fitted.best_step,
        "best_checkpoint": fitted.best.name if fitted.best else None,
        "result": dataclasses.asdict(result),
    }
    write_report(folder, _gather_facts(recipe, result, fitted, finished))
    answers = model.get_output_embeddings() is not None  # an ELECTRA for pretraining fills no mask
    (folder / "README.md").write_text(
        pretrained_card(recipe, result, record["command"], tokenizer.mask_token if answers else None), encoding="utf-8"
    )
    runs.write_record(folder, finished)


def _gather_facts(recipe: PretrainRecipe, result: Pretrained, fitted: FitResult, record: dict[str, Any]) -> Facts:
    texts = [{"split": split, **facts} for split, facts in result.corpus.items()]
    return Facts(
        name=result.recipe,
        about=recipe.about,
        command=record["command"],
        model=result.model,
        split="held-out text",
        rows=result.corpus["validation"]["documents"],
        seconds=result.seconds,
        device=record["machine"]["reason"],
        seed=recipe.training.seed,
        best_metric=load_objective(recipe).BEST_METRIC,
        scores=result.scores,
        baseline=result.baseline,
        baseline_name="the frequencies of tokens alone",
        history=fitted.history,
        best_step=fitted.best_step,
        tables={"Text": texts, "Teacher and student": result.compared_models},
        warnings=result.warnings,
        provenance={
            "seed": str(recipe.training.seed),
            "tokens": f"{result.tokens:,}",
            "text": recipe.data.source or ", ".join(recipe.data.files.values()),
            **{f"text: {name}": digest[:12] for name, digest in record["identity"]["data"].items()},
            **record["versions"],
        },
    )
