"""What a run trains: its model, and what the model learns from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.modeling.info import Model
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.storage.cache import say_once
from bertkit.tokens.features import Features, Setup, max_tokens
from bertkit.training.losses import gold_terms
from bertkit.training.own import own_collator
from bertkit.workflows.finetune.inputs import FinetuneInputs

if TYPE_CHECKING:
    from bertkit.training.trainer import Trainee


def load_setup(inputs: FinetuneInputs) -> tuple[Setup, Model]:
    """Load the tokenizer and the model that is trained."""
    setup = Setup(inputs.recipe, load_tokenizer(inputs.model_folder), inputs.labels)
    asked, limit = inputs.recipe.training.max_length, max_tokens(setup)
    if limit < asked:
        say_once(f"the model reads {limit:,} tokens, so inputs end there, not at training.max_length {asked:,}")
    return setup, load_to_train(inputs, setup)


def load_to_train(inputs: FinetuneInputs, setup: Setup) -> Model:
    """Load the model that a run trains."""
    if distillation := inputs.recipe.distillation:
        from bertkit.compression.students import load_student

        return load_student(inputs.task, inputs.model_folder, setup, distillation)
    return inputs.task.load_model(inputs.model_folder, setup, new_head=True)


@contextmanager
def make_trainee(inputs: FinetuneInputs, checkpoint: Checkpoint, features: Features) -> Iterator[Trainee]:
    """Yield a model with its batches, the terms of its loss and its collator, for as long as it is trained.

    Args:
        inputs: Inputs of the run.
        checkpoint: Model to train.
        features: Features of the training rows.
    """
    from bertkit.training.batching import InMemoryBatches
    from bertkit.training.target_scale import scale_targets
    from bertkit.training.trainer import Trainee

    training, task, setup = inputs.recipe.training, inputs.task, checkpoint.setup
    train = inputs.splits["train"]
    # The rows count for class weights only.
    gold = gold_terms(task, training, inputs.labels, train.rows)
    batches = InMemoryBatches(features, training)
    with ExitStack() as hooks:
        if distillation := inputs.recipe.distillation:
            from bertkit.compression.students import learning_from_teachers

            # The hooks of a teacher are removed when training ends.
            learning = learning_from_teachers(inputs.teachers, distillation, checkpoint, train, features, gold)
            terms, collate = hooks.enter_context(learning)
        else:
            terms, collate = gold, task.collator(setup)
        if training.collator:
            collate = own_collator(training.collator, collate)
        terms = scale_targets(checkpoint.model, terms, train.column(task.COLUMNS.gold))
        yield Trainee(checkpoint.model, setup.tokenizer, batches, collate, terms)
