"""What every objective promises: found by its file alone, keyed, with losses, counts and scores that fit together."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from bertkit.errors import RecipeError
from bertkit.modeling.sizes import find_size
from bertkit.pretraining.objectives import Objective, get_masking_rate, load_objective, mlm, objective_names
from bertkit.recipe import load_pretrain_recipe
from bertkit.recipe.records import PretrainRecipe
from bertkit.tokens.features import IGNORE_INDEX
from tests.pretraining.objectives.texts import LENGTH, make_corpus, make_setup

ROOT = Path(__file__).parents[3]
MEMBERS = [*Objective.__annotations__, *(name for name in vars(Objective) if not name.startswith("_"))]


@pytest.fixture(scope="module")
def corpus():
    return make_corpus()


@pytest.fixture(scope="module", params=objective_names())
def prepared(request, tmp_path_factory):
    """Load an objective, and build the setup of its own recipe with a tiny model."""
    names = sorted(file.stem for file in (ROOT / "recipes" / "pretrain").glob("*.yaml"))
    recipe = next(recipe for recipe in map(load_pretrain_recipe, names) if recipe.objective == request.param)
    model_type, folder = find_size(recipe.size).model_type, None
    if recipe.model:  # an objective that starts from a checkpoint
        folder = tmp_path_factory.mktemp("checkpoint")
        mlm.load_model(make_setup("mlm", model_type)).save_pretrained(folder)
    options = {**recipe.options, **({"student_size": None, "student_layers": 1} if recipe.objective == "match" else {})}
    context = make_setup(request.param, model_type, options=options, model_folder=folder)
    return load_objective(context.recipe), context


@pytest.fixture(scope="module")
def batch(prepared, corpus):
    objective, context = prepared
    return objective.collator(context)(make_features(objective, context, corpus, (0, 0.0)))


@pytest.fixture(scope="module")
def model(prepared):
    objective, context = prepared
    torch.manual_seed(0)
    return objective.load_model(context).eval()


def make_features(objective, context, corpus, key, rows=6):
    epoch, progress = key
    examples = objective.examples(corpus, LENGTH, context, epoch)
    randoms = [np.random.default_rng((1, epoch, number)) for number in range(rows)]
    return [objective.feature(examples[number], progress, randoms[number], context) for number in range(rows)]


def test_a_module_has_all_members_and_imports_nothing_heavy(prepared):
    objective, context = prepared
    assert all(hasattr(objective, member) for member in MEMBERS)
    source = Path(objective.__file__).read_text(encoding="utf-8")
    assert "\nimport torch" not in source and "\nfrom transformers" not in source
    objective.check(context)


def test_examples_fit_and_know_their_lengths(prepared, corpus):
    objective, context = prepared
    examples = objective.examples(corpus, LENGTH, context, 0)
    assert len(examples) == len(examples.lengths) > 6
    assert examples.lengths.max() <= LENGTH
    sizes = [len(feature["input_ids"]) for feature in make_features(objective, context, corpus, (0, 0.0))]
    assert sizes == examples.lengths[:6].tolist()


@pytest.mark.parametrize("progress", [0.0, None])
def test_features_depend_on_their_generator_alone(prepared, corpus, progress):
    objective, context = prepared
    state = torch.get_rng_state(), np.random.get_state()[1].tolist()
    first, again, other = (make_features(objective, context, corpus, (epoch, progress)) for epoch in (0, 0, 1))
    assert (torch.get_rng_state().equal(state[0]), np.random.get_state()[1].tolist()) == (True, state[1])
    for feature, same in zip(first, again, strict=True):
        assert feature.keys() == same.keys()
        assert all(np.array_equal(feature[name], same[name]) for name in feature)
    differ = any(not np.array_equal(a["input_ids"], b["input_ids"]) for a, b in zip(first, other, strict=True))
    assert differ != (objective.__name__ == "bertkit.pretraining.objectives.clm")  # it draws nothing


def test_terms_counts_and_scores_fit_together(prepared, model, batch):
    objective, _ = prepared
    sums, counts = objective.sum_losses(model, batch), objective.count(batch)
    assert sums.keys() == counts.keys() == objective.LOSS_TERMS.keys()
    means = {name: sums[name].item() / counts[name] for name in sums}
    assert all(math.isfinite(mean) and mean > 0 for mean in means.values())
    with torch.inference_mode():
        scores = objective.score(objective.accumulate(model, batch))
    assert scores["loss"] == pytest.approx(sum(objective.LOSS_TERMS[name] * means[name] for name in means), rel=1e-4)
    assert objective.BEST_METRIC in scores


def test_totals_add_up_over_batches(prepared, model, corpus):
    objective, context = prepared
    features, collate = make_features(objective, context, corpus, (0, None)), objective.collator(context)
    with torch.inference_mode():
        whole, *halves = (objective.accumulate(model, collate(part)) for part in (features, features[:2], features[2:]))
    added = {name: sum(half[name] for half in halves) for name in whole}
    assert objective.score(added) == pytest.approx(objective.score(whole), rel=1e-3)


def test_what_is_saved_is_a_model_of_transformers(prepared, model, tmp_path):
    objective, context = prepared
    checkpoints = {"": objective.encoder(model, context), **objective.auxiliary_checkpoints(model, context)}
    for name, checkpoint in checkpoints.items():
        checkpoint.save_pretrained(tmp_path / name)
        assert (tmp_path / name / "model.safetensors").is_file()


def test_the_masking_rate_of_held_out_text_is_fixed():
    context = make_setup("mlm", options={"mask_rate": 0.4, "last_mask_rate": 0.2})
    rates = [get_masking_rate(mlm.OPTIONS, context, progress) for progress in (0.0, 0.5, 1.0, None)]
    assert rates == pytest.approx([0.4, 0.3, 0.2, 0.15])


def test_a_file_of_ones_own_is_an_objective(tmp_path, monkeypatch):
    (tmp_path / "myobjectives").mkdir()
    (tmp_path / "myobjectives" / "copied.py").write_text(Path(mlm.__file__).read_text(encoding="utf-8"))
    (tmp_path / "myobjectives" / "bare.py").write_text("OPTIONS = {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    objective = load_objective(PretrainRecipe(name="own", objective="myobjectives.copied"))
    context = make_setup("myobjectives.copied")
    assert objective.LOSS_TERMS == {"mlm": 1.0} and len(objective.examples(make_corpus(), LENGTH, context, 0)) > 6
    with pytest.raises(RecipeError, match=r"the objective myobjectives\.bare lacks check, load_model, examples"):
        load_objective(PretrainRecipe(name="own", objective="myobjectives.bare"))


def test_unknown_objectives_and_options_are_refused():
    with pytest.raises(RecipeError, match="no objective is called 'mlmm' - did you mean mlm"):
        load_objective(PretrainRecipe(name="own", objective="mlmm"))
    with pytest.raises(RecipeError, match=r"unknown key 'options\.mask_rates' - did you mean mask_rate"):
        load_objective(PretrainRecipe(name="own", objective="mlm", options={"mask_rates": 0.2}))


@pytest.mark.parametrize("name", ["mlm", "nsp", "sop", "span", "distil"])
@pytest.mark.parametrize("shares", [None, [0.8, 0.1, 0.1], [0.5, 0.2, 0.3], [1, 0, 0]])
def test_selected_tokens_are_masked_replaced_and_kept_as_the_recipe_says(corpus, name, shares):
    options = {"mask_rate": 0.5} if shares is None else {"mask_rate": 0.5, "mask_random_keep": shares}
    context = make_setup(name, options=options, model_folder=ROOT)
    objective = load_objective(context.recipe)
    features = make_features(objective, context, corpus, (0, 0.0), rows=40)
    labels, ids = (np.concatenate([feature[key] for feature in features]) for key in ("labels", "input_ids"))
    ids, labels = ids[labels != IGNORE_INDEX], labels[labels != IGNORE_INDEX]
    is_mask, is_kept = ids == context.tokenizer.mask_token_id, ids == labels
    counts = [is_mask.mean(), (~is_mask & ~is_kept).mean(), is_kept.mean()]  # a random token may be the old one
    assert counts == pytest.approx(shares or [0.8, 0.1, 0.1], abs=0.07)
    held_out, plain = (
        make_features(objective, one, corpus, (0, None)) for one in (context, make_setup(name, model_folder=ROOT))
    )
    for one, other in zip(held_out, plain, strict=True):
        assert all(np.array_equal(one[key], other[key]) for key in other)


@pytest.mark.parametrize("shares", [80, [0.8, 0.1], [0.8, 0.1, 0.2], [1.2, -0.1, -0.1], [0.5, "a", 0.5], [80, 10, 10]])
def test_shares_that_are_none_are_refused(shares):
    recipe = PretrainRecipe(name="toy", objective="mlm", options={"mask_random_keep": shares})
    with pytest.raises(RecipeError, match=r"options\.mask_random_keep is .* - give three fractions that sum to 1"):
        load_objective(recipe)
