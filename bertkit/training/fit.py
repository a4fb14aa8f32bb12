"""Train a model in a run's folder: from features to the best weights, or on from the newest whole checkpoint."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from transformers.trainer_utils import set_seed

from bertkit.errors import ResourceError
from bertkit.hardware.precision import Machine
from bertkit.modeling.depths import encoder_layers
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.sharding import sharded_weights
from bertkit.modeling.speed_paths import speed_paths
from bertkit.progress import get_progress, log
from bertkit.recipe.sections import CommonTraining
from bertkit.storage.checkpoints import discard_unfinished, newest_whole, read_manifest
from bertkit.training import micro_batches
from bertkit.training.arguments import (
    captures_steps,
    fitting_collator,
    make_arguments,
    tokens_to_train,
    ways_of_training,
)
from bertkit.training.callbacks import MANIFEST_STATE, TrainingCallback
from bertkit.training.own import make_callback
from bertkit.training.run import FitResult, load_best
from bertkit.training.stopping import StopFlag, caught_signals
from bertkit.training.trackers import session_of
from bertkit.training.trainer import BertkitTrainer, TrainingJob
from bertkit.training.unfreezing import UnfreezingCallback, plan_layers


def fit(
    job: TrainingJob, training: CommonTraining, machine: Machine, folder: Path, *, stop: StopFlag | None = None
) -> FitResult:
    """Train a model, or resume from the newest whole checkpoint in `folder`; the model ends with the best weights.

    Signals ask it to stop, or another flag does that is given.

    Raises:
        DivergedError: the loss or a weight is not finite any more; the last good checkpoint stays.
        StoppedError: a signal asked for it; a checkpoint of the last step was written first.
    """
    model, batches = job.model, job.train_batches
    arguments = make_arguments(
        training, machine, folder, batches.rows, job.metric_for_best_model, job.greater_is_better
    )
    micro_batches.check_shares(model, training, arguments.world_size)
    own_callbacks = [make_callback(name) for name in training.callbacks or ()]
    set_seed(training.seed)  # the dropout stream starts here, whatever loading the model has drawn
    with caught_signals() if stop is None else nullcontext(stop) as flag:
        callback = TrainingCallback(training, job.metric_for_best_model, batches, flag)
        model.to(arguments.device)
        dropout = DropoutStream(training.seed, arguments.process_index)
        graphs = captures_steps(model, training, arguments, batches)
        in_full, padding = training.fsdp or graphs, job.processing_class.pad_token_id
        tokens = None if in_full else tokens_to_train(batches, arguments, padding)
        collate = fitting_collator(job.data_collator, batches, model, training, arguments, graphs=graphs)
        job = replace(job, data_collator=collate)
        sharded = sharded_weights(model, encoder_layers(model)) if training.fsdp else nullcontext()
        with speed_paths(model, training, machine, dropout, tokens) as paths, sharded:
            if paths.padding and training.unpad is True:
                log.info(f"unpad: {paths.padding}")
            plan = plan_layers(model, training, batches.rows)
            trainer = BertkitTrainer(
                job=job,
                dropout=dropout,
                embeddings=paths.embeddings,
                padding=paths.padding,
                plan=plan,
                graphs=graphs,
                args=arguments,
                train_dataset=batches,
                callbacks=[callback, *own_callbacks, *filter(None, [session_of(folder)])],
            )
            if plan:
                trainer.add_callback(UnfreezingCallback(plan, trainer.log))
            callback.trainer = trainer
            try:
                with ways_of_training(trainer.device, graphs=graphs):
                    _train_model(trainer, folder)
            finally:
                get_progress().finish()
        if flag.signal:
            raise flag.error()
    return replace(load_best(model, folder), times=callback.times)


def _train_model(trainer: BertkitTrainer, folder: Path) -> None:
    """Train, from the newest whole checkpoint where there is one; a finished one needs nothing more."""
    start, skipped = newest_whole(folder, to_train=True)
    for line in skipped:
        log.info(line)
    manifest = read_manifest(start) if start else {}
    if not manifest.get("finished"):
        trainer.batches.load_state(manifest.get(MANIFEST_STATE, {}))
        try:
            trainer.train(resume_from_checkpoint=str(start) if start else None)
        except (OSError, ResourceError):
            discard_unfinished(folder)
            raise
