"""Loss of a student from gold labels and from the logits of fine-tuned teachers (Hinton et al. 2015).

Features contain the teachers' logits, under the names of the model's outputs with the prefix `TEACHER_PREFIX`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.hardware.tensors import find_indices
from bertkit.modeling.info import Model
from bertkit.recipe.records import DistillationConfig
from bertkit.tokens.features import IGNORE_INDEX, Batch, Collator, Features, Tensor, count_items
from bertkit.training.losses import LossTerms

if TYPE_CHECKING:
    from bertkit.modeling.students.matching import Matching

TEACHER_PREFIX = "teacher_"


def teacher_collator(collate: Collator) -> Collator:
    """Build a collator that also pads the teachers' logits; missing tokens and choices are -inf.

    For rows of 2 and 3 choices, the logits [1, 2] and [3, 4, 5] become [[1, 2, -inf], [3, 4, 5]].
    """
    import torch

    def pad(arrays: Sequence[Any], width: int) -> Tensor:
        longest = max(width, *map(len, arrays))
        padded = np.full((len(arrays), longest, *arrays[0].shape[1:]), -np.inf, dtype=np.float32)
        for padded_row, values in zip(padded, arrays, strict=True):
            padded_row[: len(values)] = values
        return torch.from_numpy(padded)

    def collate_both(features: Features) -> dict[str, Tensor]:
        # The collator of the task ignores unknown keys, so collate the logits here.
        teacher_outputs = [name for name in features[0] if name.startswith(TEACHER_PREFIX)]
        batch = collate(features)
        for name in teacher_outputs:
            # Pad the logits of tokens to the width of the batch, which can exceed its longest row.
            per_token = features[0][name].ndim == 2 or name != f"{TEACHER_PREFIX}logits"
            batch[name] = pad([feature[name] for feature in features], batch["input_ids"].shape[1] if per_token else 0)
        return batch

    return collate_both


def distillation_terms(
    gold: LossTerms, distillation: DistillationConfig, problem_type: str | None, matching: Matching | None
) -> LossTerms:
    """Build the terms ``gold`` and ``soft``, and the terms of a `matching`.

    Args:
        gold: Terms of the task without teachers.
        distillation: Weights and temperature.
        problem_type: Problem type in the model's config, which selects the loss of the logits.
        matching: Comparison of hidden states and attention of student and teacher, or None.
    """
    soft_loss = choose_loss(problem_type)

    def count(batch: Batch) -> Mapping[str, int]:
        inputs = _student_inputs(batch)
        matching_counts = dict.fromkeys(matching.weights, int(batch["attention_mask"].sum())) if matching else {}
        return {**gold.count(inputs), "soft": count_items(inputs), **matching_counts}

    def sums(model: Model, batch: Batch) -> Batch:
        # The model runs once. The gold terms get its outputs from a function that ignores its arguments; `matching`
        # reads the hidden states that hooks have stored.
        inputs = _student_inputs(batch)
        outputs = model(**inputs)
        matching_sums = matching.sums(inputs) if matching else {}
        soft = sum_soft_losses(soft_loss, outputs, batch, distillation.temperature)
        return {**gold.sums(lambda **_: outputs, inputs), "soft": soft, **matching_sums}

    # Scale the weights of the gold terms by 1 - `soft_weight`; the weights of a matching are not scaled.
    weights = {name: weight * (1 - distillation.soft_weight) for name, weight in gold.weights.items()}
    return LossTerms(
        {**weights, "soft": distillation.soft_weight, **(matching.weights if matching else {})}, count, sums
    )


SoftLoss = Callable[[Tensor, Tensor, float], Tensor]
"""Function that computes the loss of each item from the student's logits, the teachers' and the temperature."""


def choose_loss(problem_type: str | None) -> SoftLoss:
    """Return the soft loss of a problem type: single-label or multi-label classification, or regression."""
    losses: dict[str | None, SoftLoss] = {"regression": _squared, "multi_label_classification": _yes_or_no}
    return losses.get(problem_type, _one_of_several)


def sum_soft_losses(loss: SoftLoss, outputs: Batch, batch: Batch, temperature: float) -> Tensor:
    """Sum a loss over rows, or over labeled tokens if tokens have logits, and return the mean over outputs.

    Question answering has two outputs with logits: the start and the end of the answer.
    """
    teacher_outputs = {
        name.removeprefix(TEACHER_PREFIX): values for name, values in batch.items() if name.startswith(TEACHER_PREFIX)
    }
    total: Any = 0
    for name, teacher in teacher_outputs.items():
        student = outputs[name].float()
        # Logits of tokens have the shape (rows, tokens, labels), and logits of rows (rows, labels).
        if teacher.dim() == 3:
            labeled = find_indices(batch["labels"], lambda labels: labels != IGNORE_INDEX)
            student, teacher = student[labeled], teacher[labeled]
        total = total + loss(student, teacher, temperature).sum() / len(teacher_outputs)
    return total  # type: ignore[no-any-return]


def _one_of_several(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T² KL(teacher || student) at temperature T; T² gives gradients the same scale at any T (section 2).

    >>> import torch
    >>> student, teacher = torch.zeros(1, 3), torch.tensor([[2.0, 0.0, -torch.inf]])  # the third choice is missing
    >>> [round(float(_one_of_several(student, teacher, temperature)), 3) for temperature in (1.0, 4.0)]
    [0.328, 0.485]
    """
    # Missing choices are -inf. Without the masks, they would give -inf - -inf, which is NaN.
    is_choice = teacher > -float("inf")
    student_logs = (student / temperature).masked_fill(~is_choice, -float("inf")).log_softmax(dim=-1)
    teacher_logs = (teacher / temperature).log_softmax(dim=-1)
    differences = (teacher_logs - student_logs).masked_fill(~is_choice, 0.0)
    return temperature**2 * (teacher_logs.exp() * differences).sum(dim=-1)


def _yes_or_no(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the loss of independent labels: the mean over labels of T² KL between two yes-or-no distributions."""
    from torch.nn.functional import logsigmoid

    student, teacher = student / temperature, teacher / temperature
    yes = teacher.sigmoid() * (logsigmoid(teacher) - logsigmoid(student))
    no = (-teacher).sigmoid() * (logsigmoid(-teacher) - logsigmoid(-student))
    return temperature**2 * (yes + no).mean(dim=-1)


def _squared(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the squared difference from the teachers' prediction of a number."""
    return (student - teacher).square().mean(dim=-1)


def _student_inputs(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values for name, values in batch.items() if not name.startswith(TEACHER_PREFIX)}
