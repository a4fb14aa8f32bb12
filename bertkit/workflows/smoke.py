"""Take own data and an own model through every stage of a run on a few rows, to see in seconds what would fail."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit.data.rows import Split
from bertkit.errors import BertkitError, StoppedError, UnavailableError, UsageError
from bertkit.progress import ProgressWrapper, use_progress
from bertkit.recipe import PretrainRecipe, Recipe, load_recipe
from bertkit.workflows.finetune import finetune_rows
from bertkit.workflows.finetune_data import FinetuneData, read_finetune_data
from bertkit.workflows.predict import predict
from bertkit.workflows.pretrain import pretrain_corpus
from bertkit.workflows.pretrain_data import read_pretrain_data

ROWS = 16
"""Rows of each split; more where there are more labels."""
STEPS = 2
"""Steps of a training, which is stopped between them."""
_DOCUMENTS = 200  # of which a few are held out


@dataclass(frozen=True)
class SmokeStage:
    """How one stage went."""

    name: str
    outcome: str
    """``passed``, ``failed`` or ``left out``."""
    seconds: float
    reason: str = ""
    """What failed and the remedy, or why it was left out."""


@dataclass
class SmokeResult:
    """The stages of a run on a few rows, in order; the stages after one that failed were not reached."""

    recipe: str
    model: str
    rows: dict[str, int] = field(default_factory=dict)
    """Split -> rows."""
    stages: list[SmokeStage] = field(default_factory=list)


class _StopsAfterAStep(ProgressWrapper):
    """Asks the training to stop after its first step, as SIGTERM does."""

    is_training = False

    def start(self, what: str, total: int, done: int = 0) -> None:
        self.is_training = what.startswith("training")
        super().start(what, total, done)

    def update(self, done: int, figures: dict[str, Any]) -> None:
        super().update(done, figures)
        if self.is_training:
            self.is_training = False
            os.kill(os.getpid(), signal.SIGTERM)


def smoke_finetune(recipe: Recipe) -> tuple[SmokeResult, BertkitError | None]:
    """Read the data, train for two steps on a few rows, stop and resume between them, score, predict and export.

    All is done in a temporary folder. A recipe with teachers is distilled.

    Returns:
        how each stage went, and the error of the one that failed.
    """
    from bertkit.workflows.distill import distill_inputs

    result = SmokeResult(recipe.name, recipe.model_name)
    with try_stages(result) as stages:
        run = stages.folder / "run"
        with stages.one("read the data"):
            inputs = with_few_rows(read_finetune_data(recipe, run, fresh=False))
            result.rows = count_rows(inputs)
        train = distill_inputs if recipe.distillation else finetune_rows
        stages.train(lambda: train(inputs, fresh=False))
        with stages.one("predict"):
            predict_a_row(inputs)
        with stages.one("export to onnx", may_be_refused=True):
            from bertkit.workflows.export import GraphFormat, Source, export_source

            export_source(Source(str(run), limit=ROWS), stages.folder / "exported", GraphFormat("onnx", timed=False))
    return result, stages.error


def smoke_pretrain(recipe: PretrainRecipe) -> tuple[SmokeResult, BertkitError | None]:
    """Prepare a few documents, train for two steps, stop and resume between them, and score.

    Returns:
        as `smoke_finetune`.
    """
    result = SmokeResult(recipe.name, recipe.model or recipe.size)
    with try_stages(result) as stages:
        with stages.one("prepare the text"):
            inputs = read_pretrain_data(with_few_documents(recipe), stages.folder / "run")
            result.rows = {name: int(split.facts["documents"]) for name, split in inputs.corpus.items()}
        stages.train(lambda: pretrain_corpus(inputs, fresh=False))
    return result, stages.error


def with_few_documents(recipe: PretrainRecipe) -> PretrainRecipe:
    """Return a recipe that trains for two steps, on a few documents."""
    changes: dict[str, Any] = {
        "steps": STEPS,
        "budget": None,
        "evaluate_every": 1,
        "batch_size": 2,
        "short_length": None,
        "report_to": [],
    }
    few = recipe.changed("training", **changes)
    return few.changed("data", limit=min(recipe.data.limit or _DOCUMENTS, _DOCUMENTS))


@contextmanager
def try_stages(result: SmokeResult) -> Iterator[Stages]:
    """Yield an object that records each stage, and stop at the first stage that fails."""
    with tempfile.TemporaryDirectory() as temporary, suppress(_Failed):
        yield Stages(result, Path(temporary))


@dataclass
class Stages:
    """Notes how each stage went."""

    result: SmokeResult
    folder: Path
    """A temporary one."""
    error: BertkitError | None = None

    @contextmanager
    def one(self, name: str, *, may_be_refused: bool = False) -> Iterator[None]:
        """Note a stage; one that `may_be_refused` is left out for want of a package, or where it does not apply."""
        start, outcome, reason = time.perf_counter(), "passed", ""
        try:
            yield
        except BertkitError as error:
            is_left_out = may_be_refused and isinstance(error, (UnavailableError, UsageError))
            outcome, reason = "left out" if is_left_out else "failed", str(error)
            if not is_left_out:
                self.error = error
                raise _Failed from error
        finally:
            self.result.stages.append(SmokeStage(name, outcome, round(time.perf_counter() - start, 2), reason))

    def train(self, run: Callable[[], object]) -> None:
        """Note a training that is stopped after its first step, and that goes on to its end, where it is scored."""
        with self.one("train a step and stop", may_be_refused=True), suppress(StoppedError):
            with use_progress(_StopsAfterAStep()):
                run()
            raise UsageError("it trains no steps between which it could stop")
        with self.one("resume, train to the end, score and publish"):
            run()


class _Failed(Exception):
    """A stage has failed."""


def count_rows(inputs: FinetuneData) -> dict[str, int]:
    """Count the rows of each split."""
    return {name: len(split.rows) for name, split in inputs.splits.items()}


def with_few_rows(inputs: FinetuneData) -> FinetuneData:
    """Return the inputs of a run of two steps, whose splits have a few rows with every label."""
    gold = inputs.task.COLUMNS.gold if inputs.task.NAMED else ""
    changes = {"steps": STEPS, "evaluate_every": 1, "patience": None, "batch_size": ROWS // STEPS}
    recipe = inputs.recipe.changed("training", **changes, report_to=[])
    splits = {name: choose_rows(split, gold) for name, split in inputs.splits.items()}
    return replace(inputs, splits=splits, recipe=recipe, plan=replace(inputs.plan, recipe=recipe))


def choose_rows(split: Split, gold: str) -> Split:
    """Return the first row of each label of a split, and as many of its first rows as make 16."""
    chosen, labels = list[int](), set[str]()
    for index, row in enumerate(split.rows if gold else ()):
        value = row.get(gold)
        new = {json.dumps(label) for label in (value if isinstance(value, list) else [value])} - labels
        if new:
            labels |= new
            chosen.append(index)
    others = (index for index in range(len(split.rows)) if index not in chosen)
    chosen += list(islice(others, max(0, ROWS - len(chosen))))
    return split.select(sorted(chosen))


def predict_a_row(inputs: FinetuneData) -> None:
    """Predict a validation row without its label, as `predict` does with the run of these inputs."""
    run = inputs.plan.folder
    row = {name: value for name, value in inputs.validation.rows[0].items() if name != inputs.task.COLUMNS.gold}
    recipe = load_recipe(str(run / "recipe.yaml"), {"model": str(run)})
    recipe._may_run_code = inputs.recipe._may_run_code
    list(predict(recipe, row=row))
