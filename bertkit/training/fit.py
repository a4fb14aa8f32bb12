"""Train a model in a run's folder, from the start or from the newest complete checkpoint, and load its best weights."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

from transformers.trainer_utils import set_seed

from bertkit.errors import ResourceError
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
    choose_collator,
    make_arguments,
    tokens_to_train,
)
from bertkit.training.callbacks import TrainingCallback, checkpoint_bytes
from bertkit.training.run import FitResult, load_best_weights
from bertkit.training.stopping import StopFlag, handle_signals
from bertkit.training.trackers import get_session, make_callback
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
        ResourceError: If a file cannot be written.
    """
    model, batches = job.model, job.train_batches

    # 1. Make TrainingArguments of the recipe. Invalid settings fail here, before weights are moved to the device.
    arguments = make_arguments(training, machine, folder, batches.rows)
    micro_batches.check_shares(model, training, arguments.world_size)
    callbacks = [make_callback(name) for name in training.callbacks or ()]
    if training.report_to and (session := get_session(folder)):
        callbacks.append(session)

    with handle_signals() if stop is None else nullcontext(stop) as flag:
        with ExitStack() as stack:
            # 2. Apply the speed patches that recipe and machine allow; `stack` removes them after training. The seed is
            #    set here, so training does not depend on random numbers drawn while the model was loaded.
            set_seed(training.seed)
            model.to(arguments.device)
            dropout = DropoutStream(training.seed, arguments.process_index)
            graphs = captures_steps(model, training, arguments, batches)
            # Train only the embeddings of tokens that occur. CUDA graphs and FSDP need the complete table.
            pad_token_id = job.processing_class.pad_token_id
            tokens = None if training.fsdp or graphs else tokens_to_train(batches, arguments, pad_token_id)
            collate = choose_collator(job.data_collator, batches, model, training, arguments, graphs=graphs)
            patches = stack.enter_context(apply_speed_patches(model, training, machine, dropout, tokens))
            if training.fsdp:
                stack.enter_context(shard_weights(model, find_encoder_layers(model)))
            if patches.padding_reason and training.unpad is True:
                log.info(f"unpad: {patches.padding_reason}")
            # The plan sets the learning rate of each layer, and the step from which it is trained.
            layer_plan = None
            if isinstance(training, TrainingConfig) and training.sets_layers and batches.rows:
                layer_plan = LayerPlan(model, training, batches.rows)

            # 3. Create the Trainer and the callbacks that act between two steps. `callback` also needs the Trainer, to
            #    save checkpoints.
            callback = TrainingCallback(training, job, flag)
            trainer = callback.trainer = BertkitTrainer(
                job=replace(job, data_collator=collate),
                dropout=dropout,
                embeddings=patches.embeddings,
                padding_reason=patches.padding_reason,
                layer_plan=layer_plan,
                graphs=graphs,
                args=arguments,
                train_dataset=batches,
                callbacks=[callback, *callbacks],
            )
            if layer_plan:
                trainer.add_callback(UnfreezingCallback(layer_plan, trainer.log))

            # 4. Train, from the newest complete checkpoint if there is one.
            if graphs or not trainer.device.shapes_may_change:
                stack.enter_context(always_mask())
            if not trainer.device.shapes_may_change:
                stack.enter_context(xla_patches())
            stack.callback(get_progress().finish)
            _train(trainer, folder)
        # Here the speed patches are removed, and signals are still caught.
        if flag.signal:
            raise flag.error()

    # 5. Load the weights of the best step, which is not always the last one.
    return replace(load_best_weights(model, folder), times=callback.times)


def _train(trainer: BertkitTrainer, folder: Path) -> None:
    """Train from the newest complete checkpoint; a checkpoint of the last step needs no training."""
    start, skip_messages = get_last_checkpoint(folder, to_train=True)
    for message in skip_messages:
        log.info(message)
    manifest = read_manifest(start) if start else {}
    if manifest.get("finished"):
        return
    trainer.batches.load_state(manifest.get("state", {}))
    try:
        # The free space is read for the error message before the incomplete checkpoint is deleted.
        with disk_errors(folder, needed=checkpoint_bytes(trainer)):
            trainer.train(resume_from_checkpoint=str(start) if start else None)
    except (OSError, ResourceError):
        discard_unfinished(folder)
        raise
