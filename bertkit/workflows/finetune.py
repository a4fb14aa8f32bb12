"""Fine-tune an encoder as a recipe says: rows -> features -> fit -> predictions -> scores -> run folder."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.sources import is_validation
from bertkit.distillation.students import load_student, with_teachers
from bertkit.errors import RecipeError
from bertkit.evaluation.scoring import Result, Scored, check_best_metric, run_model, score_split
from bertkit.metrics.basic import LOWER_IS_BETTER
from bertkit.modeling import load as models
from bertkit.modeling.info import info_of
from bertkit.progress import SILENT, Progress
from bertkit.recipe import Recipe
from bertkit.storage.fingerprints import file_fingerprint
from bertkit.tokens.features import Feature, Setup, window
from bertkit.workflows.steps.inputs import Inputs, read_inputs
from bertkit.workflows.steps.opening import opened

if TYPE_CHECKING:
    from bertkit.hardware.precision import Machine
    from bertkit.training.fit import FitResult

log = logging.getLogger("bertkit")


def finetune(
    recipe: Recipe, *, output: str | Path | None = None, fresh: bool = False, progress: Progress = SILENT
) -> list[Result]:
    """Fine-tune, or go on with the same run, or give the scores it already has: validation splits, the first leads.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    return carry_out(read_inputs(recipe, output), fresh=fresh, progress=progress)


def carry_out(inputs: Inputs, *, fresh: bool, progress: Progress) -> list[Result]:
    """Do what `finetune` does with inputs that are read already."""
    recipe = inputs.recipe
    kind = models.read_config(inputs.model_folder)["model_type"]
    data, source = recipe.data, Path(recipe.data.source).expanduser()
    is_split = source.is_file() and data.split_column is None and not data.files
    facts = {
        "model": recipe.model,
        "rows": inputs.rows,
        "split_file": file_fingerprint(source) if is_split else None,
    }
    precision = recipe.training.precision
    with opened(inputs.folder, inputs.identity, facts, precision=precision, kind=kind, fresh=fresh) as run:
        if run.is_finished:
            return [Result(**result) for result in run.record["results"]]
        return _train_and_publish(inputs, run.record, run.start, progress)


def _train_and_publish(inputs: Inputs, record: dict[str, Any], start: float, progress: Progress) -> list[Result]:
    from bertkit.hardware.precision import Machine, use_matmul_backend
    from bertkit.tokens.feature_cache import encode_split
    from bertkit.training.fit import untrained
    from bertkit.workflows.steps.publish import publish

    recipe, task, training = inputs.recipe, inputs.task, inputs.splits["train"]
    machine = Machine(**record["machine"])
    use_matmul_backend(machine)
    setup = Setup(recipe, models.load_tokenizer(inputs.model_folder), inputs.labels)
    baseline = {
        name: task.score(task.compare(task.baseline(training.rows, split.rows, setup), split.rows, setup), setup)
        for name, split in inputs.splits.items()
        if is_validation(name)
    }
    check_best_metric(recipe, baseline[inputs.validation.name])
    _seed(recipe.training.seed)
    model = load_student(task, inputs.model_folder, setup)
    held = {name: split for name, split in inputs.splits.items() if name != "train" or inputs.stream is None}
    features = {name: encode_split(split, setup, task.encode) for name, split in held.items()}
    if inputs.stream is None:
        _say_what_is_long(features["train"], len(training.rows), window(setup))

    scorer = _Scorer(inputs, setup, machine.precision, features, progress)

    def run(module: Any, wanted: Any) -> Any:
        return run_model(module, task, setup, wanted, machine.precision, progress, "preparing")[0]

    is_complete = task.precompute(model, _WithoutTrain(features) if inputs.stream else features, setup, run)
    if info_of(model).has_new_head and not is_complete and "resumed" not in record:
        log.info("the head is new: it starts from random weights")
    fitted = untrained() if is_complete else _fit(inputs, model, scorer, machine)
    scored = scorer.score_best(model, fitted.best_step, list(baseline))
    setup = scored[inputs.validation.name].setup
    return publish(inputs, record, fitted, model, setup, scored, baseline, time.perf_counter() - start)


def _fit(inputs: Inputs, model: Any, scorer: _Scorer, machine: Machine) -> FitResult:
    """Train, under the eye of the teachers that the recipe names, if any."""
    from bertkit.training.batching import InMemoryBatches
    from bertkit.training.fit import fit
    from bertkit.training.losses import make_loss, task_terms
    from bertkit.training.signals import caught_signals
    from bertkit.training.streaming import StreamedBatches

    recipe, task, setup, progress = inputs.recipe, inputs.task, scorer.setup, scorer.progress
    gold = [row[task.COLUMNS.gold] for row in inputs.splits["train"].rows]
    terms = task_terms(make_loss(recipe.training, inputs.labels, gold))
    known = scorer.features.get("train", ())
    teaching = with_teachers(
        inputs.teachers, task, inputs.splits["train"], model, setup, known, terms, machine, progress
    )
    with teaching as (loss, collate), caught_signals() as stop:
        return fit(
            model,
            setup.tokenizer,
            StreamedBatches(inputs.stream, partial(task.encode, setup=setup), recipe.training)
            if inputs.stream
            else InMemoryBatches(known, recipe.training),
            collate,
            recipe.training,
            machine,
            inputs.folder,
            best_metric=recipe.best_metric,
            greater_is_better=recipe.best_metric not in LOWER_IS_BETTER,
            evaluate=scorer.score_step,
            terms=loss,
            stop=stop,
            progress=progress,
        )


class _WithoutTrain(Mapping[str, Sequence[Feature]]):
    """The features of a run that streams its training rows: who asks for those of ``train`` is refused."""

    def __init__(self, held: Mapping[str, Sequence[Feature]]) -> None:
        self.held = held

    def __getitem__(self, name: str) -> Sequence[Feature]:
        if name == "train":
            raise RecipeError("this method wants all training rows before it trains", "leave data.streaming out")
        return self.held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("train", *self.held))

    def __len__(self) -> int:
        return 1 + len(self.held)


class _Scorer:
    """Scores the validation splits of a run, and keeps what the best step scored so that it is not run again."""

    def __init__(
        self,
        inputs: Inputs,
        setup: Setup,
        precision: str,
        features: Mapping[str, Sequence[Feature]],
        progress: Progress,
    ) -> None:
        self.inputs, self.setup, self.precision = inputs, setup, precision
        self.features, self.progress = features, progress
        self.best: tuple[int, Scored] | None = None

    def score_step(self, model: Any, step: int) -> dict[str, float]:
        """Score the model of a step on the split that chooses the best one."""
        scored = self._score(model, self.inputs.validation.name, self.setup, tune=True)
        metric = self.inputs.recipe.best_metric
        sign = -1 if metric in LOWER_IS_BETTER else 1
        if self.best is None or sign * scored.scores[metric] > sign * self.best[1].scores[metric]:
            self.best = step, scored
        return {"loss": scored.loss if scored.loss is not None else math.nan, **scored.scores}

    def score_best(self, model: Any, step: int, names: Sequence[str]) -> dict[str, Scored]:
        """Score the best model, which is that of a step, on each split; other splits as tuned on the first."""
        first = self.inputs.validation.name
        if self.best and self.best[0] == step:
            chosen = self.best[1]
        else:
            chosen = self._score(model, first, self.setup, tune=True)
        others = {name: self._score(model, name, chosen.setup) for name in names if name != first}
        return {first: chosen, **others}

    def _score(self, model: Any, name: str, setup: Setup, tune: bool = False) -> Scored:
        inputs, split, known = self.inputs, self.inputs.splits[name], self.features[name]
        return score_split(model, inputs.task, setup, split, self.precision, self.progress, known, tune)


def _say_what_is_long(features: Sequence[Feature], rows: int, longest: int) -> None:
    from bertkit.tokens.feature_cache import longest_of

    if len(features) > rows:
        log.info(f"training: {rows:,} rows in {len(features):,} windows of up to {longest} tokens that overlap")
        return
    full = int((longest_of(features) >= longest).sum())
    if full:
        share = 100 * full / len(features)
        log.info(f"training rows that fill all {longest} tokens: {full:,} ({share:.1f} %); what is longer is cut")


def _seed(seed: int) -> None:
    from transformers import set_seed

    set_seed(seed)  # a new head is drawn from it
