"""Fine-tune an encoder as a recipe says: rows -> features -> fit -> predictions -> scores -> run folder."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.sources import is_validation
from bertkit.errors import RecipeError, shorten
from bertkit.evaluation.baselines import ScoredBaselines, fit_and_score
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.evaluation.scoring import Result, Scored, check_best_metric, run_part, score_split
from bertkit.evaluation.training_rows import write_training_rows
from bertkit.metrics.basic import LOWER_IS_BETTER, rank_step
from bertkit.modeling.info import info_of
from bertkit.modeling.load import load_tokenizer
from bertkit.progress import SILENT, Progress, stage
from bertkit.recipe import Recipe
from bertkit.storage.runs import is_main_process
from bertkit.tasks import Task
from bertkit.tokens.features import Feature, Setup, max_tokens
from bertkit.tokens.long_texts import reads_windows
from bertkit.tokens.vocabulary import report_foreign
from bertkit.training.run import Run, open_run
from bertkit.workflows.finetune.inputs import FinetuneInputs, read_inputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from bertkit.training.result import FitResult

log = logging.getLogger("bertkit")

Compare = Callable[[Checkpoint, Scored, Path | None], list[dict[str, Any]]]
"""The trained model, its scores and the folder of its weights -> a record of each model that is compared."""


def finetune(
    recipe: Recipe, *, output: str | Path | None = None, fresh: bool = False, progress: Progress = SILENT
) -> list[Result]:
    """Fine-tune, or resume the same run, or return the scores of a finished one.

    Returns:
        the results of the validation splits; the first chose the best checkpoint.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    with stage(progress, "reading the data", total=1):
        inputs = read_inputs(recipe, output, fresh=fresh)
    return run_inputs(inputs, fresh=fresh, progress=progress)


def run_inputs(
    inputs: FinetuneInputs, *, fresh: bool, progress: Progress, compare: Compare | None = None
) -> list[Result]:
    """Do what `finetune` does with inputs that are read already; `compare` sets other models beside the trained one."""
    with open_run(inputs.plan, fresh=fresh, progress=progress) as run:
        if run.is_finished:
            here = str(inputs.plan.folder)  # it may have been moved
            return [Result(**{**result, "folder": here}) for result in run.record["results"]]
        if inputs.stream is None:
            write_training_rows(inputs.plan.folder, inputs.trained)
        return _train_and_publish(_with_recorded_batching(inputs, run.record), run, progress, compare)


def _with_recorded_batching(inputs: FinetuneInputs, record: Mapping[str, Any]) -> FinetuneInputs:
    """Return the inputs with the batches that a run began with: its recipe may have named what is ``auto`` now."""
    batching = record["identity"]["recipe"]["training"]["batching"]
    training = inputs.recipe.training.model_copy(update={"batching": batching})
    return replace(inputs, recipe=inputs.recipe.model_copy(update={"training": training}))


def _train_and_publish(inputs: FinetuneInputs, run: Run, progress: Progress, compare: Compare | None) -> list[Result]:
    from transformers import set_seed

    from bertkit.hardware.precision import use_matmul_backend
    from bertkit.modeling.layerwise.adapters import merge_adapters
    from bertkit.modeling.layerwise.prepare import prepare_depths
    from bertkit.training.result import untrained
    from bertkit.workflows.finetune.publish import publish

    recipe = inputs.recipe
    use_matmul_backend(run.machine)
    with stage(progress, f"loading {recipe.model_name}"):
        set_seed(recipe.training.seed)  # a new head is drawn from it
        scorer = load_scorer(inputs, run, progress)
        model = scorer.checkpoint.model
        prepare_depths(model, recipe.training)
    is_complete = scorer.encode()
    if not is_complete and not run.is_resumed:
        _report_head(model, recipe, inputs.labels)
    fit_result = untrained() if is_complete else _fit(inputs, scorer)
    scored = scorer.score_best(fit_result.best_step)
    # adapters become a part of the weights before these are published, and compared with those of teachers
    if recipe.training.lora:
        merge_adapters(model, inputs.plan.folder if is_main_process() else None, recipe.model_name)
    chosen = scored[inputs.validation.name]
    compared = compare(replace(scorer.checkpoint, setup=chosen.setup), chosen, fit_result.best) if compare else []
    return publish(scorer, run, fit_result, scored, compared)


def load_scorer(inputs: FinetuneInputs, run: Run, progress: Progress) -> StepScorer:
    """Load the model of a run, or of one task of several, with what scores it."""
    setup = Setup(inputs.recipe, load_tokenizer(inputs.model_folder), inputs.labels)
    baselines = _score_baselines(inputs, setup)
    model = inputs.supervision.load_model(inputs.task, inputs.model_folder, setup)
    # a config that named no padding token has its type's, and a checkpoint must not contradict its tokenizer
    model.config.pad_token_id = setup.tokenizer.pad_token_id
    return StepScorer(inputs, Checkpoint(model, inputs.task, setup, run.machine), baselines, progress)


def _score_baselines(inputs: FinetuneInputs, setup: Setup) -> ScoredBaselines:
    """Score predictions that know the training labels but not the whole input, for each validation split."""
    validation = {name: split.rows for name, split in inputs.splits.items() if is_validation(name)}
    baselines = fit_and_score(inputs.task, inputs.splits["train"].rows, validation, setup)
    for scores in baselines.scores[inputs.validation.name].values():
        check_best_metric(inputs.recipe, scores)
    return baselines


def _fit(inputs: FinetuneInputs, scorer: StepScorer) -> FitResult:
    """Train the model on what its supervision offers."""
    from bertkit.training.batching import InMemoryBatches
    from bertkit.training.fit import Judge, Trainee, fit
    from bertkit.training.losses import gold_terms
    from bertkit.training.signals import caught_signals
    from bertkit.training.streaming import StreamedBatches

    recipe, task, checkpoint = inputs.recipe, inputs.task, scorer.checkpoint
    train, features = inputs.splits["train"], scorer.features.get("train", ())
    gold = gold_terms(task, recipe.training, inputs.labels, train.rows)
    batches = (
        StreamedBatches(inputs.stream, partial(task.encode, setup=checkpoint.setup), recipe.training)
        if inputs.stream
        else InMemoryBatches(features, recipe.training)
    )
    judge = Judge(scorer.score_step, recipe.best_metric, recipe.best_metric not in LOWER_IS_BETTER)
    learning = inputs.supervision.learning(checkpoint, train, features, gold, scorer.progress)
    with learning as (terms, collate), caught_signals() as stop:
        trainee = Trainee(checkpoint.model, checkpoint.setup.tokenizer, batches, collate, terms)
        return fit(
            trainee,
            judge,
            recipe.training,
            checkpoint.machine,
            inputs.plan.folder,
            stop=stop,
            progress=scorer.progress,
        )


class _WithoutTrain(Mapping[str, Sequence[Feature]]):
    """The features of a run that streams its training rows; those of ``train`` cannot be had."""

    def __init__(self, in_memory: Mapping[str, Sequence[Feature]]) -> None:
        self.in_memory = in_memory

    def __getitem__(self, name: str) -> Sequence[Feature]:
        if name == "train":
            raise RecipeError("this method needs all training rows before training", "leave data.streaming out")
        return self.in_memory[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("train", *self.in_memory))

    def __len__(self) -> int:
        return 1 + len(self.in_memory)


class StepScorer:
    """Scores the validation splits of a run, and keeps the scores of the best step so that it is not scored twice."""

    def __init__(
        self, inputs: FinetuneInputs, checkpoint: Checkpoint, baselines: ScoredBaselines, progress: Progress
    ) -> None:
        self.inputs, self.checkpoint, self.baselines, self.progress = inputs, checkpoint, baselines, progress
        self.features: dict[str, Sequence[Feature]] = {}
        """Those of each split in memory, once they are encoded."""
        self.best: tuple[int, Scored] | None = None

    def encode(self) -> bool:
        """Encode all splits, and compute what training needs only once; return whether nothing is left to train."""
        from bertkit.tokens.feature_cache import encode_split

        inputs, checkpoint, task = self.inputs, self.checkpoint, self.inputs.task
        in_memory = {name: split for name, split in inputs.splits.items() if name != "train" or inputs.stream is None}
        with stage(self.progress, "tokenizing"):
            for name, split in in_memory.items():
                self.features[name] = encode_split(split, checkpoint.setup, task.encode)
        if inputs.stream is None:
            _report_lengths(self.features["train"], len(inputs.splits["train"].rows), checkpoint.setup, task)
        examples = self.features.get("train") or self.features[inputs.validation.name]
        report_foreign(checkpoint.setup.tokenizer, checkpoint.model, inputs.model_folder, examples)
        features = _WithoutTrain(self.features) if inputs.stream else self.features
        run_features = partial(run_part, checkpoint, progress=self.progress)
        trains = inputs.supervision.trains
        return not trains or task.precompute(checkpoint.model, features, checkpoint.setup, run_features)

    def score_step(self, model: PreTrainedModel, step: int) -> dict[str, float]:
        """Score the model after a step, its head fitted where no training reaches it, on the split that chooses."""
        if fit_head := info_of(model).fit_head:
            fit_head()
        scored = self._score(self.inputs.validation.name, replace(self.checkpoint, model=model), tune=True)
        if self.best is None or self._rank(scored) > self._rank(self.best[1]):
            self.best = step, scored
        return {"loss": scored.loss if scored.loss is not None else math.nan, **scored.scores}

    def score_best(self, step: int) -> dict[str, Scored]:
        """Score the best model, which is that of a step, on each split; other splits as tuned on the first."""
        first = self.inputs.validation.name
        is_scored = self.best is not None and self.best[0] == step
        chosen = self.best[1] if self.best and is_scored else self._score(first, self.checkpoint, tune=True)
        tuned = replace(self.checkpoint, setup=chosen.setup)
        return {first: chosen, **{name: self._score(name, tuned) for name in self.baselines.scores if name != first}}

    def _rank(self, scored: Scored) -> tuple[bool, float]:
        metric = self.inputs.recipe.best_metric
        return rank_step(scored.scores[metric], scored.loss, greater_is_better=metric not in LOWER_IS_BETTER)

    def _score(self, name: str, checkpoint: Checkpoint, tune: bool = False) -> Scored:
        split, features = self.inputs.splits[name], self.features[name]
        return score_split(checkpoint, split, self.progress, features=features, tune=tune)


def _report_head(model: PreTrainedModel, recipe: Recipe, labels: Sequence[str]) -> None:
    """Say whether the head of a checkpoint is kept, or starts anew and why."""
    info = info_of(model)
    if info.keeps_head:
        log.info(f"the trained head of {recipe.model_name} is kept{': it has the same labels' if labels else ''}")
    elif info.has_new_head:
        others, own = (shorten(", ".join(names)) for names in (info.other_labels, labels))
        why = f", because that of {recipe.model_name} is for the labels {others}, not {own}" if others else ""
        log.info(f"the head is new: it starts from random weights{why}")


def _report_lengths(features: Sequence[Feature], rows: int, setup: Setup, task: Task) -> None:
    """Say how many windows the training rows are read in, or how many are truncated and what reads more of them."""
    from bertkit.tokens.feature_cache import lengths_of, longest_of

    longest, limit = max_tokens(setup), int(setup.tokenizer.model_max_length)
    windows, has_choice = len(features), "long_text" in task.OPTIONS
    if has_choice and reads_windows(setup.recipe):
        windows = int((lengths_of(features) // longest_of(features)).sum())
    if windows > rows:
        log.info(f"training: {rows:,} rows in {windows:,} overlapping windows of up to {longest} tokens")
        return
    full = int((longest_of(features) >= longest).sum())
    if full:
        share = 100 * full / len(features)
        remedies = [f"--max-length {limit}"] if limit > longest else []
        remedies += ["--set options.long_text=windows_mean"] if has_choice else []
        more = f" (to read more: {' or '.join(remedies)})" if remedies else ""
        log.info(f"training rows that reach {longest} tokens: {full:,} ({share:.1f}%); longer ones are truncated{more}")
