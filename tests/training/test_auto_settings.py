"""What `auto` stands for: chosen from the rows and the encoder, and kept by the run."""

from __future__ import annotations

import json

import pytest

from bertkit.errors import RecipeError
from bertkit.recipe import load_recipe, parse_changes, read_yaml
from bertkit.training.auto_settings import choose_epochs, choose_rate, choose_training
from bertkit.workflows.finetune import finetune
from bertkit.workflows.trial_run import dry_run

ROWS = {"train": 200, "validation": 300}
MINILM = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6}


@pytest.mark.parametrize("rows", [1, 40, 200, 1000, 5000, 20_000, 10**6])
def test_few_rows_get_enough_steps_and_many_rows_few_epochs(rows):
    per_epoch = -(-rows // 32)
    epochs = choose_epochs(per_epoch)
    assert 3 <= epochs <= 20
    assert epochs == 20 or epochs * per_epoch >= 600
    assert epochs == 3 or (epochs - 1) * per_epoch < 600


def test_many_labels_get_more_steps():
    assert choose_epochs(32, labels=20) == choose_epochs(32) == 19
    assert choose_epochs(57, labels=150) == 30 > choose_epochs(57, labels=77) > choose_epochs(57) == 11


def test_rates_fall_with_width_and_depth_and_stay_in_the_range_of_the_literature():
    assert 5e-5 <= choose_rate(384, 6) <= 1e-4
    assert 2e-5 <= choose_rate(768, 12) <= 5e-5  # Devlin et al. 2019, appendix A.3
    assert 1e-5 <= choose_rate(1024, 24) <= 3e-5  # Liu et al. 2019, table 10
    assert choose_rate(384, 3) > choose_rate(384, 6) > choose_rate(384, 12) > choose_rate(768, 12)
    assert (choose_rate(16, 1), choose_rate(8192, 80)) == (5e-4, 1e-5)


def test_the_numbers_and_their_reasons_take_the_place_of_auto():
    recipe, reason = choose_training(load_recipe("classify"), ROWS, 2, MINILM)
    training = recipe.training
    assert (training.epochs, training.learning_rate, training.evaluate_every, training.patience) == (20, 7.1e-5, 14, 4)
    assert reason == (
        "auto: 20 epochs of 7 steps (200 training rows); fewer if f1_macro is no better in 4 evaluations; "
        "learning rate 7.1e-05 (an encoder of 6 layers of 384)"
    )
    shallow = load_recipe("classify", {"distillation.student_layers": 3})
    assert choose_training(shallow, ROWS, 2, MINILM)[0].training.learning_rate == choose_rate(384, 3)
    large, _ = choose_training(load_recipe("classify"), {**ROWS, "train": 50_000}, 2, {})
    assert (large.training.epochs, large.training.learning_rate) == (3, choose_rate(768, 12))
    assert large.training.evaluate_every == "epoch"


def test_few_validation_rows_choose_no_step():
    """The best of ten scores of twenty rows is the luckiest one."""
    recipe, reason = choose_training(load_recipe("classify"), {**ROWS, "validation": 299}, 2, MINILM)
    assert (recipe.training.evaluate_every, recipe.training.patience) == (140, None)
    assert "scored at the end (299 validation rows are too few to choose a step by)" in reason


def test_what_is_given_stays():
    given = {"training.epochs": 2, "training.learning_rate": 1e-5}
    assert choose_training(recipe := load_recipe("classify", given), ROWS, 2, MINILM) == (recipe, "")
    changes = {"training.evaluate_every": 3, "training.patience": 9}
    training = choose_training(load_recipe("classify", changes), ROWS, 2, MINILM)[0].training
    assert (training.evaluate_every, training.patience, training.epochs) == (3, 9, 20)
    steps, reason = choose_training(load_recipe("classify", {"training.steps": 50}), {**ROWS, "train": None}, 2, MINILM)
    assert steps.training.steps == 50 and reason.startswith("auto: learning rate")


def test_the_users_numbers_come_first_then_those_of_the_demo_model(tmp_path):
    (tmp_path / "mine.yaml").write_text("extends: classify\ntraining: {epochs: 9}\n")
    mine, shipped = load_recipe(str(tmp_path / "mine.yaml"), {"model": "demo"}), load_recipe("cola", {"model": "demo"})
    assert (mine.training.epochs, mine.training.learning_rate) == (9, 5e-4)
    assert (shipped.training.epochs, shipped.training.learning_rate) == (4, 5e-4)
    changes = parse_changes(["training.epochs=auto"])
    assert str(load_recipe("cola", {"model": "demo", **changes}).training.epochs) == "auto"


def test_auto_is_refused_where_it_cannot_be_resolved():
    with pytest.raises(RecipeError, match=r"must be less than training\.epochs \(given as a number\)"):
        load_recipe("classify", {"training.head_only_epochs": 1})


def test_a_run_keeps_the_numbers_and_why(here, tiny_model):
    rows = [{"text": f"{word} {number}", "label": word} for word in ("good", "bad") for number in range(20)]
    (here / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = load_recipe("classify", {"model": str(tiny_model), "data.source": "rows.jsonl"})
    plan = dry_run(recipe)
    assert plan.resolved.startswith("# auto: 20 epochs of 2 steps (36 training rows)")
    assert plan.steps == 40
    [result] = finetune(recipe, output=here / "run")
    record = json.loads((here / "run" / "run.json").read_text())
    written, _ = read_yaml((here / "run" / "recipe.yaml").read_text(), "recipe.yaml")
    assert plan.resolved.startswith(f"# {record['automatic']}")
    assert written["training"]["epochs"] == record["identity"]["recipe"]["training"]["epochs"] == 20
    assert record["steps"] == 40
    assert finetune(recipe, output=here / "run")[0].scores == result.scores  # the same command finds the same run
