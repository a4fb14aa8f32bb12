"""Distill a masked language model into a student made of some of its layers (DistilBERT: Sanh et al. 2019).

The distributions of teacher and student are compared only at masked tokens. There the teacher is uncertain, so its
probabilities carry information. This also saves time, because the heads, which cost more than all layers of a small
encoder, are computed for one token in seven. The paper's code can compare masked tokens or all tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bertkit.errors import RecipeError
from bertkit.hardware.tensors import select
from bertkit.modeling.architectures import get_architecture
from bertkit.modeling.info import Model, unwrap
from bertkit.modeling.masked_head import (
    LABEL_POSITIONS,
    compute_masked_scores,
    read_scalars,
    run_at_masked,
    sum_cross_entropies,
    sum_masked_losses,
)
from bertkit.modeling.students.distilbert import PretrainingTeacher, choose_layers, load_teacher, make_student
from bertkit.modeling.tokenizer import drop_token_types
from bertkit.pretraining.objectives import PretrainContext, Sums, Totals, mlm
from bertkit.recipe import read_layers
from bertkit.recipe.records import Option, read_option
from bertkit.tokens.features import IGNORE_INDEX, Batch, Collator, Features, Tensor, Tensors

OPTIONS: Mapping[str, object] = {
    **mlm.OPTIONS,
    "temperature": Option(2.0, minimum=0.1, maximum=100.0),
    "student_layers": Option(None, read=read_layers),
}
LOSS_TERMS: Mapping[str, float] = {"soft": 5.0, "mlm": 2.0, "cosine": 1.0}
"""Weights of the terms in DistilBERT."""

IS_TEXT = "is_text"
"""Batch key: False for padding, which a mask of (tokens, tokens) does not show. Shape: (rows, tokens)."""

BEST_METRIC = mlm.BEST_METRIC

examples = mlm.examples
feature = mlm.feature
baselines, auxiliary_checkpoints = mlm.baselines, mlm.auxiliary_checkpoints


class _Outputs(NamedTuple):
    """Outputs of student and teacher for a batch."""

    logits: Tensor
    """(masked, vocabulary)"""
    teacher_logits: Tensor
    """(masked, vocabulary)"""
    states: Tensor
    """(tokens, width), the last hidden states without padding."""
    teacher_states: Tensor
    """(tokens, width)"""
    labels: Tensor
    """(masked,)"""
    temperature: float


def check(context: PretrainContext) -> None:
    """Check that the recipe names a teacher, and that a student can be made from its layers."""
    mlm.check(context)
    _read_layers(context)


def _read_layers(context: PretrainContext) -> list[int]:
    """Return the indices of the teacher's layers that the student takes.

    Raises:
        RecipeError: If no teacher is named, or it does not have these layers.
        ModelError: If no student can be made from this teacher.
    """
    if context.model_folder is None:
        raise RecipeError("a student needs a teacher", "name a pretrained masked language model with --model")
    layers = read_option(OPTIONS, context.recipe, "student_layers")
    return choose_layers(read_layers(layers), context.config)


def load_model(context: PretrainContext) -> Model:
    """Build the student from its teacher, the checkpoint; it raises the errors of `check` and `load_teacher`."""
    layers = _read_layers(context)
    teacher = load_teacher(context.model_folder, context.config)  # type: ignore[arg-type]
    student = make_student(teacher, layers)
    student.teacher = PretrainingTeacher(teacher, float(read_option(OPTIONS, context.recipe, "temperature")))
    return student


def collator(context: PretrainContext) -> Collator:
    """Build the collator of blocks; a batch also has `IS_TEXT`."""
    import torch

    collate_blocks = mlm.collator(context)

    def collate(features: Features) -> Tensors:
        batch = collate_blocks(features)
        sizes = torch.tensor([len(feature["input_ids"]) for feature in features])
        return {**batch, IS_TEXT: torch.arange(batch["input_ids"].shape[1]) < sizes[:, None]}

    return collate


def count(batch: Batch) -> dict[str, int]:
    """Count the masked tokens (for two terms) and all tokens."""
    num_masked = mlm.count(batch)["mlm"]
    return {"soft": num_masked, "mlm": num_masked, "cosine": int(batch[IS_TEXT].sum())}


def sum_losses(model: Model, batch: Batch) -> Sums:
    """Sum the divergence from the soft targets, the losses of masked tokens, and the distances between states."""
    return _sum_terms(_run_both(model, batch))


def _sum_terms(outputs: _Outputs) -> Sums:
    return {
        "soft": sum_soft_losses(outputs.logits, outputs.teacher_logits, outputs.temperature),
        "mlm": sum_cross_entropies(outputs.logits, outputs.labels),
        "cosine": cosine_sum(outputs.states, outputs.teacher_states),
    }


def accumulate(model: Model, batch: Batch) -> Totals:
    """Sum the terms, the correct predictions of both models, and the predictions on which they agree."""
    outputs = _run_both(model, batch)
    agreement = outputs.logits.argmax(-1) == outputs.teacher_logits.argmax(-1)
    teacher_sums = sum_masked_losses(outputs.teacher_logits, outputs.labels)
    return read_scalars(
        {
            **_sum_terms(outputs),
            **sum_masked_losses(outputs.logits, outputs.labels),
            "tokens": batch[IS_TEXT].sum(),
            "agreed": (agreement & (outputs.labels != IGNORE_INDEX)).sum(),
            **{f"teacher_{name}": value for name, value in teacher_sums.items()},
        }
    )


def score(totals: Totals) -> dict[str, float]:
    """Compute the weighted loss and its terms, and the scores of the student and of the teacher."""
    num_masked = totals["masked"]
    soft, distance = totals["soft"] / num_masked, totals["cosine"] / totals["tokens"]
    teacher_totals = {
        name.removeprefix("teacher_"): value for name, value in totals.items() if name.startswith("teacher_")
    }
    return {
        "loss": LOSS_TERMS["soft"] * soft
        + LOSS_TERMS["mlm"] * totals["mlm"] / num_masked
        + LOSS_TERMS["cosine"] * distance,
        **compute_masked_scores(totals),
        **{f"teacher_{name}": value for name, value in compute_masked_scores(teacher_totals).items()},
        "agreement": totals["agreed"] / num_masked,
        "soft_loss": soft,
        "cosine": 1 - distance,
    }


def encoder(model: Model, context: PretrainContext) -> Model:
    """Return the student with its head; if it has no token types, its tokenizer makes none."""
    if not get_architecture(model.config).reads_token_types:
        drop_token_types(context.tokenizer)
    return model


def sum_soft_losses(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Sum T² KL(teacher || student) over tokens at temperature T; T² gives gradients the same scale at any T.

    Shape of logits: (tokens, vocabulary).

    >>> import torch
    >>> same = torch.tensor([[1.0, 2.0, 3.0]])
    >>> round(sum_soft_losses(same, same, 2.0).item(), 6), round(sum_soft_losses(same * 0, same, 2.0).item(), 4)
    (0.0, 0.3137)
    """
    from torch.nn.functional import kl_div

    student = (logits.float() / temperature).log_softmax(dim=-1)
    teacher = (teacher_logits.float() / temperature).log_softmax(dim=-1)
    return temperature**2 * kl_div(student, teacher, reduction="sum", log_target=True)


def cosine_sum(states: Tensor, teacher_states: Tensor) -> Tensor:
    """Sum 1 - cosine between the states of student and teacher over tokens. Shape of states: (tokens, width)."""
    from torch.nn.functional import cosine_similarity

    return (1 - cosine_similarity(states.float(), teacher_states.float(), dim=-1)).sum()


def _run_both(model: Model, batch: Batch) -> _Outputs:
    """Run student and teacher on a batch, the teacher without gradients."""
    import torch

    teacher = unwrap(model).teacher
    is_text = batch[IS_TEXT]
    inputs = {name: values for name, values in batch.items() if name != IS_TEXT}

    def text_states(states: Tensor) -> Tensor:
        # With static shapes, padding cannot be removed. Equal states have the cosine 1, so padding adds no loss.
        return states.where(is_text[..., None], 1.0).flatten(0, 1) if is_static else select(states, is_text)

    is_static = LABEL_POSITIONS in batch
    inputs["output_hidden_states"] = True  # type: ignore[assignment]
    # `run_at_masked` gathers masked tokens only for the heads. `hidden_states` still have all tokens, which the cosine
    # compares. Shape: (rows, tokens, width).
    with torch.no_grad():
        teacher_outputs, _ = run_at_masked(teacher.model.to(is_text.device), inputs)
    outputs, labels = run_at_masked(model, inputs)
    logits, teacher_logits = outputs.logits[0], teacher_outputs.logits[0]
    if is_static:  # Positions without a label get equal logits, so they add no loss.
        has_label = labels[:, None] != IGNORE_INDEX
        logits, teacher_logits = logits.where(has_label, 0.0), teacher_logits.where(has_label, 0.0)
    states, teacher_states = text_states(outputs.hidden_states[-1]), text_states(teacher_outputs.hidden_states[-1])
    return _Outputs(logits, teacher_logits, states, teacher_states, labels, teacher.temperature)
