"""The dry run of fine-tuning: what a run would do, and an estimate of its time and memory from a few timed steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bertkit.data.checks import share_of
from bertkit.data.rows import find_unread
from bertkit.hardware.launch import is_one_of_several
from bertkit.modeling.info import Model
from bertkit.modeling.load import load_tokenizer, loaded_weight_bytes
from bertkit.progress import log
from bertkit.recipe import Recipe, write_yaml
from bertkit.storage import hub, runs
from bertkit.storage.cache import say_once
from bertkit.storage.checkpoints import most_bytes, written_bytes
from bertkit.storage.files import check_space
from bertkit.tokens.features import Setup, max_tokens
from bertkit.training.run import RunPlan, find_machine
from bertkit.workflows.finetune import load_model, load_setup
from bertkit.workflows.finetune_data import FinetuneData, read_finetune_data

_FIRST = 1000  # rows whose lengths are counted


@dataclass(frozen=True)
class DryRun:
    """What a run would do."""

    recipe: str
    model: str
    folder: str
    rows: dict[str, int]
    labels: list[str]
    steps: int
    disk_bytes: int
    resolved: str
    warnings: list[str] = field(default_factory=list)
    """What is odd about the rows; it is logged too."""
    unread: list[str] = field(default_factory=list)
    """Columns of the training rows that are not read."""
    timed_steps: int = 0
    """The number of steps from which time and memory are estimated; none were timed where these are None."""
    seconds: float | None = None
    """Tokenizing, training and evaluating; not starting, scoring and saving."""
    memory_bytes: int | None = None
    notes: list[str] = field(default_factory=list)
    """What is to be said of the estimate, or why there is none."""


def dry_run(
    recipe: Recipe,
    *,
    output: str | Path | None = None,
    fresh: bool = False,
    pinned: str | Path | None = None,
    is_timed: bool = True,
) -> DryRun:
    """Check everything that can be checked without training, and return what a run would do.

    If it `is_timed`, some steps are trained on some of the rows, and thrown away.
    """
    with hub.without_weights() as left_out:
        inputs = read_finetune_data(recipe, output, fresh=fresh, pinned=pinned)
        weights = loaded_weight_bytes(inputs.model_folder)
    model = None
    if left_out:  # without them, it is not known whether a run in the folder is this one
        log.info(f"the run will download weights ({sum(left_out.values()) / 1e6:,.1f} MB)")
        setup = Setup(inputs.recipe, load_tokenizer(inputs.model_folder), inputs.labels)
    else:
        runs.foresee_claim(inputs.plan.folder, inputs.plan.identity, fresh=fresh)
        setup = load_setup(inputs)
        model = load_model(inputs, setup)
        _check_batches(inputs.plan, model, inputs.rows)
    from bertkit.tokens.lost import find_long

    rows = inputs.splits["train"].rows[:_FIRST]
    if long := find_long(rows, inputs.task.encode, setup)[0]:
        many = f"{share_of(len(set(long)), len(rows))} of the first {len(rows):,} training rows"
        say_once(f"{many} are longer than {max_tokens(setup):,} tokens: `bertkit check` tells what becomes of them")
    steps, needed = _plan_steps(inputs.plan, inputs.rows["train"], weights, fresh=fresh)
    plan = DryRun(
        recipe=recipe.name,
        model=inputs.recipe.model_name,
        folder=str(inputs.plan.folder),
        rows=inputs.rows,
        labels=list(inputs.labels),
        steps=steps,
        disk_bytes=needed,
        resolved=write_yaml(
            inputs.recipe.model_dump(mode="json", exclude_defaults=True), comment=inputs.plan.facts["automatic"]
        ),
        warnings=list(inputs.warnings),
        unread=list(find_unread(inputs.splits)),
    )
    return _with_times(plan, inputs, setup, model) if is_timed else plan


def _with_times(plan: DryRun, inputs: FinetuneData, setup: Setup, model: Model | None) -> DryRun:
    """Add the time and the memory of a run, or why they are not known."""
    if model is None:
        return replace(plan, notes=["time and memory are not known before the weights are downloaded"])
    if is_one_of_several():
        return replace(plan, notes=["time and memory are measured by one process alone"])
    from bertkit.workflows.bench import measure_some

    speed = measure_some(inputs, setup, model)
    return replace(
        plan,
        timed_steps=speed.steps,
        seconds=speed.recipe_seconds,
        memory_bytes=speed.peak_memory_bytes,
        notes=list(speed.notes),
    )


def _check_batches(plan: RunPlan, model: Model, rows: Mapping[str, int]) -> None:
    """Check, for a dry run, what is known of a training once its model is loaded."""
    from bertkit.training.arguments import make_arguments
    from bertkit.training.micro_batches import check_shares

    training, machine = plan.recipe.training, find_machine(plan)
    arguments = make_arguments(training, machine, plan.folder, rows["train"])
    check_shares(model, training, arguments.world_size)


def _plan_steps(plan: RunPlan, rows: int, weights: int, *, fresh: bool) -> tuple[int, int]:
    """Return the steps of a run and the bytes that it needs on disk, once it is checked that these are free.

    Args:
        plan: what the run is.
        rows: of an epoch.
        weights: bytes of the weights of a model, which are taken to be trained all.
        fresh: whether what is in the folder is moved aside, and keeps its room.
    """
    training = plan.recipe.training
    steps = training.total_steps(rows)
    saves = training.evaluations(steps, rows)
    # each weight has two moments in a checkpoint
    needed = most_bytes(weights, 3 * weights, saves, training.kept_checkpoints(saves))
    check_space(plan.folder, needed - (0 if fresh else written_bytes(plan.folder)))
    return steps, needed
