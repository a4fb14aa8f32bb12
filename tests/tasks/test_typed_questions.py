"""Typed questions: what the model reads, answers and scores held against other libraries, and a toy task to the end."""

from __future__ import annotations

import csv
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from transformers import pipeline

from bertkit.errors import DataError, RecipeError
from bertkit.metrics.calibration import fit_temperature, temper
from bertkit.modeling.heads.options import build_option_class
from bertkit.recipe import load_recipe
from bertkit.recipe.records import check_options
from bertkit.reports.card import hub_card
from bertkit.tasks import typed_questions as task
from bertkit.tokens.features import IGNORE_INDEX, TaskContext, pad_features
from bertkit.workflows.finetune import finetune
from bertkit.workflows.push import push
from tests.conftest import WORDS, make_tokenizer, write_csv, write_jsonl
from tests.modeling.tiny_models import make_tiny

TOKENIZER = make_tokenizer()
ASKED = {
    "liked": {"type": "yes_no", "instructions": "good"},
    "kind": {"type": "choice", "instructions": "film", "criteria": ["dull", "fine", "very good"]},
    "stars": {"type": "score", "criteria": ["bad", "fine", "good"]},
}


def setup_of(**changes) -> TaskContext:
    return TaskContext(load_recipe("decide", changes), TOKENIZER, ())


def row_of(state="the film", answers=None, questions=None):
    row = {"state": state, "questions": questions or ASKED}
    return task.read(row if answers is None else {**row, "answers": answers}, load_recipe("decide"))


def words_of(ids):
    return TOKENIZER.convert_ids_to_tokens(ids)


# --- what is read


def test_each_option_has_a_mask_token_before_its_words():
    features = task.encode([row_of(answers={"kind": "fine", "stars": 2})], setup_of())
    assert [feature["questions"] for feature in features] == [[1], [2]]  # the first one has no answer
    choice, score = features
    tokens = words_of(choice["input_ids"])
    assert tokens[:5] == ["[CLS]", "the", "film", "[SEP]", "film"]
    assert [tokens[place] for place in choice["places"]] == ["[MASK]"] * 3
    assert [tokens[place + 1] for place in choice["places"]] == ["dull", "fine", "very"]
    assert [n for n, label in enumerate(choice["labels"]) if label != IGNORE_INDEX] == [choice["places"][1]]
    assert score["places"] == sorted(score["places"])
    assert (choice["labels"][choice["places"][1]], score["labels"][score["places"][2]]) == (0, 1)


def test_questions_share_a_sequence_where_they_are_to_be_answered_in_one_pass():
    row = row_of(answers={"liked": True, "kind": "fine", "stars": 0})
    apart = task.encode([row], setup_of())
    [together] = task.encode([row], setup_of(**{"options.one_pass": True}))
    assert together["questions"] == [0, 1, 2]
    tokens = words_of(together["input_ids"])
    assert tokens.count("[SEP]") == 1 + 3
    assert [tokens[place] for place in together["places"]] == ["[MASK]"] * (2 + 3 + 3)
    assert [n for n, label in enumerate(together["labels"]) if label != IGNORE_INDEX] == [
        together["places"][place] for place in (1, 2 + 1, 2 + 3 + 0)
    ]
    parts = [words_of(each["input_ids"])[4:] for each in apart]
    assert tokens == ["[CLS]", "the", "film", "[SEP]", *parts[0], *parts[1], *parts[2]]
    few = task.encode([row], setup_of(**{"options.one_pass": True, "training.max_length": 24}))
    assert [each["questions"] for each in few] == [[0, 1], [2]]
    assert max(len(each["input_ids"]) for each in few) <= 24


def test_the_order_of_labels_changes_nothing_that_is_read():
    for state in ("the film", "good", "very dull"):
        both = []
        for labels in (["dull", "fine", "very good"], ["very good", "dull", "fine"]):
            questions = {"kind": {"type": "choice", "criteria": labels}}
            [feature] = task.encode([row_of(state, questions=questions)], setup_of())
            both.append((feature["input_ids"], dict(zip(labels, feature["places"], strict=True))))
        assert both[0] == both[1]


def test_a_long_state_is_cut_and_a_long_question_is_refused():
    context = setup_of(**{"training.max_length": 24})
    question = {"kind": {"type": "choice", "criteria": ["dull", "fine"]}}
    [feature] = task.encode([row_of("the film " * 40, questions=question)], context)
    assert len(feature["input_ids"]) == 24
    assert [words_of(feature["input_ids"])[place] for place in feature["places"]] == ["[MASK]"] * 2
    many = {"kind": {"type": "choice", "criteria": [f"{a} {b}" for a in WORDS["filler"][:5] for b in ("good", "bad")]}}
    with pytest.raises(DataError, match="question 'kind' and its options take 34 of 21 tokens"):
        task.encode([row_of(questions=many)], context)


def test_a_state_may_be_empty():
    assert len(task.encode([row_of("")], setup_of())) == 3


def test_questions_come_from_the_row_or_the_recipe():
    changes = {"options.questions": ASKED, "data.columns": {"state": "text", "answers": ["a", "b", "c"]}}
    recipe = load_recipe("decide", changes)
    assert task.read({"state": "x", "answers": ["yes", None, "2"]}, recipe)["answers"] == {"liked": 1, "stars": 2}
    assert task.read({"state": "x", "answers": ["", None, None]}, recipe) is None  # nothing to learn
    with pytest.raises(DataError, match="no questions"):
        task.read({"state": "x"}, load_recipe("decide"))


# --- answers and scores


def answers_of(states_answers):
    """Predict by logits that are the same for all rows: ln 1, ln 2, ln 3 of the options in their order."""
    rows = [row_of(state, answers) for state, answers in states_answers]
    context = setup_of()
    features = task.encode(rows, context)
    outputs = []
    for feature in features:
        logits = np.zeros((len(feature["input_ids"]), 1))
        logits[feature["places"], 0] = np.log(np.arange(len(feature["places"])) + 1)
        outputs.append({"logits": logits})
    return rows, task.decode(outputs, features, rows, context), context


def test_answers_of_logits_by_hand():
    [row], [answer], context = answers_of([("the film", {"liked": True, "kind": "dull", "stars": 0})])
    assert answer["prediction"] == {"liked": True, "kind": "very good", "stars": 2}
    decisions = answer["decisions"]
    assert decisions["liked"]["probability"] == pytest.approx(2 / 3)
    assert decisions["kind"]["probabilities"] == pytest.approx({"dull": 1 / 6, "fine": 2 / 6, "very good": 3 / 6})
    assert decisions["kind"]["confidence"] == pytest.approx(1 / 2)
    assert decisions["stars"]["expected"] == pytest.approx(0 / 6 + 2 / 6 + 2 * 3 / 6)
    found = task.gold_probabilities([answer], [row], context)
    assert (found.gold.tolist(), found.rows.tolist(), found.unit) == ([1, 0, 0], [0, 0, 0], "question")
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1)


def test_scores_are_those_of_scikit_learn_and_of_levels_by_hand():
    rng = random.Random(1)
    gold = [
        {"liked": rng.random() < 0.5, "kind": rng.choice(ASKED["kind"]["criteria"]), "stars": rng.randrange(3)}
        for _ in range(40)
    ]
    rows, predictions, _ = answers_of([("the film", answers) for answers in gold])
    metrics = ["accuracy", "f1_macro", "mean_absolute_error", "ranked_probability_score"]
    context = setup_of(metrics=metrics)
    scores = task.score(task.compare(predictions, rows, context), context)
    pairs = [
        (f"{name}={right[name]}", f"{name}={answer['prediction'][name]}")
        for right, answer in zip(gold, predictions, strict=True)
        for name in ASKED
    ]
    assert scores["accuracy"] == pytest.approx(accuracy_score(*zip(*pairs, strict=True)))
    assert scores["f1_macro"] == pytest.approx(f1_score(*zip(*pairs, strict=True), average="macro", zero_division=0))
    levels, expected = [1 / 6, 2 / 6, 3 / 6], 4 / 3
    assert scores["mean_absolute_error"] == pytest.approx(np.mean([abs(expected - each["stars"]) for each in gold]))
    ranked = [sum((sum(levels[: n + 1]) - (n >= each["stars"])) ** 2 for n in range(3)) / 2 for each in gold]
    assert scores["ranked_probability_score"] == pytest.approx(np.mean(ranked))
    wrong, asked = task.count_errors(task.compare(predictions, rows, context))
    assert wrong.sum() / asked.sum() == pytest.approx(1 - scores["accuracy"])


def test_scores_of_levels_have_no_value_without_levels():
    rows, predictions, _ = answers_of([("the film", {"liked": True})])
    context = setup_of(metrics=["accuracy", "mean_absolute_error"])
    assert np.isnan(task.score(task.compare(predictions, rows, context), context)["mean_absolute_error"])


def test_the_baseline_is_the_most_frequent_answer_to_each_question():
    training = [row_of(answers={"liked": liked, "kind": "fine"}) for liked in (True, True, False)]
    other = {"new": {"type": "choice", "criteria": ["x", "y"]}}
    rows = [row_of(), row_of(questions=other)]
    found = task.baselines(task.fit_baselines(training, setup_of()), rows, setup_of())
    answers = [each["prediction"] for each in found["most frequent answer"]]
    assert answers == [{"liked": True, "kind": "fine", "stars": 0}, {"new": "x"}]


def test_an_option_of_a_calibration_may_be_given_for_each_type():
    """A type that is left out has no promise: all of its answers are abstained from, and a set has all its labels."""
    rows = [row_of("the film")]
    by_type = {"temperature": {"choice": 2.0}, "abstain_below": {"choice": 0.4}, "set_above": {"choice": 0.4}}
    context = setup_of(options={**by_type, "questions": None})
    features = task.encode(rows, context)
    outputs = [{"logits": np.log(np.arange(len(each["input_ids"]))[:, None] + 1.0)} for each in features]
    [answer] = task.decode(outputs, features, rows, context)
    for feature, (name, question) in zip(features, ASKED.items(), strict=True):
        weights = np.array([place + 1.0 for place in feature["places"]]) ** (0.5 if name == "kind" else 1)
        decision, likely = answer["decisions"][name], weights / weights.sum()
        assert decision["abstain"] == (question["type"] != "choice" or likely.max() < 0.4)
        assert len(decision["prediction_set"]) == (
            max(1, sum(likely >= 0.4)) if question["type"] == "choice" else len(likely)
        )
    assert list(decision["probabilities"]) == pytest.approx(likely.tolist())
    for wrong in ({"kind": 2.0}, {"choice": "warm"}, "warm", 0):
        with pytest.raises(RecipeError, match=r"options\.temperature"):
            check_options({"temperature": wrong}, task.OPTIONS)


# --- from file to answer


def toy_row(rng: random.Random) -> dict[str, str]:
    word = rng.choice(["good", "bad"])
    return {"text": f"{rng.choice(WORDS['filler'])} {word}", "liked": "yes" if word == "good" else "no", "kind": word}


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory, tiny_model) -> Path:
    folder = tmp_path_factory.mktemp("asked")
    rng = random.Random(5)
    for split, count in (("train", 160), ("validation", 60)):
        with (folder / f"{split}.csv").open("w", newline="") as stream:
            writer = csv.DictWriter(stream, ["text", "liked", "kind"])
            writer.writeheader()
            writer.writerows(toy_row(rng) for _ in range(count))
    questions = {
        "liked": {"type": "yes_no", "instructions": "lovely"},
        "kind": {"type": "choice", "instructions": "film", "criteria": ["bad", "good"]},
    }
    recipe = {
        "task": "typed_questions",
        "model": str(tiny_model),
        "data": {
            "files": {split: str(folder / f"{split}.csv") for split in ("train", "validation")},
            "columns": {"state": "text", "answers": ["liked", "kind"]},
        },
        "options": {"questions": questions},
        "metrics": ["accuracy"],
        "training": {
            "epochs": 3,
            "evaluate_every": 999,
            "batch_size": 16,
            "learning_rate": 4e-3,
            "precision": "fp32",
            "max_length": 64,
        },
    }
    (folder / "asked.yaml").write_text(json.dumps(recipe))  # which is YAML too
    return folder / "asked.yaml"


@pytest.fixture(scope="module")
def decider(recipe_file) -> Path:
    finetune(load_recipe(str(recipe_file)), output=recipe_file.parent / "run")
    return recipe_file.parent / "run"


def test_columns_of_a_table_are_learned_as_questions(run, decider):
    record = json.loads((decider / "run.json").read_text())
    assert record["results"][0]["scores"]["accuracy"] > 0.9
    ended = run("eval", decider, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["results"][0]["scores"] == record["results"][0]["scores"]


def test_a_row_is_answered_by_name(run, decider):
    ended = run("predict", decider, "--row", "state=good")
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert record["prediction"] == {"liked": True, "kind": "good"}
    asked = {"liked": {"type": "yes_no", "instructions": "lovely"}}
    own = run("predict", decider, "--row", "state=good", "--row", f"questions={json.dumps(asked)}")
    assert own.code == 0, own.err


def test_a_calibration_is_kept_for_each_type(run, decider, tmp_path):
    """Temperatures are those of a loop over the types, and the promised precision holds for `predict` from then on."""
    run_folder = shutil.copytree(decider, tmp_path / "run")
    rng = random.Random(9)
    rows = [toy_row(rng) for _ in range(300)]
    for row in rows[::10]:
        row["liked"] = {"yes": "no", "no": "yes"}[row["liked"]]
    data = write_csv(tmp_path / "rows.csv", rows)
    command = ["--data", data, "--split", "all", "--on-overlap", "mark", "--json"]
    answers = [json.loads(line) for line in run("predict", run_folder, data).out.splitlines()]
    ended = run("calibrate", run_folder, "--min-precision", 0.8, "--coverage", 0.9, *command)
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    of_yes = np.array([answer["decisions"]["liked"]["probability"] for answer in answers])
    of_kind = np.array([list(answer["decisions"]["kind"]["probabilities"].values()) for answer in answers])
    for name, likely, gold in (
        ("yes_no", np.stack([1 - of_yes, of_yes], axis=1), [row["liked"] == "yes" for row in rows]),
        ("choice", of_kind, [row["kind"] == "good" for row in rows]),
    ):
        assert result["temperature"][name] == pytest.approx(
            fit_temperature(likely, np.array(gold, dtype=int)), rel=1e-3
        )
    assert [(each["type"], each["asked"]) for each in result["abstention"]][2:4] == [("choice", 0.99), ("yes_no", 0.9)]
    assert [each["type"] for each in result["prediction_sets"]] == ["choice", "yes_no"]
    after = run("predict", run_folder, data)
    assert "temperature choice" in after.err
    liked = [json.loads(line)["decisions"]["liked"] for line in after.out.splitlines()]
    tempered = temper(np.stack([1 - of_yes, of_yes], axis=1), result["temperature"]["yes_no"])[:, 1]
    assert [each["probability"] for each in liked] == pytest.approx(tempered.tolist(), rel=1e-4)
    right = [
        (row["liked"] == "yes") == (each["probability"] > 0.5)
        for row, each in zip(rows, liked, strict=True)
        if not each["abstain"]
    ]
    assert np.mean(right) > 0.8
    evaluated = run("eval", run_folder, *command)
    assert "fitted to 300 of 300" in evaluated.out
    # transformers has the same temperatures, and gives the same answers.
    decide = pipeline("decision", model=str(run_folder))
    temperatures = {"noul": result["temperature"]["yes_no"], "choice": result["temperature"]["choice"], "score": 1.0}
    assert decide.decision_config.temperature == temperatures
    kind = {"type": "choice", "instructions": "film", "criteria": {"bad": None, "good": None}}
    asked = {"liked": {"type": "noul", "instructions": "lovely"}, "kind": kind}
    for row, line in zip(rows, after.out.splitlines()[:20], strict=False):
        record, answers = json.loads(line), decide({"state": row["text"], "questions": asked})
        assert answers["liked"]["noul"] == pytest.approx(record["decisions"]["liked"]["probability"], abs=1e-5)
        assert answers["kind"]["probabilities"] == pytest.approx(record["decisions"]["kind"]["probabilities"], abs=1e-5)
    # The calibrated run can be pushed.
    assert "decision.json" in push(run_folder, "me/name", dry_run=True).files


def test_the_card_shows_how_transformers_loads_the_model(decider, monkeypatch, capsys):
    monkeypatch.chdir(decider)
    example = next(block for block in Path("README.md").read_text().split("```python\n") if "pipeline(" in block)
    exec(example.partition("```")[0], {})
    assert "'type': 'noul'" in capsys.readouterr().out
    assert 'pipeline("decision", model="me/name")' in str(hub_card(decider / "README.md", "me/name"))


def test_an_answer_that_is_no_option_ends_in_one_line(run, recipe_file, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("text,liked,kind\ngood,yes,good\nbad,no,awful\n")
    ended = run("finetune", recipe_file, "--data", file)
    assert ended.code == 3
    assert ended.err.startswith(f"error: the answer 'awful' to 'kind' ({file}:3, column 'liked kind')")
    assert len(ended.err.splitlines()) == 1


def test_rows_with_their_own_questions(run, tiny_model, tmp_path):
    rows = [{"state": "good", "questions": ASKED, "answers": {"liked": True, "stars": 2}}] * 8
    rows.append({"state": "bad", "questions": {"a": {"type": "yes"}}, "answers": {"a": True}})
    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    ended = run("finetune", "decide", "--model", tiny_model, "--data", file)
    assert (ended.code, ended.err.splitlines()) == (
        3,
        [f"error: question 'a' has the type 'yes' ({file}:9, column 'questions') - give one of yes_no, choice, score"],
    )


@pytest.mark.parametrize("model_type", ["deberta-v2", "modernbert", "roberta"])
def test_other_encoders_answer_each_question_by_itself(model_type):
    ids = {"option_separator": TOKENIZER.sep_token_id, "option_marker": TOKENIZER.mask_token_id}
    ids["vocab_size"] = len(TOKENIZER)
    model = make_tiny(model_type, lambda config: build_option_class(type(config))(config), config=ids).eval()
    features = task.encode([row_of()], setup_of())
    batch = {name: torch.tensor(values) for name, values in pad_features(features, {"input_ids": 0}).items()}
    together = model(**batch).logits
    for line, feature in enumerate(features):
        alone = model(torch.tensor([feature["input_ids"]]), torch.ones(1, len(feature["input_ids"]), dtype=torch.long))
        places = feature["places"]
        torch.testing.assert_close(together[line, places], alone.logits[0, places], atol=1e-4, rtol=1e-4)
