"""Fine-tune an encoder with a recipe: read the rows, load the model, train it, score it, write the run folder.

Read `finetune`, `finetune_rows` and `_train_and_save` from top to bottom. Sets of runs (`seeds`, `sweep`, `glue`), dry
runs and smoke runs (`trial_run`) call these functions, and nothing here depends on them. Distillation enters at three
places: `load_model`, `training_job` and the argument `compare`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.sources import is_validation
from bertkit.errors import shorten
from bertkit.evaluation.baselines import ScoredBaselines, fit_and_score
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.evaluation.scoring import EvalOutput, EvalResult, read_results, run_part, score_split
from bertkit.evaluation.splits import write_training_rows
from bertkit.hardware.precision import use_matmul_backend
from bertkit.metrics.registry import check_best_metric, is_lower_better, rank_step
from bertkit.modeling.info import Model, get_loading_info
from bertkit.modeling.tokenizer import load_tokenizer, report_tokens
from bertkit.progress import log, stage
from bertkit.recipe.plugins import load_custom
from bertkit.recipe.records import Recipe
from bertkit.storage.cache import log_once
from bertkit.storage.runs import is_main_process
from bertkit.tokens.features import Features, TaskContext, max_tokens
from bertkit.tokens.truncation import reads_windows
from bertkit.training.run import FitResult, Run, open_run
from bertkit.workflows.finetune_data import FinetuneData, read_finetune_data

if TYPE_CHECKING:
    from bertkit.training.trainer import TrainingJob

Compare = Callable[[Checkpoint, EvalOutput, Path | None], list[dict[str, Any]]]
"""Scores the teachers of a student on the same validation rows, once it is trained.

It takes the student, its scores, and the folder of its best checkpoint (None if nothing was trained), and returns one
record per model.
"""

_UNTRAINED = "encoder before training"


def finetune(
    recipe: Recipe, *, output: str | Path | None = None, restart: bool = False, expect_run: str | Path | None = None
) -> list[EvalResult]:
    """Fine-tune, or resume an interrupted run, or return the scores of a finished one.

    Args:
        recipe: Recipe to train with.
        output: Run folder; by default ``runs/`` and the name of the recipe.
        restart: Start over; an earlier run in the folder is moved aside.
        expect_run: Folder of another run, which must have the same model, tokenizer, rows and package versions.

    Returns:
        Results of the validation splits. The first split chose the best checkpoint.

    Raises:
        BertkitError: If the recipe, the rows, the model or the machine do not allow the run; see `bertkit.errors`.
    """
    with stage("reading the data", total=1):
        data = read_finetune_data(recipe, output, restart=restart, expect_run=expect_run)
    return finetune_rows(data, restart=restart)


def finetune_rows(data: FinetuneData, *, restart: bool, compare: Compare | None = None) -> list[EvalResult]:
    """Fine-tune on rows that have been read; `compare` scores other models next to the trained model."""
    # `open_run` locks the run folder. It finds out whether the folder holds this run, interrupted or finished.
    with open_run(data.plan, restart=restart) as run:
        if run.is_finished:
            results = read_results(run.record["results"], data.plan.folder)
        else:
            write_training_rows(data.plan.folder, data.trained)
            results = _train_and_save(_with_recorded_batching(data, run.record), run, compare)
    # Gates are not part of a run's identity, so the gates of today's recipe also judge a finished run.
    from bertkit.evaluation.gates import judge_result

    return [judge_result(data.recipe.gates, result) for result in results]


def _with_recorded_batching(data: FinetuneData, record: Mapping[str, Any]) -> FinetuneData:
    """Return the data with the batching in the run's record, because `auto` is resolved when a run is opened."""
    batching = record["identity"]["recipe"]["training"]["batching"]
    return replace(data, recipe=data.recipe.changed("training", batching=batching))


def _train_and_save(data: FinetuneData, run: Run, compare: Compare | None) -> list[EvalResult]:
    from transformers import set_seed

    from bertkit.modeling.depths import configure_layers, merge_adapters
    from bertkit.training.fit import fit

    recipe, task = data.recipe, data.task
    use_matmul_backend(run.machine)

    # 1. The model. A new head draws its weights from the seed, so `set_seed` comes directly before it: a random number
    #    that is drawn in between would change the initial weights.
    with stage(f"loading {recipe.model_name}"):
        set_seed(recipe.training.seed)
        context = load_context(data)
        checkpoint = Checkpoint(load_model(data, context), task, context, run.machine)
        baselines = score_baselines(data, context)
        if recipe.training.layer_keys:
            configure_layers(checkpoint.model, recipe.training)

    # 2. The rows as token ids. Models of vectors can be scored without training, so their untrained encoder is one more
    #    baseline.
    features = encode_splits(data, context)
    truncated = report_truncation(data, context, features)
    evaluator = Evaluator(data, checkpoint, features)
    if getattr(checkpoint.model, "reads", "text") in ("texts", "sparse"):
        for name in baselines.scores:
            scored = evaluator.score(name, checkpoint)
            baselines.baseline_rows[name][_UNTRAINED] = scored.row_scores
            baselines.scores[name][_UNTRAINED] = scored.scores

    # 3. Training. `fit` ends with the weights of the best step in the same model. Families with a frozen encoder
    #    compute its vectors once (`precompute`); if their head is only fitted to these, there are no training steps.
    nothing_to_train = task.precompute(checkpoint.model, features, context, partial(run_part, checkpoint))
    if nothing_to_train:
        fit_result = FitResult.without_training()
    else:
        if not run.is_resumed:
            _report_head(checkpoint.model, recipe, data.labels)
        with training_job(data, checkpoint, features["train"], evaluator.compute_metrics) as job:
            fit_result = fit(job, recipe.training, run.machine, data.plan.folder)

    # 4. The scores of the best step on every validation split. Then LoRA adapters are merged into the weights, because
    #    teachers are compared with the merged model, which is also published.
    validation_names = list(baselines.scores)
    scored_splits = evaluator.score_splits(validation_names, fit_result.best_step)
    if recipe.training.lora:
        merge_adapters(checkpoint.model, data.plan.folder if is_main_process() else None, recipe.model_name)
    best = scored_splits[data.validation.name]
    compared_models = (
        compare(replace(checkpoint, context=best.context), best, fit_result.best_checkpoint) if compare else []
    )

    # 5. The run folder: checkpoint, predictions, scores, report and card. Reports and cards are imported only here.
    from bertkit.workflows.finetune_results import save_results

    return save_results(data, run, fit_result, checkpoint, scored_splits, baselines, truncated, compared_models)


def load_context(data: FinetuneData) -> TaskContext:
    """Load the tokenizer, and log if the model reads fewer tokens than the recipe requires."""
    context = TaskContext(data.recipe, load_tokenizer(data.model_folder), data.labels)
    max_length, readable = data.recipe.training.max_length, max_tokens(context)
    if readable < max_length:
        log_once(f"the model reads {readable:,} tokens, so inputs end there, not at training.max_length {max_length:,}")
    return context


def load_model(data: FinetuneData, context: TaskContext) -> Model:
    """Load the encoder with the head of its task; a student may take layers from its first teacher."""
    if distillation := data.recipe.distillation:
        from bertkit.compression.students import load_student

        return load_student(data.task, data.model_folder, context, distillation)
    return data.task.load_model(data.model_folder, context, new_head=True)


def score_baselines(data: FinetuneData, context: TaskContext) -> ScoredBaselines:
    """Fit baselines (most frequent label, linear model over words, ...) to the training rows, and score them."""
    validation = {name: split.rows for name, split in data.splits.items() if is_validation(name)}
    baselines = fit_and_score(data.task, data.splits["train"].rows, validation, context)
    # Custom metrics have unknown names until rows are scored. Scores of a baseline show them before the training.
    for scores in baselines.scores[data.validation.name].values():
        check_best_metric(data.recipe, scores)
    return baselines


def encode_splits(data: FinetuneData, context: TaskContext) -> dict[str, Features]:
    """Tokenize the rows of each split, or read them from the cache of features."""
    from bertkit.tokens.feature_cache import encode_split

    with stage("tokenizing"):
        features = {name: encode_split(split, context, data.task.encode) for name, split in data.splits.items()}
    report_tokens(context.tokenizer, features["train"])
    return features


def report_truncation(data: FinetuneData, context: TaskContext, features: Mapping[str, Features]) -> dict[str, int]:
    """Log how many training rows are truncated or read in windows, and return the counts for the run's record."""
    from bertkit.tokens.feature_cache import get_lengths, get_max_lengths

    readable, tokenizer_limit, rows = max_tokens(context), int(context.tokenizer.model_max_length), data.rows["train"]
    train, find_truncated_answers = features["train"], data.task.find_truncated_answers
    validation = features[data.validation.name]
    lost_gold = find_truncated_answers(validation, data.validation.rows, context) if find_truncated_answers else ()
    counts = {"max_tokens": readable, "lost_gold": len(lost_gold), "training_rows": 0}
    # A feature may hold several windows of one text, padded to the longest of them. So its number of windows is its
    # number of tokens divided by that length; both are arrays over features.
    has_choice = "long_text" in data.task.OPTIONS
    is_windowed = has_choice and reads_windows(context.recipe)
    windows = int((get_lengths(train) // get_max_lengths(train)).sum()) if is_windowed else len(train)
    if windows > rows:
        kind = "sequences" if "questions" in data.task.COLUMNS.optional else "overlapping windows"
        log.info(f"training: {rows:,} rows in {windows:,} {kind} of up to {readable} tokens")
        return counts
    # A row that fills the maximum exactly counts too: features do not show whether it was longer.
    if full := int((get_max_lengths(train) >= readable).sum()):
        share = 100 * full / len(train)
        remedies = [f"--max-length {tokenizer_limit}"] if tokenizer_limit > readable else []
        remedies += ["--set options.long_text=windows_mean"] if has_choice else []
        more = f" (to read more: {' or '.join(remedies)})" if remedies else ""
        count = f"{full:,} ({share:.1f}%)"
        log.info(f"training rows that reach {readable} tokens: {count}; longer ones are truncated{more}")
    return {**counts, "training_rows": full}


@dataclass
class Evaluator:
    """Evaluator of the model during training; it keeps the predictions of the best step."""

    data: FinetuneData
    checkpoint: Checkpoint
    features: Mapping[str, Features]
    best: tuple[int, EvalOutput] | None = field(default=None, init=False)
    """Best step so far, and its predictions on the first validation split."""

    def compute_metrics(self, model: Model, step: int) -> dict[str, float]:
        """Score the model of a step on the split that chooses the best checkpoint."""
        checkpoint = replace(self.checkpoint, model=model)
        # Some families fit their head instead of training it. It is fitted again to the encoder of this step.
        if fit_head := self.data.task.fit_head:
            fit_head(model, self.features["train"], checkpoint.context, partial(run_part, checkpoint))
        scored = self.score(self.data.validation.name, checkpoint, tune=True)
        if self.best is None or self._get_sort_key(scored) > self._get_sort_key(self.best[1]):
            self.best = step, scored
        return {"loss": scored.loss if scored.loss is not None else math.nan, **scored.scores}

    def score_splits(self, names: Sequence[str], step: int) -> dict[str, EvalOutput]:
        """Score the weights of the best step on some splits; thresholds are tuned on the first validation split.

        If this process has scored the best step, its predictions are used again; after a resume they are recomputed.
        """
        first = self.data.validation.name
        is_scored = self.best is not None and self.best[0] == step
        best = self.best[1] if self.best and is_scored else self.score(first, self.checkpoint, tune=True)
        tuned = replace(self.checkpoint, context=best.context)
        return {first: best, **{name: self.score(name, tuned) for name in names if name != first}}

    def score(self, name: str, checkpoint: Checkpoint, *, tune: bool = False) -> EvalOutput:
        """Score a model on a split, whose features are encoded already."""
        return score_split(checkpoint, self.data.splits[name], features=self.features[name], tune=tune)

    def _get_sort_key(self, scored: EvalOutput) -> tuple[bool, float]:
        metric = self.data.recipe.best_metric
        return rank_step(scored.scores[metric], scored.loss, greater_is_better=not is_lower_better(metric))


@contextmanager
def training_job(
    data: FinetuneData,
    checkpoint: Checkpoint,
    features: Features,
    compute_metrics: Callable[[Model, int], dict[str, float]],
) -> Iterator[TrainingJob]:
    """Yield the arguments of the Trainer: model, batches, collator, loss terms and metrics.

    Args:
        data: Rows and recipe of the run.
        checkpoint: Model to train.
        features: Features of the training rows.
        compute_metrics: Scores the model of a step: metric -> value.
    """
    from bertkit.training.batching import InMemoryBatches
    from bertkit.training.losses import gold_terms, scale_targets
    from bertkit.training.trainer import TrainingJob

    recipe, context, train = data.recipe, checkpoint.context, data.splits["train"]
    # The gold labels are counted for class weights only.
    loss_terms = gold_terms(data.task, recipe.training, data.labels, train.rows)
    data_collator = data.task.collator(context)
    with ExitStack() as hooks:
        if recipe.distillation:
            from bertkit.compression.students import prepare_distillation

            # The hooks on the teacher's layers are removed when training ends.
            teaching = prepare_distillation(data.teachers, recipe.distillation, checkpoint, train, features, loss_terms)
            loss_terms, data_collator = hooks.enter_context(teaching)
        if recipe.training.collator:
            # A custom collator gets the features and bertkit's collator.
            data_collator = partial(load_custom("collator", recipe.training.collator), collate=data_collator)
        yield TrainingJob(
            model=checkpoint.model,
            processing_class=context.tokenizer,
            train_batches=InMemoryBatches(features, recipe.training),
            data_collator=data_collator,
            loss_terms=scale_targets(checkpoint.model, loss_terms, train.column(data.task.COLUMNS.gold)),
            compute_metrics=compute_metrics,
            metric_for_best_model=recipe.best_metric,
            greater_is_better=not is_lower_better(recipe.best_metric),
        )


def _report_head(model: Model, recipe: Recipe, labels: Sequence[str]) -> None:
    """Log whether the head of the checkpoint is kept, or why it is replaced by a new one."""
    loading = get_loading_info(model)
    if loading.head == "kept":
        log.info(f"the trained head of {recipe.model_name} is kept{': it has the same labels' if labels else ''}")
    elif loading.head == "new":
        reason = ""
        if loading.other_labels:
            old_labels, new_labels = (shorten(", ".join(names)) for names in (loading.other_labels, labels))
            reason = f", because the head of {recipe.model_name} is for the labels {old_labels}, not {new_labels}"
        log.info(f"the head is new: it starts from random weights{reason}")
