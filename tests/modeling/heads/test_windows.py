"""A head that runs on each window: logits, and a loss in which each row weighs the same, by a plain loop."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForSequenceClassification

from bertkit.errors import ModelError
from bertkit.modeling.heads.window_pooling import window_pooling_class
from bertkit.modeling.heads.windows import refuse_window_pooling, run_on_windows
from bertkit.recipe import Training
from bertkit.training.losses import make_loss, task_terms
from tests.modeling.tiny_models import load_head

LENGTHS = [[6], [8, 8, 3], [8, 5]]  # of the windows of three rows


def batch_of(labels=None) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    mask = torch.zeros(len(LENGTHS), 3, 8, dtype=torch.long)
    for row, lengths in enumerate(LENGTHS):
        for window in range(3):
            mask[row, window, : lengths[window] if window < len(lengths) else 1] = 1
    batch = {"input_ids": torch.randint(5, 40, mask.shape) * mask, "attention_mask": mask}
    return batch if labels is None else {**batch, "labels": torch.tensor(labels)}


def load(folder, problem, labels=3):
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=labels, problem_type=problem)
    return model.eval()


def loop(model, batch):
    """The logits of each window, run by itself."""
    for row, lengths in enumerate(LENGTHS):
        yield torch.cat(
            [model(input_ids=batch["input_ids"][row, n : n + 1, :length])["logits"] for n, length in enumerate(lengths)]
        )


CASES = [
    ("single_label_classification", [2, 0, 1], lambda x, y: functional.cross_entropy(x, y)),
    ("multi_label_classification", [[1.0, 0, 1], [0, 0, 0], [1, 1, 1]], functional.binary_cross_entropy_with_logits),
    ("regression", [0.5, -1.0, 2.0], lambda x, y: functional.mse_loss(x.squeeze(-1), y)),
]


@pytest.mark.parametrize(("problem", "labels", "loss"), CASES)
def test_each_row_weighs_the_same_however_many_windows_it_has(tiny_model, problem, labels, loss):
    count = 1 if problem == "regression" else 3
    plain, model, batch = load(tiny_model, problem, count), load(tiny_model, problem, count), batch_of(labels)
    run_on_windows(model)
    by_row = [
        sum(loss(of_window[None], gold[None]) for of_window in logits) / len(logits)
        for logits, gold in zip(loop(plain, batch), batch["labels"], strict=True)
    ]
    expected = sum(by_row) / len(by_row)
    output = model(**batch)
    assert output["loss"].item() == pytest.approx(expected.item(), abs=1e-6)
    output["loss"].backward()
    expected.backward()
    ours, theirs = (dict(one.named_parameters()) for one in (model, plain))
    for name in ("classifier.weight", "bert.embeddings.word_embeddings.weight"):
        assert torch.allclose(ours[name].grad, theirs[name].grad, atol=1e-6)


@pytest.mark.parametrize("weights", [{"a": 3.0}, "balanced"])
def test_weights_of_labels_and_smoothing_count_windows_alike(tiny_model, weights):
    plain, model = (load(tiny_model, "single_label_classification") for _ in range(2))
    batch = batch_of([2, 0, 1])
    run_on_windows(model)
    loss = make_loss(Training(class_weights=weights, label_smoothing=0.1), ["a", "b", "c"], ["a", "b", "c", "c"])
    expected = sum(
        sum(loss(of_window[None], gold[None]) for of_window in logits) / len(logits)
        for logits, gold in zip(loop(plain, batch), batch["labels"], strict=True)
    )
    assert task_terms(loss).sums(model, batch)["gold"].item() == pytest.approx(expected.item(), abs=1e-5)


def test_logits_are_those_of_each_window_alone(tiny_model):
    plain, model, batch = load(tiny_model, None), load(tiny_model, None), batch_of()
    run_on_windows(model)
    with torch.no_grad():
        output = model(**batch)
        for of_row, count, alone in zip(output["logits"], output["windows"], loop(plain, batch), strict=True):
            assert torch.allclose(of_row[:count], alone, atol=1e-6) and of_row[count:].isnan().all()


def test_a_row_with_many_windows_is_computed_in_chunks_without_gradients(tiny_model, monkeypatch):
    model, batch = load(tiny_model, None), batch_of()
    run_on_windows(model)
    with torch.no_grad():
        whole = model(**batch)["logits"]
        monkeypatch.setattr("bertkit.modeling.heads.windows._TOKENS", 8)
        assert torch.allclose(model(**batch)["logits"], whole, atol=1e-6, equal_nan=True)


def test_a_head_over_windows_is_refused_elsewhere(tiny_model, tmp_path):
    load_head(window_pooling_class, tiny_model, ["a", "b"], new_head=True).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("x")
    refuse_window_pooling(tiny_model)
    with pytest.raises(
        ModelError, match=r"its head reads the windows of a text .* - --set options.long_text=hierarchical"
    ):
        refuse_window_pooling(tmp_path)
