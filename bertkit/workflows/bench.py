"""Measure how fast this machine trains a model by a recipe, before training is started."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bertkit.data.rows import Split
from bertkit.errors import StoppedError, UsageError
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.evaluation.scoring import run_model, run_part
from bertkit.hardware.launch import refuse_launch
from bertkit.hardware.memory import is_memory_error, peak_memory, restart_peak_memory
from bertkit.hardware.precision import Machine, use_matmul_backend
from bertkit.hardware.speed import fastest_products, training_operations
from bertkit.modeling.architectures import detect_machine, layer_sizes
from bertkit.modeling.checkpoint import loaded_weight_bytes, read_config
from bertkit.modeling.info import Model
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.progress import Progress, ProgressWrapper, stage, takes_progress, use_progress
from bertkit.recipe import Recipe
from bertkit.tokens.features import Feature, Features, Setup, text_lengths
from bertkit.training.automatic import choose_training
from bertkit.training.run import RunPlan, find_machine
from bertkit.training.stopping import StopFlag, caught_signals
from bertkit.workflows.finetune.inputs import FinetuneInputs, read_inputs
from bertkit.workflows.finetune.trainee import load_to_train, make_trainee

if TYPE_CHECKING:
    from bertkit.training.timing import TimedStep


_COLLATED = 1000  # batches whose sizes are looked at
_SOME_ROWS, _SOME_STEPS, _SOME_SECONDS = 8192, 10, 30.0  # of a measurement before a run
_EVALUATED = 8192  # tokens of the validation rows that the forward pass is timed on


@dataclass(frozen=True)
class Speed:
    """The speed of one precision and batch size; None where it was not, or cannot be, measured."""

    precision: str
    batch_size: int
    steps: int = 0
    """The number of timed steps, after some to warm up."""
    step_seconds: float | None = None
    """Median of the timed steps; the speeds are medians too."""
    tokens_per_second: float | None = None
    rows_per_second: float | None = None
    padding_share: float | None = None
    operations_per_second: float | None = None
    peak_operations_per_second: float | None = None
    """Speed of the fastest matrix product of the model's sizes, measured beside."""
    peak_share: float | None = None
    peak_memory_bytes: int | None = None
    evaluation_rows_per_second: float | None = None
    preparing_seconds: float = 0.0
    """What tokenizing, `precompute` of the task family and asking teachers take."""
    epoch_seconds: float | None = None
    recipe_seconds: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bench:
    """What was measured, and on what: rows (of long texts, windows) and tokens (without padding) of one epoch."""

    recipe: str
    model: str
    device: str
    threads: int
    rows: int
    tokens: int
    epochs: float
    speeds: list[Speed]

    @property
    def fastest(self) -> Speed | None:
        """The speed with the most tokens per second, where there are several to choose from."""
        timed = [speed for speed in self.speeds if speed.tokens_per_second is not None]
        return max(timed, key=lambda speed: speed.tokens_per_second or 0.0) if len(timed) > 1 else None


@dataclass(frozen=True)
class _Case:
    """One precision and batch size, and what it is measured on."""

    inputs: FinetuneInputs
    features: Mapping[str, list[Feature]]
    setup: Setup
    machine: Machine
    encoding_seconds: float
    shares: Mapping[str, float]
    """Split -> the rows of a run, for each row that has features."""
    model: Model | None = None
    """Loaded anew where it is None."""

    def of(self, recipe: Recipe, machine: Machine) -> _Case:
        """Return the same rows for another recipe and machine."""
        inputs, setup = replace(self.inputs, recipe=recipe), replace(self.setup, recipe=recipe)
        return replace(self, inputs=inputs, setup=setup, machine=machine)


class _Stoppable(ProgressWrapper):
    """A progress that ends the work when a signal asked for it, so that temporary folders are removed."""

    def __init__(self, stop: StopFlag) -> None:
        super().__init__()
        self.stop = stop

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Report how far the work is, or leave it."""
        super().update(done, figures)
        if self.stop.signal:
            raise StoppedError("stopped; nothing is left behind", signal=self.stop.signal)


@takes_progress
def bench(recipes: Sequence[Recipe], *, steps: int = 20, progress: Progress | None = None) -> Bench:
    """Time some steps of real training for each recipe; recipes may differ in batch size and precision only.

    A recipe whose precision is ``auto`` is measured in each precision that is fast on this machine. Nothing is
    scored, saved or left on disk.

    Raises:
        UsageError: If there are no steps, a batch is larger than all training rows, or there are several processes.
    """
    if steps < 1:
        raise UsageError(f"--steps {steps}", "give at least 1")
    refuse_launch("bench measures one process", "start it without torchrun or accelerate launch")
    with stage("reading the data", total=1):
        inputs = read_inputs(recipes[0], None)
    with stage("loading torch and transformers"):
        setup = Setup(recipes[0], load_tokenizer(inputs.model_folder), inputs.labels)
    # Rows are encoded once for all cases: recipes may differ in batch size and precision only.
    features, encoding = _encode(inputs, setup)
    rows, config = len(features["train"]), read_config(inputs.model_folder)
    recipes = [choose_training(recipe, inputs.rows, len(inputs.labels), config)[0] for recipe in recipes]
    for recipe in recipes:
        if recipe.training.batch_size > rows:
            what = f"a batch of {recipe.training.batch_size} is larger than all {rows} training rows"
            raise UsageError(what, f"give --batch-size at most {rows}")
    precisions = dict.fromkeys(recipe.training.precision for recipe in recipes)
    # A case is a recipe in one precision. Ctrl-C is a flag that each step looks at, so that temporary files go.
    machines = {precision: _choose_machines(precision, inputs.plan) for precision in precisions}
    chosen = [(recipe, machine) for recipe in recipes for machine in machines[recipe.training.precision]]

    with caught_signals() as stop, use_progress(_Stoppable(stop)):
        whole = _Case(inputs, features, setup, chosen[0][1], encoding, dict.fromkeys(features, 1.0))
        speeds = [_measure_case(whole.of(recipe, machine), steps) for recipe, machine in chosen]
    import torch

    recipe, device = recipes[0], chosen[0][1].device
    tokens, threads = _count_tokens(features["train"]), torch.get_num_threads()
    return Bench(recipe.name, recipe.model, device, threads, rows, tokens, recipe.training.epochs, speeds)


def measure_some(inputs: FinetuneInputs, setup: Setup, model: Model) -> Speed:
    """Time a few steps of a run, which trains the model, on some of its rows; return what all of its rows would take.

    Raises:
        BertkitError: what the run would end in, as far as its first steps tell.
    """
    splits = dict[str, Split]()
    for name, split in inputs.splits.items():
        splits[name] = split.select(range(0, len(split.rows), -(-len(split.rows) // _SOME_ROWS)))
    shares = {name: len(split.rows) / len(splits[name].rows) for name, split in inputs.splits.items()}
    some = replace(inputs, splits=splits)
    machine = find_machine(inputs.plan)
    machine.announce()
    with caught_signals() as stop, use_progress(_Stoppable(stop)):
        features, encoding = _encode(some, setup)
        case = _Case(some, features, setup, machine, encoding, shares, model)
        return _measure_case(case, _SOME_STEPS, _SOME_SECONDS)


def _encode(inputs: FinetuneInputs, setup: Setup) -> tuple[dict[str, list[Feature]], float]:
    """Encode the rows of all splits; return the features, and the seconds that it took."""
    start = time.perf_counter()
    with stage("tokenizing"):
        features = {name: inputs.task.encode(split.rows, setup) for name, split in inputs.splits.items()}
    return features, time.perf_counter() - start


def _choose_machines(precision: str, plan: RunPlan) -> list[Machine]:
    """Detect the hardware; where ``auto`` is bf16, return it in both precisions, to compare them."""
    machine = detect_machine(precision, plan.model_type, plan.widths)
    machine.announce()
    both = precision == "auto" and machine.precision == "bf16"
    return [detect_machine("fp32", plan.model_type, plan.widths), machine] if both else [machine]


def _measure_case(case: _Case, steps: int, most: float = math.inf) -> Speed:
    """Prepare, train for some steps or so many seconds, and run the trained model over validation rows."""
    from bertkit.modeling.depths import prepare_depths

    use_matmul_backend(case.machine)
    setup, machine, keys = case.setup, case.machine, case.features["train"][0].keys()
    # a copy, since preparing may add to features
    copies = {name: [dict(feature) for feature in features] for name, features in case.features.items()}
    case = replace(case, features=copies)
    speed = Speed(machine.precision, setup.recipe.training.batch_size)
    try:
        # In the order of a run: load, prepare, train, score.
        with _cache_aside():
            knows_memory = restart_peak_memory(machine.device)
            model = (load_to_train(case.inputs, setup) if case.model is None else case.model).to(machine.device)
            if setup.recipe.training.layer_keys:
                prepare_depths(model, setup.recipe.training)
            checkpoint = Checkpoint(model, case.inputs.task, setup, machine)
            start = time.perf_counter()
            run_features = partial(run_part, checkpoint)
            is_complete = case.inputs.task.precompute(model, case.features, setup, run_features)
            prepared = case.encoding_seconds + time.perf_counter() - start
            timed, sizes, asking = ([], iter(()), 0.0) if is_complete else _time_training(case, checkpoint, steps, most)
            rate = _time_forward(case, checkpoint)
            memory = peak_memory(machine.device) if knows_memory else None
            # What steps have freed is kept, and the weights of the best checkpoint come beside it at the end of a run.
            if memory is not None and machine.device == "cpu":
                memory += loaded_weight_bytes(case.inputs.model_folder) + _memory_of_unseen(timed, sizes)
            speed = replace(
                speed,
                preparing_seconds=case.shares["train"] * (prepared + asking),
                peak_memory_bytes=memory,
                evaluation_rows_per_second=rate,
            )
            if is_complete:
                speed = _with_note(speed, f"{setup.recipe.name} trains nothing: it only prepares and evaluates")
            else:
                is_whole = case.features["train"][0].keys() == keys
                speed = _add_training(speed, timed, model, machine, is_whole)
        return _add_estimates(speed, case)
    except (MemoryError, RuntimeError) as error:
        if not is_memory_error(error):
            raise
        return _with_note(speed, f"{speed.precision}, batch {speed.batch_size}: out of memory")


@contextmanager
def _cache_aside() -> Iterator[None]:
    """Use a temporary cache: the hidden states of a bench are of no use to a later training."""
    before = os.environ.get("BERTKIT_CACHE")
    with TemporaryDirectory(prefix="bertkit-bench-") as folder:
        os.environ["BERTKIT_CACHE"] = folder
        try:
            yield
        finally:
            del os.environ["BERTKIT_CACHE"]
            if before is not None:
                os.environ["BERTKIT_CACHE"] = before


def _time_training(
    case: _Case, checkpoint: Checkpoint, steps: int, most: float
) -> tuple[list[TimedStep], Iterator[int], float]:
    """Time some steps.

    Returns:
        the steps; the sizes of the batches of an epoch as they are asked for, with padding; and the seconds in which
        teachers were asked.
    """
    from bertkit.training.timing import time_steps, training_to_time

    recipe, features = case.setup.recipe, case.features["train"]
    training = training_to_time(recipe.training, len(features), steps)
    inputs = replace(case.inputs, recipe=recipe.model_copy(update={"training": training}))
    start = time.perf_counter()
    with make_trainee(inputs, checkpoint, features) as trainee:
        asking = time.perf_counter() - start
        timed = time_steps(trainee, training, case.machine, steps=steps, seconds=most)
        epoch = islice(trainee.batches.loader(trainee.collate, processes=1, process=0), _COLLATED)
    return timed, (batch["input_ids"].numel() for batch in epoch), asking


def _memory_of_unseen(steps: Sequence[TimedStep], sizes: Iterable[int]) -> int:
    """Return the bytes that batches of other sizes than those of the timed steps will keep in memory.

    oneDNN compiles each product for every size, and keeps it. So each takes as much as those of the timed steps did.

    >>> from bertkit.training.timing import TimedStep
    >>> steps = [TimedStep(1.0, 1, [8], padded, memory) for padded, memory in ((8, 100), (16, 150), (8, 150))]
    >>> _memory_of_unseen(steps, [8, 16, 24, 32, 8])
    100
    """
    seen = {step.padded for step in steps}
    if len(seen) < 2 or steps[0].memory is None or steps[-1].memory is None:
        return 0
    return len(set(sizes) - seen) * (steps[-1].memory - steps[0].memory) // (len(seen) - 1)


def _add_training(speed: Speed, steps: Sequence[TimedStep], model: Model, machine: Machine, is_whole: bool) -> Speed:
    """Add the figures of the timed steps; `is_whole`: a step computes the whole model, and nothing was prepared."""
    # Medians of steps: a mean would count the pauses of other programs.
    tokens = sum(sum(step.lengths) for step in steps)
    tokens_per_second = 1 / median(step.seconds / sum(step.lengths) for step in steps)
    speed = replace(
        speed,
        steps=len(steps),
        step_seconds=median(step.seconds for step in steps),
        tokens_per_second=tokens_per_second,
        rows_per_second=tokens_per_second * sum(step.rows for step in steps) / tokens,
        padding_share=1 - tokens / sum(step.padded for step in steps),
    )
    sizes = layer_sizes(model.config)
    if sizes is None:
        what = f"unknown for a {model.config.model_type} model, whose operations are not counted"
        return _with_note(speed, f"of peak: {what}")
    if not is_whole:
        return _with_note(speed, "of peak: unknown, since the encoder was run before the steps")
    operations = median(training_operations(sizes, step.lengths) / step.seconds for step in steps)
    peak = fastest_products(machine.device, machine.precision, *sizes[1:])
    share = operations / peak
    return replace(speed, operations_per_second=operations, peak_operations_per_second=peak, peak_share=share)


def _with_note(speed: Speed, note: str) -> Speed:
    return replace(speed, notes=(*speed.notes, note))


def _time_forward(case: _Case, checkpoint: Checkpoint) -> float:
    """Measure the validation rows per second of the model, on a sample of all lengths."""
    features = case.features[case.inputs.validation.name]
    sample = features[:: max(1, _count_tokens(features) // _EVALUATED)]
    for _ in range(2):  # the first warms up
        start = time.perf_counter()
        run_model(checkpoint, sample, "evaluating")
    return len(sample) / (time.perf_counter() - start)


def _add_estimates(speed: Speed, case: _Case) -> Speed:
    """Add how long an epoch and the recipe take: preparing, training and evaluating, without starting and saving."""
    rows, validation = case.features["train"], case.inputs.validation.name
    evaluating = (
        case.shares[validation] * len(case.features[validation]) / (speed.evaluation_rows_per_second or math.inf)
    )
    if speed.tokens_per_second is None:
        return replace(speed, recipe_seconds=speed.preparing_seconds + evaluating)
    training, share = case.setup.recipe.training, case.shares["train"]
    epoch = share * _count_tokens(rows) / speed.tokens_per_second
    features = round(share * len(rows))
    steps = training.total_steps(features)
    epochs, evaluations = steps / training.steps_per_epoch(features), training.evaluations(steps, features)
    total = speed.preparing_seconds + epochs * epoch + evaluations * evaluating
    return replace(speed, epoch_seconds=epoch, recipe_seconds=total)


def _count_tokens(features: Features) -> int:
    return sum(length for feature in features for length in text_lengths(feature))
