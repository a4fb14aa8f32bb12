"""Several tasks on one encoder, as whole commands: trained, broken off, resumed, and predicted together."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForTokenClassification

from bertkit.errors import RecipeError, UsageError
from bertkit.evaluation.together import find_tasks, load_together
from bertkit.recipe import load_recipe, load_several
from bertkit.workflows.finetune import finetune
from bertkit.workflows.finetune.several import dry_run, finetune_several, read_several
from bertkit.workflows.predict import predict, predict_to_file
from tests.conftest import WORDS, toy_rows, write_csv, write_jsonl
from tests.kills import EXPORT_MODEL, FINISH, TRAINING_STEP, check_equal, read_lines

SETTINGS = {
    "training.epochs": 2,
    "training.batch_size": 16,
    "training.learning_rate": 3e-3,
    "training.precision": "fp32",
    "training.evaluate_every": 5,
    "training.log_every": 2,
}
TEXTS = [{"id": f"r{n}", "text": row["text"]} for n, row in enumerate(toy_rows(9, seed=5))]


def tagged(count, seed):
    tags = {word: kind for kind in ("good", "bad") for word in WORDS[kind]}
    texts = [row["text"].split() for row in toy_rows(count, seed)]
    return [{"tokens": words, "tags": [tags.get(word, "other") for word in words]} for words in texts]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, tiny_model) -> str:
    """A recipe of the file that decides texts, and of one that tags their words."""
    folder = tmp_path_factory.mktemp("several")
    for name, count, seed in (("train", 96, 1), ("validation", 30, 2)):
        (folder / "texts").mkdir(exist_ok=True)
        write_csv(folder / "texts" / f"{name}.csv", toy_rows(count, seed))
        write_jsonl(folder / "tags" / f"{name}.jsonl", tagged(count // 2, seed + 5))
    (folder / "topic.yaml").write_text(f"extends: classify\ndata: {{source: {folder}/texts}}\n")
    (folder / "words.yaml").write_text(
        f"extends: tag\ndata: {{source: {folder}/tags}}\noptions: {{scheme: none}}\nmetrics: [accuracy]\n"
    )
    (folder / "both.yaml").write_text(f"model: {tiny_model}\ntasks: {{topic: topic.yaml, words: words.yaml}}\n")
    return str(folder / "both.yaml")


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    finetune_several(load_several(recipe, SETTINGS), output=folder)
    return folder


def several_of(folder: Path):
    return load_several(str(folder / "recipe.yaml"), {"model": str(folder)})


def test_both_tasks_are_learned_and_the_best_step_has_the_highest_mean(finished):
    record = json.loads((finished / "run.json").read_text())
    scores = record["results"][0]["scores"]
    assert record["tasks"] == ["topic", "words"]
    assert scores["words"] > 0.85
    assert scores["mean"] == pytest.approx((scores["topic"] + scores["words"]) / 2)
    evaluations = [entry for entry in read_lines(finished / "metrics.jsonl") if "eval_mean" in entry]
    best = max(evaluations, key=lambda entry: entry["eval_mean"])
    assert (best["step"], best["eval_mean"]) == (record["best_step"], pytest.approx(scores["mean"]))
    assert best["eval_topic.f1_macro"] == scores["topic"]
    assert {"loss", "loss_topic", "loss_words"} <= read_lines(finished / "metrics.jsonl")[0].keys()


def test_a_task_has_a_folder_like_that_of_a_run_of_its_own(finished):
    files = {file.name for file in (finished / "words").iterdir()}
    assert {"model.safetensors", "predictions.jsonl", "report.html", "README.md", "run.json"} <= files
    AutoModelForTokenClassification.from_pretrained(finished / "words")
    record = json.loads((finished / "words" / "run.json").read_text())
    assert record["identity"]["trained_together"]
    found = list(
        predict(load_recipe(str(finished / "words" / "recipe.yaml"), {"model": str(finished / "words")}), row=TEXTS[0])
    )
    assert len(found[0]["prediction"]) == len(TEXTS[0]["text"].split())


def test_all_tasks_predict_what_each_does_alone(finished, tmp_path):
    file = write_jsonl(tmp_path / "texts.jsonl", TEXTS)
    together = list(predict(several_of(finished), source=file))
    assert [record["id"] for record in together] == [row["id"] for row in TEXTS]
    for task in ("topic", "words"):
        recipe = load_recipe(str(finished / task / "recipe.yaml"), {"model": str(finished / task)})
        for record, alone in zip(together, predict(recipe, source=file), strict=True):
            assert record[task]["prediction"] == alone["prediction"]
    low = together[0]["topic"]["probabilities"]
    assert low == pytest.approx(
        next(
            predict(load_recipe(str(finished / "topic/recipe.yaml"), {"model": str(finished / "topic")}), source=file)
        )["probabilities"],
        abs=1e-5,
    )


def test_a_file_with_columns_names_the_task_in_each(finished, tmp_path):
    file = write_jsonl(tmp_path / "texts.jsonl", TEXTS)
    assert predict_to_file(several_of(finished), tmp_path / "out.csv", source=file) == len(TEXTS)
    header = (tmp_path / "out.csv").read_text().splitlines()[0]
    topic = "topic_prediction,topic_confidence,topic_probability_bad,topic_probability_good"
    assert header.startswith(f"id,text,{topic},words_prediction")


def test_the_same_text_goes_through_the_encoder_once(finished, tmp_path):
    together = load_together(find_tasks(several_of(finished)))
    read = []
    together.joined.base_model.encoder.register_forward_hook(lambda _, inputs, out: read.append(len(inputs[0])))
    rows = {
        name: [one.task.read({"text": row["text"]}, one.setup.recipe) for row in TEXTS]
        for name, one in together.tasks.items()
    }
    features = {name: one.task.encode(rows[name], one.setup) for name, one in together.tasks.items()}
    predictions = together.predict(features, rows)
    assert sum(read) == len({row["text"] for row in TEXTS})
    assert [len(of_task) for of_task in predictions.values()] == [len(TEXTS)] * 2


def test_a_finished_run_is_not_trained_again_and_may_be_moved(finished, recipe, tmp_path):
    moved = shutil.copytree(finished, tmp_path / "moved")
    results = finetune_several(load_several(recipe, SETTINGS), output=moved)
    assert [(result.recipe, result.folder) for result in results] == [
        ("topic", str(moved / "topic")),
        ("words", str(moved / "words")),
    ]
    plan = dry_run(load_several(recipe, SETTINGS), output=moved)
    assert plan.rows == {"topic train": 96, "topic validation": 30, "words train": 48, "words validation": 15}
    assert plan.steps == 18


def test_each_task_has_gates_of_its_own(finished, recipe, tmp_path):
    gated = load_several(recipe, SETTINGS | {"topic.gates.size_mb": 0.001, "words.gates.accuracy": 0.0})
    moved = shutil.copytree(finished, tmp_path / "moved")
    judged = {Path(result.folder).name: result.gates for result in finetune_several(gated, output=moved)}
    assert {name: [case.outcome for case in gates] for name, gates in judged.items()} == {
        "topic": ["failed"],
        "words": ["passed"],
    }


def test_a_run_of_one_task_is_not_the_same(finished, recipe):
    alone = load_several(recipe, SETTINGS).recipes["topic"]
    with pytest.raises(UsageError, match="trained_together"):
        finetune(alone, output=finished / "topic")


def test_a_head_that_does_not_train_the_encoder_is_refused(recipe, tmp_path):
    with pytest.raises(RecipeError, match="words: token_classification does not train an encoder"):
        finetune_several(load_several(recipe, SETTINGS | {"words.options.layers": "last"}), output=tmp_path / "run")


def test_a_mean_of_errors_is_refused(recipe, tmp_path, monkeypatch):
    (tmp_path / "costs.py").write_text("def cost(gold, predicted): ...\n\n\ncost.lower_is_better = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    several = load_several(recipe, SETTINGS)
    changed = several.recipes["topic"].model_copy(update={"metrics": ["costs.cost"], "best_metric": "costs.cost"})
    with pytest.raises(RecipeError, match="higher is better"):
        read_several(replace(several, recipes={**several.recipes, "topic": changed}), tmp_path)


def test_the_folder_of_all_tasks_is_no_model(run, finished):
    ended = run("predict", "classify", "--model", finished, "--text", "good")
    assert (ended.code, "name the folder of one" in ended.last) == (4, True)
    assert run("compare", finished, finished / "topic").code == 4


def test_a_run_that_breaks_off_between_two_steps_ends_as_one_that_does_not(finished, recipe, tmp_path, monkeypatch):
    from bertkit.training.trainer import BertkitTrainer

    several, steps, step = load_several(recipe, SETTINGS), itertools.count(1), BertkitTrainer.training_step

    def break_off(*arguments, **named):
        if next(steps) == 13:
            raise ZeroDivisionError
        return step(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(BertkitTrainer, "training_step", break_off)
        with pytest.raises(ZeroDivisionError):
            finetune_several(several, output=tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint-10").is_dir()
    finetune_several(several, output=tmp_path / "run")
    check_equal(tmp_path / "run", finished)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        {"function": TRAINING_STEP, "when": "before", "call": 13},
        {"function": EXPORT_MODEL, "when": "after", "call": 2},
        {"function": FINISH, "when": "after", "call": 1},
    ],
    ids=["step", "export", "finish"],
)
def test_a_kill_changes_nothing(zygote, recipe, tmp_path, fault):
    settings = [f"{key}={value}" for key, value in (SETTINGS | {"sampling": 0.5}).items()]
    command = ["finetune", recipe, "-o", "run", *(part for setting in settings for part in ("--set", setting))]
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    code, text = zygote.run(tmp_path / "whole", command)
    assert code == 0, text
    assert zygote.run(tmp_path / "broken", command, fault)[0] == -9
    code, text = zygote.run(tmp_path / "broken", command)
    assert code == 0, text
    check_equal(tmp_path / "broken" / "run", tmp_path / "whole" / "run")
