"""Training only the embeddings that occur gives what training all of them gives; mixed ones are right at both ends."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AutoModel, BertConfig, BertForMaskedLM, BertForSequenceClassification

from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.embeddings import mix_embeddings, train_used_embeddings
from tests.modeling.tiny_models import make_tiny

USED = [0, *range(5, 29)]


def make_model(vocabulary: int = 400) -> BertForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"vocab_size": vocabulary, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(
        **sizes, intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0
    )
    return BertForSequenceClassification(config).train()


def make_optimizer(model: nn.Module, decay: float) -> tuple[torch.optim.Optimizer, object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=decay, fused=True)
    return optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=8)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: object, steps: range) -> None:
    for step in steps:
        ids = torch.tensor(USED[1:])[torch.randperm(24, generator=torch.Generator().manual_seed(step))].reshape(4, 6)
        model(input_ids=ids, labels=torch.tensor([0, 1, 1, 0])).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_every_row_ends_as_if_all_had_been_trained(decay):
    dense, trimmed = make_model(), make_model()
    train(dense, *make_optimizer(dense, decay), range(8))
    with train_used_embeddings(trimmed, USED) as rows:
        optimizer, schedule = make_optimizer(trimmed, decay)
        rows.follow(optimizer)
        train(trimmed, optimizer, schedule, range(8))
        moments = {value.shape[0] for state in optimizer.state.values() for value in state.values() if value.ndim}
        assert 400 not in moments
    before = make_model().bert.embeddings.word_embeddings.weight[300]
    after = trimmed.bert.embeddings.word_embeddings.weight[300]
    assert torch.equal(before, after) if not decay else not torch.allclose(before, after, rtol=1e-4)
    for (name, expected), (_, weight) in zip(dense.named_parameters(), trimmed.named_parameters(), strict=True):
        assert torch.allclose(expected, weight, rtol=2e-6, atol=1e-7), name


def test_the_last_row_learns_where_the_padding_embedding_does_not_occur():
    dense, trimmed = make_model(), make_model()
    train(dense, *make_optimizer(dense, 0.0), range(2))
    with train_used_embeddings(trimmed, USED[1:]):
        train(trimmed, *make_optimizer(trimmed, 0.0), range(2))
    weights = [model.bert.embeddings.word_embeddings.weight for model in (dense, trimmed)]
    assert torch.allclose(*weights, rtol=2e-6, atol=1e-7)


def test_a_checkpoint_in_the_middle_is_whole_and_goes_on():
    dense, first, second = make_model(), make_model(), make_model()
    train(dense, *make_optimizer(dense, 0.1), range(6))
    with train_used_embeddings(first, USED) as rows:
        optimizer, schedule = make_optimizer(first, 0.1)
        rows.follow(optimizer)
        train(first, optimizer, schedule, range(3))
        saved = {name: value.clone() for name, value in first.state_dict().items()}
        kept, pace = optimizer.state_dict(), schedule.state_dict()
    assert saved["bert.embeddings.word_embeddings.weight"].shape == (400, 32)
    make_model().load_state_dict(saved, strict=True)
    with train_used_embeddings(second, USED) as rows:
        optimizer, schedule = make_optimizer(second, 0.1)
        rows.follow(optimizer)
        second.load_state_dict(saved)
        optimizer.load_state_dict(kept)
        schedule.load_state_dict(pace)
        train(second, optimizer, schedule, range(3, 6))
    for (name, expected), (_, weight) in zip(dense.named_parameters(), second.named_parameters(), strict=True):
        assert torch.allclose(expected, weight, rtol=2e-6, atol=1e-7), name


def test_an_evaluation_reads_any_row_as_it_is_now():
    model = make_model()
    ids = torch.tensor([[7, 300, 8, 399]])
    with train_used_embeddings(model, USED) as rows:
        optimizer, schedule = make_optimizer(model, 0.1)
        rows.follow(optimizer)
        train(model, optimizer, schedule, range(3))
        inside = model.eval()(input_ids=ids).logits
        model.train()
        train(model, optimizer, schedule, range(3, 5))
        later = model.eval()(input_ids=ids).logits
    assert not torch.equal(inside, later)
    assert torch.equal(model(input_ids=ids).logits, later)


def test_a_table_that_is_the_output_layer_too_stays_whole():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=400, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    model = BertForMaskedLM(config)
    with train_used_embeddings(model, USED) as rows:
        assert rows is None
        assert type(model.get_input_embeddings()) is nn.Embedding


def test_nothing_is_done_where_nearly_all_rows_occur_or_none_is_trained():
    with train_used_embeddings(make_model(30), USED) as rows:
        assert rows is None
    frozen = make_model()
    frozen.requires_grad_(False)
    with train_used_embeddings(frozen, USED) as rows:
        assert rows is None


IDS = torch.tensor([[2, 7, 8, 3], [2, 9, 10, 3]])


@pytest.mark.parametrize("model_type", ["bert", "roberta", "modernbert"])
def test_the_ends_are_the_texts_and_the_baseline(model_type):
    check_ends(model_type)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_the_ends_are_right_on_every_architecture(model_type):
    check_ends(model_type)


def check_ends(model_type):
    model = make_tiny(model_type, AutoModel).eval()
    mask = torch.ones_like(IDS)
    shares = torch.tensor([[1.0, 1, 1, 1], [1, 0, 0, 1]])
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([[2, 7, 8, 3], [2, 5, 5, 3]]), attention_mask=mask).last_hidden_state
        with mix_embeddings(model, shares, 5):
            mixed = model(input_ids=IDS, attention_mask=mask).last_hidden_state
        plain = model(input_ids=IDS, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(mixed, expected)
    assert not torch.equal(plain, mixed)  # the model is as before


def test_a_batch_may_be_looked_up_in_chunks():
    model = make_tiny("bert", AutoModel).eval()
    embedding = model.get_input_embeddings()
    with torch.no_grad(), mix_embeddings(model, torch.tensor([[1.0], [0.0]]), 5):
        found = [embedding(torch.tensor([[7]])), embedding(torch.tensor([[7]]))]
    torch.testing.assert_close(found[0][0, 0], embedding.weight[7].detach())
    torch.testing.assert_close(found[1][0, 0], embedding.weight[5].detach())
