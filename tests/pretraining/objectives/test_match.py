"""Students that match the inside of a teacher on text: the terms, every architecture, and what is refused."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

from bertkit.errors import ModelError, RecipeError
from bertkit.modeling.architectures import ARCHITECTURES, list_types
from bertkit.modeling.checkpoint import load_config
from bertkit.pretraining.objectives import PretrainContext, distil, load_objective, match
from bertkit.recipe.records import PretrainRecipe
from tests.conftest import make_tokenizer
from tests.kills import slow_unless
from tests.modeling.tiny_models import OWN_FIELDS, SHAPE
from tests.pretraining.objectives.texts import LENGTH, make_corpus, make_features

NARROW = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12}
OWN_ATTENTION = "deberta", "deberta-v2", "mpnet", "roformer"


@pytest.fixture(scope="module")
def teacher_of(tmp_path_factory):
    """Save a random teacher of a type, once."""
    folders = {}

    def save(model_type):
        if model_type not in folders:
            folders[model_type] = tmp_path_factory.mktemp("teachers") / model_type
            fields = {"vocab_size": len(make_tokenizer()), "max_position_embeddings": 66, "pad_token_id": 0}
            fields |= {**SHAPE, "initializer_range": 0.3, **OWN_FIELDS.get(model_type, {})}
            torch.manual_seed(0)
            config = AutoConfig.for_model(model_type, **fields)
            AutoModelForMaskedLM.from_config(config).save_pretrained(folders[model_type])
        return folders[model_type]

    return save


def make_setup(folder, objective="match", packing="joined", **options):
    training = {"max_length": LENGTH, "packing": packing}
    recipe = PretrainRecipe(name="toy", objective=objective, model=str(folder), options=options, training=training)
    return PretrainContext(recipe, make_tokenizer(), folder, load_config(folder))


def make_batch(context, objective=match, rows=6):
    return objective.collator(context)(make_features(objective, context, make_corpus(20))[:rows])


def attention_scores(model, layer, states):
    """Return the scores of a BERT's attention before the softmax, without a mask: (texts, heads, tokens, tokens)."""
    attention = model.encoder.layer[layer].attention.self
    shape = (*states.shape[:2], attention.num_attention_heads, attention.attention_head_size)
    query, key = (part(states).view(shape).transpose(1, 2) for part in (attention.query, attention.key))
    return query @ key.transpose(2, 3) / attention.attention_head_size**0.5


@pytest.mark.parametrize("packing", ["documents", "none"])
def test_the_terms_are_what_a_plain_loop_gives(teacher_of, packing):
    options = {"student_size": "tiny", "student_options": {**NARROW, "num_hidden_layers": 1}}
    context = make_setup(teacher_of("bert"), packing=packing, **options)
    model = match.load_model(context).eval()
    teacher, batch = model.teacher.model, make_batch(context)
    with torch.no_grad():
        sums = {name: float(value) for name, value in match.sum_losses(model, batch).items()}
        inputs = {name: values for name, values in batch.items() if name not in ("labels", "is_text")}
        ours, theirs = (one(**inputs, output_hidden_states=True).hidden_states for one in (model, teacher))
        scores = attention_scores(model, 0, ours[0]), attention_scores(teacher, 1, theirs[1])
        project = model.bertkit_projections
    mask = batch["attention_mask"].bool()
    mask = mask[:, 0] if mask.dim() == 4 else mask[:, None].expand(-1, mask.shape[1], -1)
    expected = dict.fromkeys(match.LOSS_TERMS, 0.0)
    for row, token in batch["is_text"].nonzero().tolist():
        keys = mask[row, token]
        for name, layer, one, other in (("embeddings", "embeddings", 0, 0), ("hidden", "0", 1, 2)):
            difference = project[layer](ours[one][row, token]) - theirs[other][row, token]
            expected[name] += float(difference.detach().square().mean())
        difference = (scores[0] - scores[1])[row, :, token][:, keys]
        expected["attention_scores"] += float(difference.square().mean())
    assert sums == pytest.approx(expected, rel=1e-4)
    assert min(expected.values()) > 0
    assert match.count(batch) == dict.fromkeys(match.LOSS_TERMS, int(batch["is_text"].sum()))
    with torch.inference_mode():
        totals = match.accumulate(model, batch)
    assert match.score(totals)["loss"] == pytest.approx(sum(expected.values()) / totals["tokens"], rel=1e-4)


def test_only_the_student_learns_and_projections_are_dropped(teacher_of, tmp_path):
    context = make_setup(teacher_of("bert"), packing="documents", student_size="tiny", student_options=NARROW)
    model, plain = match.load_model(context).train(), AutoModel.from_config(match._student_config(context))
    teacher, batch = model.teacher.model, make_batch(context)
    sum(match.sum_losses(model, batch).values()).backward()
    assert all(weights.grad is not None for weights in model.parameters())  # also those of the projections
    assert not any(weights.requires_grad for weights in teacher.parameters())
    assert not teacher.training
    model.teacher.hooks.close()
    assert set(plain.state_dict()) - set(model.state_dict()) == {"pooler.dense.weight", "pooler.dense.bias"}
    assert set(model.state_dict()) < set(plain.state_dict())
    match.encoder(model, context).save_pretrained(tmp_path)
    assert AutoModel.from_pretrained(tmp_path).config.hidden_size == 8


TYPES = ["bert", "albert", "distilbert", "modernbert", "gte"]


@pytest.mark.parametrize("model_type", slow_unless(TYPES, ARCHITECTURES))
def test_an_encoder_of_any_type_is_matched_by_a_narrower_student(teacher_of, model_type):
    options = {"student_size": "tiny", "student_options": NARROW, "attention": model_type not in OWN_ATTENTION}
    context = make_setup(teacher_of(model_type), **options)
    if model_type == "albert":
        with pytest.raises(ModelError, match="the layers of a model of type 'albert' share their weights"):
            match.check(context)
        return
    load_objective(context.recipe).check(context)
    model = match.load_model(context)
    sums = match.sum_losses(model, make_batch(context))
    sum(sums.values()).backward()
    assert all(value.isfinite() and value > 0 for value in sums.values())
    assert set(sums) == set(match.LOSS_TERMS) - (set() if options["attention"] else {"attention_scores"})


@pytest.mark.parametrize("model_type", OWN_ATTENTION)
def test_attention_that_cannot_be_read_is_refused_by_the_name_of_its_type(teacher_of, model_type):
    context = make_setup(teacher_of(model_type), student_size="tiny", student_options=NARROW)
    with pytest.raises(ModelError, match=f"the attention of a {model_type} model cannot be read"):
        match.load_model(context)


OF_LAYERS = [(model_type, objective) for model_type in list_types("student_type") for objective in (match, distil)]
QUICK = [(name, objective) for name, objective in OF_LAYERS if name == "bert" or (name in TYPES and objective is match)]


@pytest.mark.parametrize("case", slow_unless(QUICK, OF_LAYERS), ids=lambda case: f"{case[0]}-{case[1].__name__}")
def test_a_student_of_the_layers_of_any_type_learns_and_is_saved(teacher_of, tmp_path, case):
    model_type, objective = case
    name = objective.__name__.split(".")[-1]
    attention = {"attention": model_type not in OWN_ATTENTION} if objective is match else {}
    context = make_setup(teacher_of(model_type), name, student_layers=1, **attention)
    objective.check(context)
    model = objective.load_model(context)
    sums = objective.sum_losses(model, make_batch(context, objective))
    sum(sums.values()).backward()
    assert all(value.isfinite() for value in sums.values())
    model.teacher.hooks.close()
    objective.encoder(model, context).save_pretrained(tmp_path)
    assert load_config(tmp_path).model_type == ARCHITECTURES[model_type].student_type
    loaded = type(model).from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(values, loaded[name]) for name, values in model.state_dict().items())


@pytest.mark.parametrize(
    ("model_type", "options", "message"),
    [
        ("bert", {}, "a student needs either a size or layers of its teacher"),
        ("bert", {"student_size": "tiny", "student_layers": 1}, "a student needs either a size"),
        ("bert", {"student_size": "tinny"}, "no size is called 'tinny' - did you mean tiny"),
        (
            "bert",
            {"student_size": "tinybert"},
            "the student has 12 heads, the teacher 2 - add --set options.student_options",
        ),
        (
            "bert",
            {"student_size": "tiny", "student_options": {"max_position_embeddings": 9}},
            "the student reads 9 tok",
        ),
        ("albert", {"student_layers": 1}, "layers of a teacher of type 'albert': they share their weights"),
        ("roberta", {"student_size": "tiny", "packing": "documents"}, "a student of type bert cannot keep documents"),
        ("modernbert", {"student_layers": [1]}, "the first layer of a modernbert model differs from the others"),
    ],
)
def test_students_that_cannot_be_made_are_refused(teacher_of, model_type, options, message):
    with pytest.raises((RecipeError, ModelError), match=message):
        match.check(make_setup(teacher_of(model_type), **options))


def test_a_student_needs_a_teacher_and_layers_that_are_computed_once(teacher_of):
    context = make_setup(teacher_of("bert"), student_layers=1)
    with pytest.raises(RecipeError, match="a student needs a teacher"):
        match.check(PretrainContext(context.recipe, context.tokenizer, None, context.config))
    training = context.recipe.training.model_copy(update={"gradient_checkpointing": True})
    twice = context.recipe.model_copy(update={"training": training})
    with pytest.raises(RecipeError, match="layers that are computed twice cannot be matched"):
        match.check(PretrainContext(twice, context.tokenizer, context.model_folder, context.config))


@pytest.mark.parametrize(
    "options", [{"student_size": 4}, {"student_options": 4}, {"layer_map": "first"}, {"layer_map": {"a": 0}}]
)
def test_options_that_cannot_be_read_are_refused(options):
    with pytest.raises(RecipeError, match=rf"options\.{next(iter(options))} is .* - (give|see) "):
        load_objective(PretrainRecipe(name="toy", objective="match", options=options))
