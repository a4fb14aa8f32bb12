"""Train a model in a run's folder: from features to the best weights, or on from the newest complete checkpoint."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

from transformers.trainer_utils import set_seed

from bertkit.errors import ResourceError
from bertkit.hardware.device import Device
from bertkit.hardware.precision import ComputeConfig
from bertkit.modeling.depths import find_encoder_layers
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.sharding import shard_weights
from bertkit.modeling.speed_patches import apply_speed_patches
from bertkit.modeling.static_shapes import always_mask
from bertkit.progress import get_progress, log
from bertkit.recipe.sections import BaseTrainingConfig, TrainingConfig
from bertkit.storage.checkpoints import discard_unfinished, get_last_checkpoint, read_manifest
from bertkit.storage.files import disk_errors
from bertkit.training import micro_batches
from bertkit.training.arguments import (
    captures_steps,
    fitting_collator,
    make_arguments,
    tokens_to_train,
)
from bertkit.training.callbacks import MANIFEST_STATE, TrainingCallback, checkpoint_bytes
from bertkit.training.run import FitResult, load_best
from bertkit.training.stopping import StopFlag, handle_signals
from bertkit.training.trackers import make_callback, session_of
from bertkit.training.trainer import BertkitTrainer, TrainingJob
from bertkit.training.unfreezing import LayerPlan, UnfreezingCallback
from bertkit.training.xla import xla_patches


def fit(
    job: TrainingJob,
    training: BaseTrainingConfig,
    machine: ComputeConfig,
    folder: Path,
    *,
    stop: StopFlag | None = None,
) -> FitResult:
    """Train a model, or resume from the newest complete checkpoint in `folder`; the model ends with the best weights.

    Args:
        job: Model, data and metrics.
        training: Settings of the recipe.
        machine: Device and precision.
        folder: Run folder, which gets checkpoints and a log.
        stop: Flag that ends training; by default, signals set one.

    Raises:
        DivergedError: If the loss or a weight is not finite; the last good checkpoint stays.
        StoppedError: If a signal stopped the run; a checkpoint of the last step was saved before.
        ResourceError: If the disk refuses a write.
    """
    model, batches = job.model, job.train_batches

    # 1. The recipe as TrainingArguments. Settings that cannot work fail here, before anything is moved or drawn.
    arguments = make_arguments(training, machine, folder, batches.rows)
    micro_batches.check_shares(model, training, arguments.world_size)
    callbacks = [make_callback(name) for name in training.callbacks or ()]
    if training.report_to and (session := session_of(folder)):
        callbacks.append(session)

    with handle_signals() if stop is None else nullcontext(stop) as flag:
        with ExitStack() as stack:
            # 2. The model with the speed paths that recipe and machine allow; it is plain again after training. The
            #    seed is set here, so training does not depend on what loading the model has drawn.
            set_seed(training.seed)
            model.to(arguments.device)
            dropout = DropoutStream(training.seed, arguments.process_index)
            graphs = captures_steps(model, training, arguments, batches)
            # Only the embeddings of tokens that occur are trained. CUDA graphs and FSDP need the complete table.
            pad_token_id = job.processing_class.pad_token_id
            tokens = None if training.fsdp or graphs else tokens_to_train(batches, arguments, pad_token_id)
            collate = fitting_collator(job.data_collator, batches, model, training, arguments, graphs=graphs)
            paths = stack.enter_context(apply_speed_patches(model, training, machine, dropout, tokens))
            if training.fsdp:
                stack.enter_context(shard_weights(model, find_encoder_layers(model)))
            if paths.padding_reason and training.unpad is True:
                log.info(f"unpad: {paths.padding_reason}")
            # The plan has the layers that are trained, their first step, and their learning rates.
            plan = None
            if isinstance(training, TrainingConfig) and training.sets_layers and batches.rows:
                plan = LayerPlan(model, training, batches.rows)

            # 3. The Trainer, and the callbacks that act between two steps. Each needs the other: the callback saves
            #    checkpoints, and the Trainer calls it.
            callback = TrainingCallback(training, job, flag)
            trainer = callback.trainer = BertkitTrainer(
                job=replace(job, data_collator=collate),
                dropout=dropout,
                embeddings=paths.embeddings,
                padding_reason=paths.padding_reason,
                plan=plan,
                graphs=graphs,
                args=arguments,
                train_dataset=batches,
                callbacks=[callback, *callbacks],
            )
            if plan:
                trainer.add_callback(UnfreezingCallback(plan, trainer.log))

            # 4. Training, from the newest complete checkpoint if there is one.
            _enter_device(stack, trainer.device, graphs=graphs)
            stack.callback(get_progress().finish)
            _train(trainer, folder)
        # The speed paths are undone here, and signals are still caught.
        if flag.signal:
            raise flag.error()

    # 5. The weights of the best step, which is not always the last one.
    return replace(load_best(model, folder), times=callback.times)


def _enter_device(stack: ExitStack, device: Device, *, graphs: bool) -> None:
    """Enter what the device needs while it trains: masks of every batch for graphs, and patched functions for XLA."""
    if graphs or not device.shapes_may_change:
        stack.enter_context(always_mask())
    if not device.shapes_may_change:
        stack.enter_context(xla_patches())


def _train(trainer: BertkitTrainer, folder: Path) -> None:
    """Train from the newest complete checkpoint; a checkpoint of the last step needs no training."""
    start, skipped = get_last_checkpoint(folder, to_train=True)
    for line in skipped:
        log.info(line)
    manifest = read_manifest(start) if start else {}
    if manifest.get("finished"):
        return
    trainer.batches.load_state(manifest.get(MANIFEST_STATE, {}))
    try:
        # The free space is read for the error message before the incomplete checkpoint is deleted.
        with disk_errors(folder, needed=checkpoint_bytes(trainer)):
            trainer.train(resume_from_checkpoint=str(start) if start else None)
    except (OSError, ResourceError):
        discard_unfinished(folder)
        raise
