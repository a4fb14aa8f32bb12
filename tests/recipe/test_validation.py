"""Wrong values of recipes, described in the words of recipes."""

from __future__ import annotations

import pytest

from bertkit.errors import RecipeError, shorten
from bertkit.recipe import load_recipe, parse_changes

WRONG = {
    "training.seed=abc": "training.seed = 'abc' is wrong - give an integer of at least 0 and below 4,294,967,296",
    "training.seed=1.5": "training.seed = 1.5 is wrong - give an integer of at least 0 and below 4,294,967,296",
    "training.seed=-1": "training.seed = -1 is out of range - give an integer of at least 0 and below 4,294,967,296",
    "training.epochs=.nan": "training.epochs = nan is out of range - give a number above 0 and at most 10,000, or auto",
    "training.evaluate_every=abc": "training.evaluate_every = 'abc' is wrong: must be 'epoch' or an integer",
    "training.schedule=cosin": "training.schedule = 'cosin' is wrong: must be 'linear', 'cosine', 'constant', "
    "'constant_with_warmup' or 'warmup_stable_decay' - did you mean cosine?",
    "training.freeze=encodr": "training.freeze = 'encodr' is wrong: must be 'embeddings' or 'encoder' or an integer - "
    "did you mean encoder?",
    "training.report_to=[wandb, mflo]": "training.report_to.1 = 'mflo' is wrong: must be 'tensorboard', 'wandb', "
    "'mlflow', 'trackio', 'azure_ml', 'clearml', 'codecarbon', 'comet_ml', 'dagshub', 'dvclive', 'flyte', "
    "'kubeflow', 'neptune' or 'swanlab' - did you mean mlflow?",
    "training.unpad=7": "training.unpad = 7 is wrong: must be true or false or 'auto'",
    "training.class_weights={a: b}": "training.class_weights.a = 'b' is wrong: must be a number",
    "labels=3": "labels = 3 is wrong: must be a list, such as [a, b]",
    "labels=[[1]]": "labels.0 = [1] is wrong: must be text",
    "metrics=[]": "metrics = [] is wrong: must be a list of at least one",
    "model=null": "model = null is wrong: must be text",
    "data=true": "data = true is wrong: must be `key: value` pairs",
    "data.files={1: a}": "data.files = 1 is wrong: its keys must be text",
    "data.columns.text={a: b}": "data.columns.text = {'a': 'b'} is wrong: must be text or a list, such as [a, b]",
    "distillation.hidden={a: b}": "distillation.hidden.a = 'b' is wrong: must be an integer",
    "about=[" + "x" * 300 + "]": "about = ['" + "x" * 75 + "... is wrong: must be text",
}


@pytest.mark.parametrize("change", WRONG)
def test_a_wrong_value_is_described_without_the_words_of_pydantic(change):
    with pytest.raises(RecipeError) as raised:
        load_recipe("cola", parse_changes([change]))
    assert str(raised.value) == WRONG[change]


def test_numbers_and_truth_values_may_name_labels():
    changes = parse_changes(["labels=[true, False, 1, 2.0, no]", "model_labels=[0, 1]"])
    recipe = load_recipe("cola", changes)
    assert (recipe.labels, recipe.model_labels) == (["true", "false", "1", "2.0", "no"], ["0", "1"])


def test_a_long_text_is_shortened():
    assert shorten("x" * 80) == "x" * 80
    assert shorten("x" * 81) == "x" * 77 + "..."
