"""Mixins: windows, lists and missing choices are computed as by a plain loop, and classes keep their names."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForMultipleChoice, AutoModelForSequenceClassification

from bertkit.errors import ModelError
from bertkit.modeling.heads.mixins import (
    LOGIT,
    PROBABILITY,
    MaskedChoices,
    Windows,
    enable_passage_lists,
    extend_class,
    extend_model,
    find_activation,
    list_loss,
    set_activation,
)
from bertkit.modeling.inference.graphs import TextGraph
from bertkit.recipe import TrainingConfig
from bertkit.training.losses import make_loss, task_terms

LENGTHS = [[6], [8, 8, 3], [8, 5]]  # of the windows of three rows


def test_an_extended_class_keeps_its_name_and_module_and_is_saved_as_before(tiny_model, tmp_path):
    model = load(tiny_model, None)
    plain = type(model)
    extend_model(model, Windows)
    extended = type(model)
    assert extended is extend_class(plain, Windows) and issubclass(extended, plain) and extended.extended_class is plain
    assert (extended.__name__, extended.__module__) == (plain.__name__, plain.__module__)
    assert "forward" not in vars(model)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [plain.__name__]
    again = plain.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(values, again[name]) for name, values in model.state_dict().items())


def test_a_graph_runs_the_class_without_the_mixin(tiny_model):
    torch.manual_seed(0)
    model = AutoModelForMultipleChoice.from_pretrained(tiny_model).eval()
    ids, mask = torch.tensor([[2, 9, 3], [2, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    with torch.no_grad():
        plain = model(input_ids=ids[None], attention_mask=mask[None]).logits[0]
        extend_model(model, MaskedChoices)
        assert model(input_ids=ids[None], attention_mask=mask[None]).logits[0, 1] == torch.finfo(torch.float32).min
        assert torch.allclose(TextGraph(model)(ids, mask)["logits"][:, 0], plain, atol=1e-6)


def test_a_row_has_the_same_loss_in_a_batch_with_more_choices(tiny_model):
    torch.manual_seed(0)
    model = AutoModelForMultipleChoice.from_pretrained(tiny_model).eval()
    extend_model(model, MaskedChoices)
    ids, mask = torch.tensor([[[2, 9, 3], [2, 8, 3], [0, 0, 0]]]), torch.tensor([[[1, 1, 1], [1, 1, 1], [1, 0, 0]]])
    with torch.no_grad():
        padded = model(input_ids=ids, attention_mask=mask, labels=torch.tensor([1]))
        alone = model(input_ids=ids[:, :2], attention_mask=mask[:, :2], labels=torch.tensor([1]))
    assert padded["loss"].item() == pytest.approx(alone["loss"].item(), abs=1e-6)
    assert torch.allclose(padded["logits"][:, :2], alone["logits"], atol=1e-6)


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
    extend_model(model, Windows)
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
    extend_model(model, Windows)
    loss = make_loss(TrainingConfig(class_weights=weights, label_smoothing=0.1), ["a", "b", "c"], ["a", "b", "c", "c"])
    expected = sum(
        sum(loss(of_window[None], gold[None]) for of_window in logits) / len(logits)
        for logits, gold in zip(loop(plain, batch), batch["labels"], strict=True)
    )
    assert task_terms(loss).sums(model, batch)["gold"].item() == pytest.approx(expected.item(), abs=1e-5)


def test_logits_are_those_of_each_window_alone(tiny_model):
    plain, model, batch = load(tiny_model, None), load(tiny_model, None), batch_of()
    extend_model(model, Windows)
    with torch.no_grad():
        output = model(**batch)
        for of_row, count, alone in zip(output["logits"], output["windows"], loop(plain, batch), strict=True):
            assert torch.allclose(of_row[:count], alone, atol=1e-6) and of_row[count:].isnan().all()


def test_a_row_with_many_windows_is_computed_in_chunks_without_gradients(tiny_model, monkeypatch):
    model, batch = load(tiny_model, None), batch_of()
    extend_model(model, Windows)
    with torch.no_grad():
        whole = model(**batch)["logits"]
        monkeypatch.setattr("bertkit.modeling.heads.mixins._MAX_TOKENS", 8)
        assert torch.allclose(model(**batch)["logits"], whole, atol=1e-6, equal_nan=True)


class Toy(torch.nn.Module):
    """Stands in for a model with one output: its logit is the sum of a passage's token ids."""

    def forward(self, input_ids, attention_mask, labels=None):
        from transformers.modeling_outputs import SequenceClassifierOutput

        return SequenceClassifierOutput(logits=(input_ids * attention_mask).sum(dim=1, keepdim=True).float())


def test_lists_are_read_passage_by_passage_and_what_is_missing_is_the_least():
    model = Toy()
    enable_passage_lists(model, LOGIT)
    ids = torch.tensor([[[2, 9], [2, 1]], [[2, 4], [0, 0]]])
    mask = torch.tensor([[[1, 1], [1, 1]], [[1, 1], [1, 0]]])
    output = model(input_ids=ids, attention_mask=mask, labels=torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    assert output.logits.tolist() == [[11, 3], [6, torch.finfo(torch.float32).min]]
    assert output.loss.item() == pytest.approx((math.log(1 + math.exp(8)) + 0) / 2, rel=1e-6)
    assert "probabilities" not in output


def test_probabilities_are_those_of_the_sigmoid():
    model = Toy()
    enable_passage_lists(model, PROBABILITY)
    ids = torch.tensor([[0, 1], [0, 0]])
    assert model(input_ids=ids, attention_mask=torch.ones(2, 2))["probabilities"].tolist() == [
        [pytest.approx(1 / (1 + math.exp(-1)))],
        [0.5],
    ]


def test_the_loss_of_a_list_is_that_of_a_plain_loop():
    torch.manual_seed(0)
    logits = torch.randn(4, 5, requires_grad=True)
    relevance = torch.tensor([[1, 0, 0, 0, 0], [0, 1, 2, 0, 1], [0, 0, 0, 0, 0], [1.0, 0.5, 0, 0, 0]])
    missing = torch.zeros(4, 5, dtype=torch.bool)
    missing[:, 4] = torch.tensor([True, False, True, True])
    losses = list_loss(logits.masked_fill(missing, torch.finfo(torch.float32).min), relevance)
    losses.sum().backward()
    assert logits.grad.isfinite().all() and logits.grad[2].eq(0).all() and logits.grad[0, 4] == 0
    for query, gold in enumerate(relevance.tolist()):
        count = 5 - int(missing[query].sum())
        values = logits[query, :count].tolist()
        total = math.log(sum(map(math.exp, values)))
        parts = [-share / sum(gold) * (value - total) for share, value in zip(gold, values, strict=False) if share]
        assert losses[query].item() == pytest.approx(sum(parts), abs=1e-6)


@pytest.mark.parametrize(
    ("config", "own", "found"),
    [
        ({}, None, PROBABILITY),
        ({}, {"activation_fn": LOGIT}, LOGIT),
        ({"sentence_transformers": {"activation_fn": LOGIT}}, {"prompts": {}}, LOGIT),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, None, LOGIT),
        ({"sentence_transformers": {"activation_fn": LOGIT}}, {"activation_fn": PROBABILITY}, PROBABILITY),
    ],
)
def test_the_activation_is_where_sentence_transformers_looks_for_it(tmp_path, config, own, found):
    (tmp_path / "config.json").write_text(json.dumps(config))
    if own is not None:
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(own))
    assert find_activation(tmp_path) == found


def test_another_activation_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}')
    with pytest.raises(ModelError, match=r"the activation torch\.nn\.Tanh of its scores"):
        find_activation(tmp_path)


def test_a_config_keeps_one_activation():
    class Config:
        sbert_ce_default_activation_function = None

    config = Config()
    config.sbert_ce_default_activation_function = PROBABILITY
    set_activation(config, LOGIT)
    assert vars(config) == {"sentence_transformers": {"activation_fn": LOGIT}}
