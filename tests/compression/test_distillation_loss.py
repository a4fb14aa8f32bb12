"""The losses of a student beside the formulas written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bertkit.compression.distillation_loss import choose_loss, distillation_terms, sum_soft_losses, teacher_collator
from bertkit.data.soft_labels import to_logits
from bertkit.recipe.records import DistillationConfig
from bertkit.training.losses import make_loss, task_terms


class Outputs(dict):
    """Outputs of a model: by name, and as attributes."""

    __getattr__ = dict.__getitem__


def soft(problem_type, student, teacher, temperature, **batch):
    teacher_outputs = {f"teacher_{name}": torch.tensor(values) for name, values in teacher.items()}
    outputs = {name: torch.tensor(values, requires_grad=True) for name, values in student.items()}
    total = sum_soft_losses(choose_loss(problem_type), outputs, {**batch, **teacher_outputs}, temperature)
    total.backward()
    assert all(values.grad.isfinite().all() for values in outputs.values())
    return float(total.detach())


def test_the_divergence_is_the_one_by_hand():
    # softened by 2, the teacher has 3/4 and 1/4, the student one half each
    loss = soft(None, {"logits": [[0.0, 0.0]]}, {"logits": [[2 * math.log(3), 0.0]]}, 2.0)
    assert loss == pytest.approx(4 * (0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)))
    assert soft(None, {"logits": [[3.0, 1.0]]}, {"logits": [[5.0, 3.0]]}, 1.0) == pytest.approx(0, abs=1e-6)


def test_the_divergence_of_tokens_is_that_of_a_plain_loop_over_the_labelled_ones():
    random = np.random.default_rng(0)
    given, wanted = random.normal(size=(2, 3, 4)), random.normal(size=(2, 3, 4))
    labels = torch.tensor([[1, -100, 2], [-100, 0, -100]])
    total = 0.0
    for row, token in ((0, 0), (0, 2), (1, 1)):
        student, teacher = (
            np.exp(each[row, token] / 3) / np.exp(each[row, token] / 3).sum() for each in (given, wanted)
        )
        total += 9 * float((teacher * np.log(teacher / student)).sum())
    loss = soft(None, {"logits": given}, {"logits": wanted}, 3.0, labels=labels)
    assert loss == pytest.approx(total, rel=1e-5)


def test_start_and_end_share_the_loss_and_padding_has_none():
    inf, log3 = math.inf, math.log(3)
    wanted = {"start_logits": [[log3, 0.0, -inf]], "end_logits": [[0.0, 0.0, -inf]]}
    given = {"start_logits": [[0.0, 0.0, 50.0]], "end_logits": [[0.0, 0.0, -50.0]]}
    by_hand = (0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2
    assert soft(None, given, wanted, 1.0) == pytest.approx(by_hand, abs=1e-6)


def test_choices_that_a_row_lacks_have_no_loss():
    least = float(torch.finfo(torch.float32).min)
    whole = soft(None, {"logits": [[1.0, 2.0]]}, {"logits": [[0.0, 1.5]]}, 0.5)
    padded = soft(None, {"logits": [[1.0, 2.0, least]]}, {"logits": [[0.0, 1.5, -math.inf]]}, 0.5)
    assert padded == pytest.approx(whole)


def test_soft_labels_have_the_cross_entropy_of_torch_without_their_entropy():
    random = np.random.default_rng(3)
    given, wanted = random.normal(size=(8, 3)), random.dirichlet([0.5] * 3, size=8)
    wanted[:2] = [1, 0, 0]  # votes that all agree
    entropy = -sum(p * math.log(p) for p in wanted.ravel() if p > 0)
    expected = torch.nn.functional.cross_entropy(torch.tensor(given), torch.tensor(wanted), reduction="sum") - entropy
    assert soft(None, {"logits": given}, {"logits": to_logits(wanted)}, 1.0) == pytest.approx(float(expected), rel=1e-5)


def test_several_labels_at_once_are_yes_or_no_each():
    def divergence(student, teacher):
        p, q = 1 / (1 + math.exp(-teacher / 2)), 1 / (1 + math.exp(-student / 2))
        return 4 * (p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)))

    loss = soft("multi_label_classification", {"logits": [[0.5, -1.0]]}, {"logits": [[2.0, 3.0]]}, 2.0)
    assert loss == pytest.approx((divergence(0.5, 2.0) + divergence(-1.0, 3.0)) / 2, rel=1e-5)


def test_a_number_is_matched_by_squares_at_any_temperature():
    assert soft("regression", {"logits": [[1.5], [0.0]]}, {"logits": [[1.0], [2.0]]}, 5.0) == pytest.approx(4.25)


def test_the_terms_are_weighed_and_gold_keeps_its_class_weights():
    from bertkit.recipe import TrainingConfig

    wanted = DistillationConfig(teachers=["t"], soft_weight=0.25, temperature=1.0)
    gold = task_terms(make_loss(TrainingConfig(class_weights={"b": 3.0}), ["a", "b"], ["a", "b"]))
    terms = distillation_terms(gold, wanted, "single_label_classification", None)
    logits = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    batch = {"labels": torch.tensor([1, 0]), "teacher_logits": torch.tensor([[0.0, 1.0], [math.log(3), 0.0]])}
    seen = []

    def model(**inputs):
        seen.append(set(inputs))
        return Outputs(logits=logits, loss=torch.tensor(99.0))

    sums = terms.sums(model, batch)
    assert seen == [{"labels"}]  # one forward pass, which knows nothing of teachers
    assert dict(terms.weights) == {"gold": 0.75, "soft": 0.25}
    assert terms.count(batch) == {"gold": 2, "soft": 2}
    assert float(sums["gold"]) == pytest.approx(3 * math.log1p(math.exp(-1)) + math.log(2))
    assert float(sums["soft"]) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))


def test_teacher_logits_are_padded_beside_the_batch():
    features = [{"teacher_logits": np.ones((2, 3))}, {"teacher_logits": np.zeros((1, 3))}]
    batch = teacher_collator(lambda some: {"input_ids": torch.zeros(len(some), 2)})(features)
    assert list(batch) == ["input_ids", "teacher_logits"]
    assert batch["teacher_logits"].tolist() == [[[1.0] * 3] * 2, [[0.0] * 3, [-math.inf] * 3]]
