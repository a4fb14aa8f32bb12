"""Sections of a recipe: their arithmetic and their checks."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from bertkit.errors import RecipeError
from bertkit.recipe import DataConfig, DistillationConfig, Recipe, TrainingConfig, load_recipe, read_layers
from bertkit.recipe.records import Option, check_options, read_option


@pytest.mark.parametrize(
    ("settings", "rows", "epoch", "total", "evaluation"),
    [
        ({"batch_size": 32, "epochs": 3}, 96, 3, 9, 3),
        ({"batch_size": 32, "epochs": 3}, 97, 4, 12, 4),
        ({"batch_size": 10, "epochs": 0.5}, 95, 10, 5, 10),
        ({"batch_size": 10, "steps": 7}, 95, 10, 7, 10),
        ({"batch_size": 10, "evaluate_every": 4}, 95, 10, 30, 4),
    ],
)
def test_steps_are_counted_from_rows(settings, rows, epoch, total, evaluation):
    training = TrainingConfig(**settings)
    steps = training.steps_per_epoch(rows), training.total_steps(rows), training.steps_per_evaluation(rows)
    assert steps == (epoch, total, evaluation)


def test_pretraining_counts_steps_only():
    assert TrainingConfig(steps=95).total_steps(None) == 95
    assert TrainingConfig(steps=95).steps_per_evaluation(None) == 10
    assert TrainingConfig().total_steps(None) == 0


def test_the_model_of_a_run_in_words():
    recipe = {"name": "x", "model": "bert", "metrics": ["accuracy"]}
    assert Recipe(**recipe).model_name == "bert"
    assert Recipe(**recipe, distillation={"student_layers": 3}).model_name == "3 layers of bert"
    assert Recipe(**recipe, distillation={"student_layers": [0, 2]}).model_name == "layers 0, 2 of bert"


def test_the_best_metric_is_the_first_unless_it_is_named():
    assert Recipe(name="x", metrics=["f1", "accuracy"]).best_metric == "f1"
    assert Recipe(name="x", metrics=["f1", "accuracy"], best_metric="accuracy").best_metric == "accuracy"


def test_null_takes_a_column_out():
    data = DataConfig(columns={"text": "review", "text_pair": None})
    assert (data.columns, data.ignore_columns) == ({"text": "review"}, ["text_pair"])


def test_records_are_frozen_and_numbers_are_finite():
    with pytest.raises(ValidationError, match="frozen"):
        TrainingConfig().seed = 1
    with pytest.raises(ValidationError, match="must be a finite number"):
        TrainingConfig(max_grad_norm=float("inf"))


@pytest.mark.parametrize(
    "setting",
    [
        *({"batch_size": value} for value in (0, -1, 1.5, 10**9)),
        *({"epochs": value} for value in (0, -1, float("nan"))),
        *({"learning_rate": value} for value in (0, -1, 1e5, float("nan"), float("inf"))),
        *({"gradient_accumulation": value} for value in (0, -1)),
        *({"max_length": value} for value in (0, 1)),
        *({"warmup_ratio": value} for value in (-5, 2.0)),
        *({"weight_decay": value} for value in (-1, float("nan"))),
        *({"max_grad_norm": value} for value in (0, float("nan"))),
        *({"seed": value} for value in (-1, 2**70, "abc")),
    ],
    ids=str,
)
def test_numbers_out_of_their_range_are_refused(setting):
    with pytest.raises(ValidationError):
        TrainingConfig(**setting)


def test_the_last_step_is_evaluated_too():
    training = TrainingConfig(evaluate_every=10)
    assert [training.count_evaluations(steps, 100) for steps in (5, 10, 15)] == [1, 1, 2]


@pytest.mark.parametrize("steps", [1, 20, 59, 60, 700, 1499, 1500, 10**6])
def test_a_run_logs_at_least_thirty_losses_if_it_has_the_steps(steps):
    logged = [step for step in range(1, min(steps, 3000) + 1) if step % TrainingConfig().steps_per_log(steps) == 0]
    assert len(logged) >= min(30, steps)
    assert TrainingConfig(log_every=7).steps_per_log(steps) == 7
    assert TrainingConfig().steps_per_log(steps) <= 50


def test_steps_between_logs_are_positive():
    with pytest.raises(ValidationError, match="must be `auto` or a number of steps of at least 1"):
        TrainingConfig(log_every=0)


@pytest.mark.parametrize(
    ("key", "other"),
    [("torch_compile", "unpad"), ("cuda_graphs", "unpad"), ("cuda_graphs", "gradient_checkpointing")],
)
def test_ways_to_compute_exclude_each_other(key, other):
    assert getattr(TrainingConfig(**{key: True, other: False}), other) is False
    with pytest.raises(ValidationError, match=rf"does not go with training\.{other} = true: leave one of them out"):
        TrainingConfig(**{key: True, other: True})


def test_a_decay_needs_its_schedule_and_goes_with_the_warmup():
    assert TrainingConfig(schedule="warmup_stable_decay").decay_fraction == 0.1
    assert TrainingConfig(schedule="warmup_stable_decay", warmup_ratio=0.95).decay_fraction == pytest.approx(0.05)
    assert TrainingConfig(schedule="warmup_stable_decay", warmup_ratio=0.2, decay_ratio=0.8).decay_fraction == 0.8
    with pytest.raises(ValidationError, match=r"needs training\.schedule = warmup_stable_decay, not linear"):
        TrainingConfig(decay_ratio=0.2)
    with pytest.raises(ValidationError, match=r"at most 0\.7, because training\.warmup_ratio is 0\.3"):
        TrainingConfig(schedule="warmup_stable_decay", warmup_ratio=0.3, decay_ratio=0.8)


# --- Options ---


def even(value):
    if value % 2:
        raise ValueError("use an even number")
    return value


OPTIONS = {
    "flag": False,
    "count": Option(5, minimum=2),
    "share": Option(0.5, maximum=1),
    "word": "|",
    "mode": Option("a", choices=("a", "b")),
    "threshold": None,
    "pair": Option(2, read=even),
}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("flag", [True, False]),
        ("count", [2, 7.0]),
        ("share", [0, 1, 0.25]),
        ("word", ["x"]),
        ("mode", ["a", "b"]),
        ("threshold", [None, -3, 0.5]),
        ("pair", [4]),
    ],
)
def test_values_of_the_right_type_are_accepted(name, values):
    for value in values:
        check_options({name: value}, OPTIONS)
        assert read_option(OPTIONS, load_recipe("cola", {f"options.{name}": value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("flag", 1, "give true or false"),
        ("count", 1, "give an integer of at least 2"),
        ("count", 2.5, "give an integer of at least 2"),
        ("count", True, "give an integer of at least 2"),
        ("share", 1.1, "give a number from 0 to 1"),
        ("share", float("nan"), "give a number from 0 to 1"),
        ("word", 3, "give text"),
        ("mode", "c", "there are: a, b"),
        ("threshold", "low", "give a number"),
        ("pair", 3, "use an even number"),
    ],
)
def test_other_values_are_refused_with_those_allowed(name, value, remedy):
    with pytest.raises(RecipeError) as raised:
        check_options({name: value}, OPTIONS)
    assert str(raised.value) == f"options.{name} is {value!r} - {remedy}"


def test_the_default_stands_where_a_recipe_says_nothing_and_unknown_names_are_refused():
    recipe = load_recipe("cola")
    assert [read_option(OPTIONS, recipe, name) for name in ("count", "word", "threshold")] == [5, "|", None]
    with pytest.raises(RecipeError, match=r"unknown key 'options.counts' - did you mean count\?"):
        check_options({"counts": 3}, OPTIONS)


# --- Layers of a student ---


@pytest.mark.parametrize("value", ["0,2", [0, 2], [0, "2"]])
def test_layers_of_a_student_by_index(value):
    assert read_layers(value) == DistillationConfig(student_layers=value).student_layers == [0, 2]


@pytest.mark.parametrize(
    "value", [0, -1, True, [], [2, 1], [1, 1], "a", "1,x", 2.5, 10**9, "9" * 400, "9" * 5000, ["9" * 5000]]
)
def test_other_layers_are_refused(value):
    with pytest.raises(ValueError, match="must be layers in ascending order"):
        read_layers(value)
