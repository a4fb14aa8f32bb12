"""Students of masked language models: which layers they are made of, what they learn, and what is saved."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bertkit.errors import ModelError, RecipeError
from bertkit.modeling.checkpoint import load_config
from bertkit.modeling.students.distilbert import choose_layers, load_teacher, make_student
from bertkit.pretraining.objectives import PretrainContext, distil, load_objective, mlm
from bertkit.pretraining.tokenized import TokenizedCorpus
from bertkit.recipe import read_layers
from bertkit.recipe.records import PretrainRecipe
from tests.conftest import WORDS, make_tokenizer

LENGTH = 24


def save_teacher(folder, model_type="bert", layers=4, model_class="AutoModelForMaskedLM", noise=0.2):
    """Save a random teacher whose every weight matters, token types, biases and norms included."""
    import transformers

    tokenizer = make_tokenizer()
    config = transformers.CONFIG_MAPPING[model_type](
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=66,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = getattr(transformers, model_class).from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * noise)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["bert", "roberta"])
def teacher_folder(request, tmp_path_factory):
    return save_teacher(tmp_path_factory.mktemp("teachers") / request.param, request.param)


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory):
    return save_teacher(tmp_path_factory.mktemp("teachers") / "bert")


def make_setup(folder, objective="distil", options=None, **training):
    recipe = PretrainRecipe(
        name="toy",
        objective=objective,
        model=str(folder),
        options=options or {},
        training={"max_length": LENGTH, **training},
    )
    return PretrainContext(recipe, make_tokenizer(), folder, load_config(folder))


def make_corpus(documents, seed):
    """Texts in which each word is followed by one of the next four of a list, so that several predictions are right."""
    random = np.random.default_rng(seed)
    words = make_tokenizer().convert_tokens_to_ids([word for group in WORDS.values() for word in group])
    tokens, edges = [], [0]
    for _ in range(documents):
        steps = random.integers(1, 5, size=int(random.integers(5, 18)))
        tokens += [words[index % len(words)] for index in random.integers(len(words)) + np.cumsum(steps)]
        edges.append(len(tokens))
    numbers = np.arange(documents + 1)
    return TokenizedCorpus(np.array(tokens, np.uint16), np.ones(len(tokens), bool), np.array(edges), numbers, {})


def make_features(objective, context, corpus, epoch=0, progress=0.0):
    examples = objective.examples(corpus, LENGTH, context, epoch)
    return [
        objective.feature(examples[number], progress, np.random.default_rng((epoch, number)), context)
        for number in range(len(examples))
    ]


def make_batch(context, rows=6):
    return distil.collator(context)(make_features(distil, context, make_corpus(20, seed=1))[:rows])


def train(objective, context, corpus, steps, rate=1e-3, seed=0):
    torch.manual_seed(seed)
    model = objective.load_model(context).train()
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    random = np.random.default_rng(seed)
    epochs = [make_features(objective, context, corpus, epoch) for epoch in range(4)]
    for step in range(steps):
        features = epochs[step % 4]
        batch = objective.collator(context)([features[n] for n in random.permutation(len(features))[:16]])
        sums, counts = objective.sum_losses(model, batch), objective.count(batch)
        optimizer.zero_grad()
        sum(weight * sums[name] / counts[name] for name, weight in objective.LOSS_TERMS.items()).backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize("packing", ["documents", "none"])
def test_a_student_of_all_layers_predicts_what_its_teacher_does(teacher_folder, packing):
    context = make_setup(teacher_folder, packing=packing)
    teacher = load_teacher(teacher_folder, context.config)
    student = make_student(teacher, range(4)).eval()
    batch = make_batch(context)
    inputs = {name: values for name, values in batch.items() if name not in ("labels", "is_text")}
    with torch.no_grad():
        expected, computed = teacher(**inputs).logits, student(**inputs).logits
    is_text = batch["is_text"]
    assert expected[is_text].std() > 0.1
    assert (expected[is_text] - computed[is_text]).abs().max() < 1e-5


def test_a_student_of_a_bert_is_a_distilbert_whose_head_is_tied(bert_folder):
    student = make_student(load_teacher(bert_folder, load_config(bert_folder)), [0, 2])
    assert type(student).__name__ == "DistilBertForMaskedLM"
    assert student.vocab_projector.weight is student.distilbert.embeddings.word_embeddings.weight
    assert (student.config.n_layers, student.config.dim, student.config.hidden_dim) == (2, 32, 64)


@pytest.mark.parametrize(("options", "layers"), [({}, [0, 2]), ({"student_layers": 1}, [0])])
def test_layers_are_those_that_were_chosen(bert_folder, options, layers):
    check_layers(bert_folder, options, layers)


@pytest.mark.parametrize("layers", [[1, 3], "1,3", "1, 3"])
def test_layers_can_be_listed(bert_folder, layers):
    check_layers(bert_folder, {"student_layers": layers}, [1, 3])


def check_layers(folder, options, layers):
    student = distil.load_model(make_setup(folder, options=options))
    teacher = student.teacher.model
    for number, layer in enumerate(layers):
        mine, theirs = student.distilbert.transformer.layer[number], teacher.bert.encoder.layer[layer]
        assert mine.ffn.lin1.weight.equal(theirs.intermediate.dense.weight)
        assert mine.attention.q_lin.weight.equal(theirs.attention.self.query.weight)
    assert len(student.distilbert.transformer.layer) == len(layers)


def test_every_second_layer_of_an_odd_number_has_the_first_and_the_last(bert_folder):
    config = load_config(bert_folder)
    config.num_hidden_layers = 5
    assert choose_layers(None, config) == [0, 2, 4]


def test_the_terms_are_what_a_plain_loop_gives(bert_folder):
    context = make_setup(bert_folder, options={"temperature": 3.0})
    model = distil.load_model(context).eval()
    batch = make_batch(context)
    inputs = {name: values for name, values in batch.items() if name not in ("labels", "is_text")}
    with torch.no_grad():
        both = (model, model.teacher.model)
        outputs = [network(**inputs, output_hidden_states=True) for network in both]
        sums = {name: float(value) for name, value in distil.sum_losses(model, batch).items()}
    expected, counts = {"soft": 0.0, "mlm": 0.0, "cosine": 0.0}, {"soft": 0, "mlm": 0, "cosine": 0}
    for row, column in np.ndindex(*batch["labels"].shape):
        logits = [output.logits[row, column].double() for output in outputs]
        states = [output.hidden_states[-1][row, column].double() for output in outputs]
        label = int(batch["labels"][row, column])
        if label != -100:
            student, teacher = ((values / 3.0).softmax(-1).tolist() for values in logits)
            expected["soft"] += 9 * sum(t * math.log(t / s) for s, t in zip(student, teacher, strict=True))
            expected["mlm"] -= math.log(logits[0].softmax(-1)[label])
            counts["soft"] += 1
            counts["mlm"] += 1
        if batch["input_ids"][row, column] != 0:
            expected["cosine"] += 1 - float(states[0] @ states[1] / states[0].norm() / states[1].norm())
            counts["cosine"] += 1
    assert sums == pytest.approx(expected, rel=1e-4)
    assert distil.count(batch) == counts
    assert min(expected.values()) > 0


@pytest.mark.parametrize("packing", ["documents", "joined", "none"])
def test_padding_has_no_part_in_any_term(bert_folder, packing):
    context = make_setup(bert_folder, packing=packing)
    model = distil.load_model(context).eval()
    features = make_features(distil, context, make_corpus(20, seed=1))
    features.sort(key=lambda feature: len(feature["input_ids"]))
    some = [features[0], features[-1]]
    assert len(some[0]["input_ids"]) < len(some[1]["input_ids"])
    collate = distil.collator(context)
    with torch.no_grad():
        alone = [distil.sum_losses(model, collate([feature])) for feature in some]
        together = distil.sum_losses(model, collate(some))
    for name in distil.LOSS_TERMS:
        assert float(together[name]) == pytest.approx(sum(float(each[name]) for each in alone), rel=1e-4)
    assert distil.count(collate(some))["cosine"] == sum(len(feature["input_ids"]) for feature in some)


def test_a_batch_without_masked_tokens_has_a_loss_of_zero_and_a_gradient(bert_folder):
    context = make_setup(bert_folder)
    model = distil.load_model(context)
    batch = make_batch(context)
    batch["labels"] = torch.full_like(batch["labels"], -100)
    sums = distil.sum_losses(model, batch)
    assert (sums["soft"].item(), sums["mlm"].item()) == (0, 0)
    (sums["soft"] + sums["mlm"]).backward()


def test_only_the_student_learns_and_the_teacher_is_no_part_of_it(bert_folder):
    context = make_setup(bert_folder)
    alone = make_student(load_teacher(bert_folder, context.config), [0, 2])
    before = load_teacher(bert_folder, context.config).state_dict()
    model = train(distil, context, make_corpus(20, seed=1), steps=3)
    teacher = model.teacher.model
    assert not teacher.training
    assert all(weights.grad is None and not weights.requires_grad for weights in teacher.parameters())
    assert all(values.equal(before[name]) for name, values in teacher.state_dict().items())
    assert list(model.state_dict()) == list(alone.state_dict())
    assert sum(weights.numel() for weights in model.parameters()) == sum(each.numel() for each in alone.parameters())
    assert not model.vocab_transform.weight.equal(alone.vocab_transform.weight)


def test_scores_tell_the_student_and_its_teacher(bert_folder):
    context = make_setup(bert_folder, options={"student_layers": 4})
    model = distil.load_model(context).eval()
    with torch.inference_mode():
        scores = distil.score(distil.accumulate(model, make_batch(context)))
    assert scores["agreement"] == 1
    assert scores["cosine"] == pytest.approx(1, abs=1e-5)
    assert scores["soft_loss"] == pytest.approx(0, abs=1e-5)
    assert scores["perplexity"] == pytest.approx(scores["teacher_perplexity"], rel=1e-4)
    assert scores["masked_accuracy"] == scores["teacher_masked_accuracy"]
    assert scores["loss"] == pytest.approx(2 * math.log(scores["perplexity"]), rel=1e-4)


def test_scores_are_what_a_plain_loop_gives(bert_folder):
    context = make_setup(bert_folder, options={"temperature": 3.0})
    model = distil.load_model(context).eval()
    batch = make_batch(context)
    inputs = {name: values for name, values in batch.items() if name not in ("labels", "is_text")}
    with torch.inference_mode():
        scores = distil.score(distil.accumulate(model, batch))
        student, teacher = (network(**inputs, output_hidden_states=True) for network in (model, model.teacher.model))
    agreed, divergence, losses, cosines = [], [], [], []
    for row, column in np.ndindex(*batch["labels"].shape):
        one, other = (output.logits[row, column].double() for output in (student, teacher))
        if (label := int(batch["labels"][row, column])) != -100:
            agreed.append(int(one.argmax()) == int(other.argmax()))
            soft, target = ((logits / 3.0).softmax(-1).tolist() for logits in (one, other))
            divergence.append(9 * sum(t * math.log(t / s) for s, t in zip(soft, target, strict=True)))
            losses.append([-math.log(logits.softmax(-1)[label]) for logits in (one, other)])
        if batch["is_text"][row, column]:
            states = [output.hidden_states[-1][row, column].double() for output in (student, teacher)]
            cosines.append(float(states[0] @ states[1] / states[0].norm() / states[1].norm()))
    student_loss, teacher_loss = np.mean(losses, axis=0)
    expected = {
        "agreement": np.mean(agreed),
        "soft_loss": np.mean(divergence),
        "cosine": np.mean(cosines),
        "perplexity": math.exp(student_loss),
        "teacher_perplexity": math.exp(teacher_loss),
        "loss": 5 * np.mean(divergence) + 2 * student_loss + 1 - np.mean(cosines),
    }
    assert {name: scores[name] for name in expected} == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_a_distilled_student_is_better_than_one_trained_alone(tmp_path):
    """Made of one teacher, trained for the same steps on the same few texts; then scored on others."""
    folder = save_teacher(tmp_path / "raw", layers=2, noise=0.05)
    teacher = train(mlm, make_setup(folder, "mlm"), make_corpus(400, seed=1), steps=500, rate=5e-3)
    teacher.save_pretrained(folder)
    make_student(teacher, [0]).save_pretrained(tmp_path / "start")
    few, context = make_corpus(12, seed=2), make_setup(folder, "mlm")
    held_out = mlm.collator(context)(make_features(mlm, context, make_corpus(100, seed=3), progress=None))
    gains = []
    for seed in range(3):
        distilled = train(distil, make_setup(folder), few, steps=80, rate=3e-3, seed=seed)
        plain = train(mlm, make_setup(tmp_path / "start", "mlm"), few, steps=80, rate=3e-3, seed=seed)
        with torch.inference_mode():
            with_teacher, without = (mlm.score(mlm.accumulate(each, held_out))["loss"] for each in (distilled, plain))
        gains.append(without - with_teacher)
    assert min(gains) > 0.3, gains


def test_a_teacher_needs_a_head_over_tokens(tmp_path):
    folder = save_teacher(tmp_path / "bare", model_class="AutoModel")
    with pytest.raises(ModelError, match=r"no head that predicts masked tokens .*pretrain mlm --model"):
        distil.load_model(make_setup(folder))


def test_a_teacher_of_another_type_is_refused(tmp_path):
    folder = save_teacher(tmp_path / "albert", "albert")
    with pytest.raises(ModelError, match="a student cannot copy layers of a teacher of type 'albert'"):
        distil.check(make_setup(folder))


def test_layers_that_the_teacher_lacks_are_refused(bert_folder):
    with pytest.raises(RecipeError, match="the first teacher has 4 layers"):
        distil.check(make_setup(bert_folder, options={"student_layers": [0, 4]}))


@pytest.mark.parametrize("value", [[], [2, 0], [-1], 0, True, "some", 1.5, {"a": 1}])
def test_layers_that_are_none_are_refused(bert_folder, value):
    with pytest.raises(ValueError, match="must be layers in ascending order"):
        read_layers(value)
    with pytest.raises(RecipeError, match=r"options\.student_layers is .* must be layers in ascending order"):
        load_objective(make_setup(bert_folder, options={"student_layers": value}).recipe)


def test_a_student_without_a_teacher_is_refused(bert_folder):
    context = make_setup(bert_folder)
    with pytest.raises(RecipeError, match="a student needs a teacher"):
        distil.check(PretrainContext(context.recipe, context.tokenizer, None, context.config))
