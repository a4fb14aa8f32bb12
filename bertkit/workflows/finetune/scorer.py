"""What scores a run while it is trained: its model, the features of its splits, and its best step."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from bertkit.data.sources import is_validation
from bertkit.evaluation.baselines import ScoredBaselines, fit_and_score
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.evaluation.scoring import Scored, run_part, score_split
from bertkit.metrics.basic import check_best_metric, is_lower_better, rank_step
from bertkit.modeling.info import Model, info_of
from bertkit.modeling.tokenizer import report_tokens
from bertkit.progress import log, stage
from bertkit.tasks import Task
from bertkit.tokens.features import Features, Setup, max_tokens
from bertkit.tokens.long_texts import reads_windows
from bertkit.training.run import Run
from bertkit.workflows.finetune.inputs import FinetuneInputs
from bertkit.workflows.finetune.trainee import load_setup

_UNTRAINED = "encoder before training"


def load_scorer(inputs: FinetuneInputs, run: Run) -> StepScorer:
    """Load the model of a run, with what scores it."""
    setup, model = load_setup(inputs)
    baselines = _score_baselines(inputs, setup)
    return StepScorer(inputs, Checkpoint(model, inputs.task, setup, run.machine), baselines)


class StepScorer:
    """Scores the validation splits of a run, and keeps the scores of the best step so that it is not scored twice."""

    def __init__(self, inputs: FinetuneInputs, checkpoint: Checkpoint, baselines: ScoredBaselines) -> None:
        self.inputs, self.checkpoint, self.baselines = inputs, checkpoint, baselines
        self.features: dict[str, Features] = {}
        """Split -> its features, once they are encoded."""
        self.best: tuple[int, Scored] | None = None
        self.truncated: dict[str, int] = {}
        """What the maximum length takes away; see `RunRecord.truncated`."""

    def encode(self) -> bool:
        """Encode all splits, and compute what training needs only once; return whether nothing is left to train."""
        from bertkit.tokens.feature_cache import encode_split

        inputs, checkpoint, task = self.inputs, self.checkpoint, self.inputs.task
        with stage("tokenizing"):
            for name, split in inputs.splits.items():
                self.features[name] = encode_split(split, checkpoint.setup, task.encode)
        self.truncated = {
            "max_tokens": max_tokens(checkpoint.setup),
            "lost_gold": self._count_lost_gold(),
            "training_rows": _report_lengths(self.features["train"], inputs.rows["train"], checkpoint.setup, task),
        }
        report_tokens(checkpoint.setup.tokenizer, self.features["train"])
        run_features = partial(run_part, checkpoint)
        # Vectors need no training, so the encoder is a baseline: what training adds is the lead over it.
        if info_of(checkpoint.model).reads in ("texts", "sparse"):
            for name, by_baseline in self.baselines.judged.items():
                scored = self._score_split(name, checkpoint)
                by_baseline[_UNTRAINED], self.baselines.scores[name][_UNTRAINED] = scored.compared, scored.scores
        return task.precompute(checkpoint.model, self.features, checkpoint.setup, run_features)

    def score_step(self, model: Model, step: int) -> dict[str, float]:
        """Score the model after a step, its head fitted where no training reaches it, on the split that chooses."""
        # A head that no gradient reaches is fitted anew to the encoder of this step.
        if fit_head := info_of(model).fit_head:
            fit_head()
        scored = self._score_split(self.inputs.validation.name, replace(self.checkpoint, model=model), tune=True)
        if self.best is None or self._rank_step(scored) > self._rank_step(self.best[1]):
            self.best = step, scored
        return {"loss": scored.loss if scored.loss is not None else math.nan, **scored.scores}

    def score_best(self, step: int) -> dict[str, Scored]:
        """Score the best model, which is that of a step, on each split; other splits as tuned on the first."""
        first = self.inputs.validation.name
        # The best step was scored when it was found; its predictions are kept, so the split is not run again.
        is_scored = self.best is not None and self.best[0] == step
        chosen = self.best[1] if self.best and is_scored else self._score_split(first, self.checkpoint, tune=True)
        tuned = replace(self.checkpoint, setup=chosen.setup)
        return {
            first: chosen,
            **{name: self._score_split(name, tuned) for name in self.baselines.scores if name != first},
        }

    def _count_lost_gold(self) -> int:
        """Count the validation rows whose gold value cannot be predicted."""
        split, find = self.inputs.validation, self.inputs.task.find_lost_gold
        return len(find(self.features[split.name], split.rows, self.checkpoint.setup)) if find else 0

    def _rank_step(self, scored: Scored) -> tuple[bool, float]:
        metric = self.inputs.recipe.best_metric
        return rank_step(scored.scores[metric], scored.loss, greater_is_better=not is_lower_better(metric))

    def _score_split(self, name: str, checkpoint: Checkpoint, tune: bool = False) -> Scored:
        split, features = self.inputs.splits[name], self.features[name]
        return score_split(checkpoint, split, features=features, tune=tune)


def _score_baselines(inputs: FinetuneInputs, setup: Setup) -> ScoredBaselines:
    """Score predictions that know the training labels but not the whole input, for each validation split."""
    validation = {name: split.rows for name, split in inputs.splits.items() if is_validation(name)}
    baselines = fit_and_score(inputs.task, inputs.splits["train"].rows, validation, setup)
    for scores in baselines.scores[inputs.validation.name].values():
        check_best_metric(inputs.recipe, scores)
    return baselines


def _report_lengths(features: Features, rows: int, setup: Setup, task: Task) -> int:
    """Say how many windows the training rows are read in, or how many are truncated and what reads more of them.

    Returns:
        the number of rows that reach the maximum length, and are not read in windows.
    """
    from bertkit.tokens.feature_cache import lengths_of, longest_of

    longest, limit = max_tokens(setup), int(setup.tokenizer.model_max_length)
    windows, has_choice = len(features), "long_text" in task.OPTIONS
    if has_choice and reads_windows(setup.recipe):
        windows = int((lengths_of(features) // longest_of(features)).sum())
    if windows > rows:
        kind = "sequences" if "questions" in task.COLUMNS.optional else "overlapping windows"
        log.info(f"training: {rows:,} rows in {windows:,} {kind} of up to {longest} tokens")
        return 0
    full = int((longest_of(features) >= longest).sum())
    if full:
        share = 100 * full / len(features)
        remedies = [f"--max-length {limit}"] if limit > longest else []
        remedies += ["--set options.long_text=windows_mean"] if has_choice else []
        more = f" (to read more: {' or '.join(remedies)})" if remedies else ""
        log.info(f"training rows that reach {longest} tokens: {full:,} ({share:.1f}%); longer ones are truncated{more}")
    return full
