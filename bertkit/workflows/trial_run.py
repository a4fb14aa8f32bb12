"""Trial runs: a dry run plans a fine-tuning and times a few steps; a smoke run tries every stage on a few rows.

`finetune` and `pretrain` consist of a function that reads the data and a function that trains. A dry run only reads the
data. A smoke run also trains, on a few rows of the data.
"""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit.data.checks import format_fraction
from bertkit.data.rows import Split, get_unread_columns
from bertkit.errors import BertkitError, StoppedError, UnavailableError, UsageError
from bertkit.hardware.launch import shares_work
from bertkit.modeling.checkpoint import get_loaded_weight_bytes
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.progress import ProgressWrapper, log, use_progress
from bertkit.recipe.records import PretrainRecipe, Recipe
from bertkit.recipe.yaml import write_yaml
from bertkit.storage import hub, runs
from bertkit.storage.cache import log_once
from bertkit.storage.checkpoints import max_disk_usage, written_bytes
from bertkit.storage.files import check_space
from bertkit.tokens.features import TaskContext, max_tokens
from bertkit.training.run import find_machine
from bertkit.workflows.finetune import finetune_rows, load_context, load_model
from bertkit.workflows.finetune_data import FinetuneData, read_finetune_data

_LENGTH_ROWS = 1000  # training rows whose lengths are counted
SMOKE_ROWS = 16
"""Number of rows per split in a smoke run, or the number of labels if that is larger."""
# The training is stopped after the first step, and resumed.
_SMOKE_STEPS = 2
# Enough documents that some are held out.
_SMOKE_DOCUMENTS = 200


@dataclass(frozen=True)
class DryRun:
    """Plan of a run."""

    recipe: str
    model: str
    folder: str
    rows: dict[str, int]
    labels: list[str]
    steps: int
    disk_bytes: int
    resolved: str
    warnings: list[str] = field(default_factory=list)
    """Unusual properties of the rows, which are logged too."""
    unread: list[str] = field(default_factory=list)
    """Columns of the training rows that the task does not read."""
    timed_steps: int = 0
    """Number of timed steps, from which time and memory are estimated."""
    seconds: float | None = None
    """Estimated time to tokenize, train and evaluate, without start-up, scoring and saving."""
    memory_bytes: int | None = None
    notes: list[str] = field(default_factory=list)
    """Limits of the estimate, or the reason why nothing was timed."""


def dry_run(
    recipe: Recipe,
    *,
    output: str | Path | None = None,
    restart: bool = False,
    expect_run: str | Path | None = None,
    is_timed: bool = True,
) -> DryRun:
    """Check everything that can be checked without training, and return the plan of a run.

    Args:
        recipe: Recipe of the run.
        output: Run folder; by default ``runs/`` and the name of the recipe.
        restart: Whether an earlier run in the folder would be moved aside.
        expect_run: Folder of a run that must have the same model, rows and versions.
        is_timed: Whether to train a few steps on some of the rows, which estimates time and memory.

    Raises:
        BertkitError: If the run would fail before its first step, with the same error.
    """
    # 1. Read the rows, and load the model if its weights have been downloaded.
    with hub.without_weights() as missing_files:
        data = read_finetune_data(recipe, output, restart=restart, expect_run=expect_run)
        get_weight_bytes = get_loaded_weight_bytes(data.model_folder)
    training, folder = data.recipe.training, data.plan.folder
    model = None
    # The identity of a run includes its weights, so without weights, an existing run folder cannot be checked.
    if missing_files:
        log.info(f"the run will download weights ({sum(missing_files.values()) / 1e6:,.1f} MB)")
        context = TaskContext(data.recipe, load_tokenizer(data.model_folder), data.labels)
    else:
        from bertkit.training.arguments import make_arguments
        from bertkit.training.micro_batches import check_shares

        runs.check_run_can_start(folder, data.plan.identity, restart=restart)
        context = load_context(data)
        model = load_model(data, context)
        machine = find_machine(data.plan)
        arguments = make_arguments(training, machine, folder, data.rows["train"])
        check_shares(model, training, arguments.world_size)

    # 2. Check the lengths of the rows.
    from bertkit.tokens.truncation import find_long

    rows = data.splits["train"].rows[:_LENGTH_ROWS]
    if long_rows := find_long(rows, data.task.encode, context)[0]:
        fraction = f"{format_fraction(len(set(long_rows)), len(rows))} of the first {len(rows):,} training rows"
        log_once(f"{fraction} are longer than {max_tokens(context):,} tokens: `bertkit check` lists what is truncated")

    # 3. Check the disk space. A checkpoint has two moments of AdamW per weight. With `restart`, an earlier run is moved
    #    aside and keeps its space; otherwise, its files are replaced.
    steps = training.total_steps(data.rows["train"])
    saves = training.count_evaluations(steps, data.rows["train"])
    disk_bytes = max_disk_usage(get_weight_bytes, 3 * get_weight_bytes, saves, training.count_kept_checkpoints(saves))
    check_space(folder, disk_bytes - (0 if restart else written_bytes(folder)))
    plan = DryRun(
        recipe=recipe.name,
        model=data.recipe.model_name,
        folder=str(folder),
        rows=data.rows,
        labels=list(data.labels),
        steps=steps,
        disk_bytes=disk_bytes,
        resolved=write_yaml(
            data.recipe.model_dump(mode="json", exclude_defaults=True), comment=data.plan.record_entries["automatic"]
        ),
        warnings=list(data.warnings),
        unread=list(get_unread_columns(data.splits)),
    )

    # 4. Estimate time and memory.
    if not is_timed:
        return plan
    if model is None:
        return replace(plan, notes=["time and memory are not known before the weights are downloaded"])
    if shares_work():
        return replace(plan, notes=["time and memory are only measured in a run with one process"])
    from bertkit.workflows.bench import measure_sample

    speed = measure_sample(data, context, model)
    return replace(
        plan,
        timed_steps=speed.steps,
        seconds=speed.recipe_seconds,
        memory_bytes=speed.peak_memory_bytes,
        notes=list(speed.notes),
    )


@dataclass(frozen=True)
class SmokeStage:
    """Outcome of one stage of a smoke run."""

    name: str
    outcome: str
    """``passed``, ``failed`` or ``left out``."""
    seconds: float
    reason: str = ""
    """Error with its remedy, for a stage that failed or was left out."""


@dataclass
class SmokeResult:
    """Stages of a smoke run in order, up to the first that failed."""

    recipe: str
    model: str
    rows: dict[str, int] = field(default_factory=dict)
    """Rows by split."""
    stages: list[SmokeStage] = field(default_factory=list)


def smoke_finetune(recipe: Recipe) -> tuple[SmokeResult, BertkitError | None]:
    """Read the data, train two steps on a few rows with a stop and a resume in between, score, predict and export.

    All files are written to a temporary folder. A recipe with teachers is distilled.

    Returns:
        Outcomes of the stages, and the error of the stage that failed, or None if no stage failed.
    """
    from bertkit.workflows.distill import distill_rows
    from bertkit.workflows.predict import predict

    result = SmokeResult(recipe.name, recipe.model_name)
    with _smoke_stages(result) as stages:
        run = stages.folder / "run"
        with stages.stage("read the data"):
            data = _with_few_rows(read_finetune_data(recipe, run))
            result.rows = data.rows
        train = distill_rows if recipe.distillation else finetune_rows
        stages.train(lambda: train(data, restart=False))
        with stages.stage("predict"):
            gold = data.task.COLUMNS.gold
            row = {name: value for name, value in data.validation.rows[0].items() if name != gold}
            list(predict(data.recipe.model_copy(update={"model": str(run)}), row=row))
        with stages.stage("export to onnx", is_optional=True):
            from bertkit.workflows.export import export

            export(run, stages.folder / "exported", limit=SMOKE_ROWS, measure_speed=False)
    return result, stages.error


def smoke_pretrain(recipe: PretrainRecipe) -> tuple[SmokeResult, BertkitError | None]:
    """Prepare a few documents, train two steps with a stop and a resume in between, and score.

    Returns:
        Outcomes of the stages, and an error or None, as `smoke_finetune` does.
    """
    from bertkit.workflows.pretrain import pretrain_corpus
    from bertkit.workflows.pretrain_data import read_pretrain_data

    changes: dict[str, Any] = {"budget": None, "batch_size": 2, "short_length": None}
    recipe = recipe.replace("training", **changes, steps=_SMOKE_STEPS, evaluate_every=1, report_to=[])
    recipe = recipe.replace("data", limit=min(recipe.data.limit or _SMOKE_DOCUMENTS, _SMOKE_DOCUMENTS))
    result = SmokeResult(recipe.name, recipe.model or recipe.size)
    with _smoke_stages(result) as stages:
        with stages.stage("prepare the text"):
            data = read_pretrain_data(recipe, stages.folder / "run")
            result.rows = {name: int(split.counts["documents"]) for name, split in data.corpus.items()}
        stages.train(lambda: pretrain_corpus(data, restart=False))
    return result, stages.error


def _with_few_rows(data: FinetuneData) -> FinetuneData:
    """Return the data of a run of two steps, with a few rows per split that cover every label."""
    gold = data.task.COLUMNS.gold if data.task.HAS_LABEL_NAMES else ""
    changes = {"steps": _SMOKE_STEPS, "evaluate_every": 1, "patience": None, "batch_size": SMOKE_ROWS // _SMOKE_STEPS}
    recipe = data.recipe.replace("training", **changes, report_to=[])
    splits = {name: choose_rows(split, gold) for name, split in data.splits.items()}
    return replace(data, splits=splits, recipe=recipe, plan=replace(data.plan, recipe=recipe))


def choose_rows(split: Split, gold: str) -> Split:
    """Return the first row of each label in column `gold`, and rows from the start of the split up to `SMOKE_ROWS`."""
    indices, labels = list[int](), set[str]()
    for index, row in enumerate(split.rows if gold else ()):
        # A tagged row has a list of labels. As JSON, the labels 1 and "1" differ.
        value = row.get(gold)
        new_labels = {json.dumps(label) for label in (value if isinstance(value, list) else [value])} - labels
        if new_labels:
            labels |= new_labels
            indices.append(index)
    remaining = (index for index in range(len(split.rows)) if index not in indices)
    indices += list(islice(remaining, max(0, SMOKE_ROWS - len(indices))))
    return split.select(sorted(indices))


@contextmanager
def _smoke_stages(result: SmokeResult) -> Iterator[_Stages]:
    """Yield a recorder of stages with a temporary folder; if a stage fails, end the block and record the error."""
    with tempfile.TemporaryDirectory() as folder:
        stages = _Stages(result, Path(folder))
        try:
            yield stages
        except BertkitError as error:
            stages.error = error


@dataclass
class _Stages:
    """Recorder of the outcome of each stage."""

    result: SmokeResult
    folder: Path
    """Temporary folder of the run."""
    error: BertkitError | None = None

    @contextmanager
    def stage(self, name: str, *, is_optional: bool = False) -> Iterator[None]:
        """Record a stage. An optional stage is left out if it requires a missing package or does not fit the recipe."""
        start, outcome, reason = time.perf_counter(), "passed", ""
        try:
            yield
        except BertkitError as error:
            is_left_out = is_optional and isinstance(error, (UnavailableError, UsageError))
            outcome, reason = "left out" if is_left_out else "failed", str(error)
            if not is_left_out:
                raise
        finally:
            self.result.stages.append(SmokeStage(name, outcome, round(time.perf_counter() - start, 2), reason))

    def train(self, run: Callable[[], object]) -> None:
        """Record a training that stops after its first step, and its resume up to the end."""
        # The training is expected to raise StoppedError. If it does not, the recipe trains no steps.
        with self.stage("train a step and stop", is_optional=True), suppress(StoppedError):
            with use_progress(_StopAfterStep()):
                run()
            raise UsageError("the recipe trains no steps, so there is nothing to stop")
        with self.stage("resume, train to the end, score and publish"):
            run()


class _StopAfterStep(ProgressWrapper):
    """Progress that stops the training after its first step with SIGTERM."""

    is_training = False

    def start(self, name: str, total: int, done: int = 0) -> None:
        self.is_training = name.startswith("training")
        super().start(name, total, done)

    def update(self, done: int, figures: dict[str, Any]) -> None:
        super().update(done, figures)
        if self.is_training:
            self.is_training = False
            # On Windows, `os.kill` would end the process without calling the handler.
            signal.raise_signal(signal.SIGTERM)
