"""Students made of their teacher's layers, and layers of both that are matched."""

from __future__ import annotations

import pytest
import torch

from bertkit.errors import ModelError, RecipeError
from bertkit.modeling.students.matching import find_layers, match_models
from bertkit.modeling.students.narrow import take_layers
from bertkit.recipe.records import DistillationConfig


@pytest.fixture
def encoder():
    """Make a BERT classifier of so many layers, this wide."""
    from transformers import BertConfig, BertForSequenceClassification

    def make(layers: int, width: int = 32, heads: int = 2):
        torch.manual_seed(layers)
        config = BertConfig(
            vocab_size=50,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=48,
            max_position_embeddings=16,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        return BertForSequenceClassification(config).eval()

    return make


BATCH = {
    "input_ids": torch.tensor([[2, 7, 8, 3], [2, 9, 3, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
}


def test_layers_that_are_taken_are_exactly_those_of_the_teacher(encoder):
    from bertkit.modeling.cls_only import cls_only_last_layer

    teacher, student = encoder(6), encoder(6)
    expected = {name: values.clone() for name, values in teacher.state_dict().items()}
    cls_only_last_layer(student)
    take_layers(student, [0, 2, 4])
    assert student.config.num_hidden_layers == 3
    for name, values in student.state_dict().items():
        number = name.split("layer.")[1].split(".")[0] if "layer." in name else ""
        source = name.replace(f"layer.{number}.", f"layer.{2 * int(number)}.") if number else name
        assert torch.equal(values, expected[source]), name
    with torch.no_grad():
        short = student(**BATCH).logits  # the last layer gives the first token alone, and the others all tokens
        for layer in student.bert.encoder.layer:
            vars(layer).pop("forward", None)
        assert torch.allclose(student(**BATCH).logits, short, atol=1e-6)


def test_layers_that_cannot_be_taken_are_refused(encoder):
    with pytest.raises(RecipeError, match="student_layers 7: the first teacher has 6 layers"):
        take_layers(encoder(6), 7)
    with pytest.raises(RecipeError, match=r"student_layers 0, 6: .* number them from 0 to 5"):
        take_layers(encoder(6), [0, 6])
    from transformers import AlbertConfig, AlbertModel

    shared = AlbertModel(AlbertConfig(vocab_size=50, hidden_size=8, num_attention_heads=1, intermediate_size=8))
    with pytest.raises(ModelError, match="the layers of a albert model"):
        find_layers(shared)


def test_hidden_states_are_compared_over_the_tokens_that_are_there(encoder):
    student, teacher = encoder(2), encoder(4)
    with match_models(student, teacher, DistillationConfig(hidden={0: 1, 1: 3}, hidden_weight=2.0), "fp32") as matching:
        student(**BATCH)
        sums = matching.sums(BATCH)
        assert dict(matching.weights) == {"hidden": 2.0}
    one = student(**BATCH, output_hidden_states=True).hidden_states
    other = teacher(**BATCH, output_hidden_states=True).hidden_states
    errors = [(one[1] - other[2]).square().mean(dim=-1), (one[2] - other[4]).square().mean(dim=-1)]
    by_hand = sum(float(values[BATCH["attention_mask"].bool()].sum().detach()) for values in errors) / 2
    assert float(sums["hidden"].detach()) == pytest.approx(by_hand, rel=1e-5)


def test_a_narrower_student_has_a_projection_while_it_is_trained(encoder):
    student, teacher = encoder(2, width=16), encoder(4)
    before = set(student.state_dict())
    with match_models(student, teacher, DistillationConfig(hidden="last"), "fp32") as matching:
        assert set(student.state_dict()) - before == {"bertkit_projections.1.weight"}
        student(**BATCH)
        matching.sums(BATCH)["hidden"].backward()
        assert student.bertkit_projections["1"].weight.grad.abs().sum() > 0
    assert set(student.state_dict()) == before


def test_attention_is_compared_by_its_divergence(encoder):
    student, teacher = encoder(2), encoder(4)
    with match_models(student, teacher, DistillationConfig(attention="uniform"), "fp32") as matching:
        logits = student.train()(**BATCH).logits
        divergence = matching.sums(BATCH)["attention"]
        assert matching.pairs == {"attention": {0: 1, 1: 3}}
        divergence.backward()
    assert torch.allclose(student.eval()(**BATCH).logits, logits, atol=1e-6)
    for model in (student, teacher):
        model.set_attn_implementation("eager")
    one, other = (model(**BATCH, output_attentions=True).attentions for model in (student, teacher))
    total = 0.0
    for mine, theirs in ((one[0], other[1]), (one[1], other[3])):
        for row, token in BATCH["attention_mask"].nonzero().tolist():
            keys = BATCH["attention_mask"][row].bool()
            p, q = theirs[row, :, token][:, keys], mine[row, :, token][:, keys]
            total += float((p * (p / q).log()).sum(dim=-1).mean().detach()) / 2
    assert float(divergence.detach()) == pytest.approx(total, rel=1e-4)


def test_layers_and_heads_that_cannot_be_matched_are_refused(encoder):
    with (
        pytest.raises(RecipeError, match="the student's layer 0 cannot learn from the teacher's layer 4"),
        match_models(encoder(2), encoder(4), DistillationConfig(hidden={0: 4}), "fp32"),
    ):
        pass
    with (
        pytest.raises(ModelError, match="the student has 4 heads, the teacher 2"),
        match_models(encoder(2, heads=4), encoder(4), DistillationConfig(attention="last"), "fp32"),
    ):
        pass


def written_out_scores(model, layer):
    """Return the scores of a BERT's attention before the softmax, without a mask: (texts, heads, tokens, tokens)."""
    states = model(**BATCH, output_hidden_states=True).hidden_states[layer]
    attention = model.bert.encoder.layer[layer].attention.self
    heads, width = model.config.num_attention_heads, attention.attention_head_size
    query, key = (
        part(states).view(*states.shape[:2], heads, width).transpose(1, 2) for part in (attention.query, attention.key)
    )
    return query @ key.transpose(2, 3) / width**0.5


@pytest.mark.parametrize("also", [{}, {"attention": "uniform"}])
def test_attention_scores_are_compared_by_their_squared_distance(encoder, also):
    student, teacher = encoder(2, width=16), encoder(4)
    both = DistillationConfig(attention_scores="uniform", attention_weight=3.0, **also)
    with match_models(student, teacher, both, "fp32") as matching:
        student.train()(**BATCH)
        sums = matching.sums(BATCH)
        assert dict(matching.weights) == {"attention_scores": 3.0} | ({"attention": 3.0} if also else {})
        sums["attention_scores"].backward()
    assert student.bert.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0
    total, divergence = 0.0, 0.0
    for mine, theirs in ((0, 1), (1, 3)):
        one, other = written_out_scores(student.eval(), mine), written_out_scores(teacher, theirs)
        for row, token in BATCH["attention_mask"].nonzero().tolist():
            keys = BATCH["attention_mask"][row].bool()
            q, p = one[row, :, token][:, keys], other[row, :, token][:, keys]
            total += float((q - p).square().mean().detach()) / 2
            difference = p.log_softmax(-1) - q.log_softmax(-1)
            divergence += float((p.softmax(-1) * difference).sum(dim=-1).mean().detach()) / 2
    assert float(sums["attention_scores"].detach()) == pytest.approx(total, rel=1e-4)
    if also:
        assert float(sums["attention"].detach()) == pytest.approx(divergence, rel=1e-4)


@pytest.mark.parametrize("width", [32, 16])
def test_embeddings_are_compared_through_a_projection_where_widths_differ(encoder, width):
    student, teacher = encoder(2, width=width), encoder(4)
    with match_models(student, teacher, DistillationConfig(embeddings_weight=0.5), "fp32") as matching:
        student(**BATCH)
        sums = matching.sums(BATCH)
        assert (set(sums), dict(matching.weights)) == ({"embeddings"}, {"embeddings": 0.5})
        ours, theirs = (model(**BATCH, output_hidden_states=True).hidden_states[0] for model in (student, teacher))
        if width == 16:
            assert list(student.bertkit_projections) == ["embeddings"]
            ours = student.bertkit_projections["embeddings"](ours)
    errors = (ours - theirs).square().mean(dim=-1)[BATCH["attention_mask"].bool()].sum()
    assert float(sums["embeddings"].detach()) == pytest.approx(float(errors.detach()), rel=1e-5)
