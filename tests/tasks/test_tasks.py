"""What a family of one's own imports, and what is refused of it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bertkit.tasks as door
from bertkit.errors import DataError, RecipeError
from bertkit.recipe import load_recipe
from bertkit.tasks import (
    ColumnSpec,
    TaskContext,
    drop_private_keys,
    example_row,
    load_task,
    task_names,
    with_options,
)
from tests.conftest import make_tokenizer
from tests.tasks import own_family

STARS = Path(__file__).parent / "own_family.py"
STABLE = {  # imported by families of users: a name may join them, but none may leave
    *("CLASSIFICATION_METRICS", "EVALUATE_PREFIX", "IGNORE_INDEX", "REGRESSION_METRICS"),
    *("Answer", "Collator", "ColumnSpec", "RowScores", "DataError", "TaskReport", "Feature", "Option", "Output"),
    *("Prediction", "Recipe", "RecipeError", "Row", "RunModule", "TaskContext", "Task"),
    *("compare_values", "compute_metrics", "encode_texts", "is_blank", "load_pretrained", "padding_collator"),
    *("read_option", "score_values", "label_to_str", "with_options"),
}


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "stars.yaml").write_text(
        "task: tests.tasks.own_family\nmetrics: [mean_absolute_error, accuracy]\noptions: {highest: 3}\n"
    )
    return load_recipe(str(tmp_path / "stars.yaml"))


@pytest.fixture
def context(recipe):
    return TaskContext(recipe, make_tokenizer(), ())


def test_every_name_of_the_door_is_there():
    assert set(door.__all__) >= STABLE
    assert all(hasattr(door, name) for name in door.__all__)


def test_the_door_is_light():
    script = "import sys, bertkit.tasks\nprint(*({'torch', 'transformers', 'datasets', 'scipy'} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == ""


def test_the_family_below_imports_nothing_of_bertkit_but_the_door():
    tree = ast.parse(STARS.read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module for module in modules if module.startswith("bertkit")} == {"bertkit.tasks"}


def test_a_family_of_ones_own_goes_from_rows_to_scores(recipe, context):
    task = load_task(recipe)
    rows = [task.read({"text": text, "label": label}, recipe) for text, label in (("good", "3"), ("bad film", 1))]
    with pytest.raises(DataError, match="'4' is not a number of stars"):
        task.read({"text": "good", "label": "4"}, recipe)
    features = task.encode(rows, context)
    assert [(feature["row"], feature["labels"]) for feature in features] == [(0, 3.0), (1, 1.0)]
    batch = task.collator(context)(features)
    assert batch["input_ids"].shape == (2, 4) and batch["labels"].tolist() == [3.0, 1.0]
    outputs = [{"logits": np.array([9.0])}, {"logits": np.array([1.6])}]
    predictions = task.decode(outputs, features, rows, context)
    assert [drop_private_keys(record) for record in predictions] == [{"prediction": 3}, {"prediction": 2}]
    row_scores = task.compare(predictions, rows, context)
    assert task.score(row_scores, context) == {"mean_absolute_error": 0.5, "accuracy": 0.5}
    learned = task.fit_baselines([{"label": 2}, {"label": 1}, {"label": 2}], context)
    assert task.baselines(learned, rows, context) == {"most frequent": [{"prediction": 2}] * 2}
    assert [answer.correct for answer in task.details(predictions, rows, context).answers] == [True, False]


def test_a_family_of_ones_own_loads_a_model_with_its_head(recipe, context, tiny_model):
    task = load_task(recipe)
    model = task.load_model(tiny_model, context, new_head=True)
    assert (model.config.id2label, model.config.problem_type) == ({0: "stars"}, "regression")
    batch = task.collator(context)(task.encode([{"text": "good", "label": 3}], context))
    assert model(**batch).loss.item() > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "tests.tasks.spans_of_mine"}, "no task family is called 'tests.tasks.spans_of_mine'"),
        ({"task": "tests.kills"}, "the task family tests.kills lacks read, load_model, encode"),
        ({"options.higest": 3}, "unknown key 'options.higest' - did you mean highest"),
        ({"options.highest": 1}, "options.highest is 1 - give an integer of at least 2"),
        ({"data.columns": {"texts": "a"}}, "unknown key 'data.columns.texts' - did you mean text"),
        ({"metrics": ["acuracy"], "best_metric": "acuracy"}, "no metric is called 'acuracy' - did you mean accuracy"),
        (
            {"metrics": ["accuracy", "evaluate:x"], "best_metric": "x"},
            "best_metric 'x' is not among the metrics with an interval",
        ),
        ({"best_metric": "spearmanr"}, "best_metric 'spearmanr' is not among the metrics"),
    ],
)
def test_what_the_family_does_not_have_is_refused(recipe, tmp_path, changes, message):
    with pytest.raises(RecipeError) as raised:
        load_task(load_recipe(str(tmp_path / "stars.yaml"), changes))
    assert str(raised.value).startswith(message)


def test_a_family_may_leave_out_what_it_does_not_need(recipe, monkeypatch):
    for name in ("fit_baselines", "details"):
        monkeypatch.delattr(own_family, name)
    task, context = load_task(recipe), TaskContext(recipe, None, ())
    assert task.fit_baselines([], context) == task.tune([], [], context) == {}
    assert task.precompute(None, {}, context, None) is False
    assert task.details([], [], context).answers is None


def test_options_are_added_to_a_setup(context):
    assert with_options(context, {"more": 1}).recipe.options == {"highest": 3, "more": 1}
    assert context.recipe.options == {"highest": 3}


@pytest.mark.parametrize("name", task_names())
def test_an_example_of_each_family_names_its_columns(name):
    names = {"text_classification": "cola", "text_regression": "stsb", "token_classification": "ner"}
    names |= {"question_answering": "squad", "multiple_choice": "swag", "word_sense": "wsd", "reranking": "rerank"}
    names |= {"similarity": "similarity", "contrastive": "similarity-triples", "unlabeled_texts": "similarity-texts"}
    names |= {"late_interaction": "late-interaction", "few_shot": "few-shot", "zero_shot": "sst2", "sparse": "sparse"}
    names |= {"typed_questions": "decide"}
    example = load_recipe(names[name])
    task = load_task(example)
    assert isinstance(task.COLUMNS, ColumnSpec)
    assert example_row(task, example).startswith(("--text ", "--row "))
