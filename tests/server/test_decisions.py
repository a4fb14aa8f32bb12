"""Typed questions over HTTP: answers are those of `predict`, in the shapes of two clients."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from transformers.decision import DecisionConfig
from transformers.decision import Question as TransformersQuestion

from bertkit.evaluation.calibration import SavedCalibration, write_calibration
from bertkit.modeling.checkpoint import fingerprint
from bertkit.recipe import load_recipe
from bertkit.server.app import build_app
from bertkit.server.batching import Limits
from bertkit.server.decisions import SystemOneQuestion
from bertkit.server.models import find_models, load_service
from bertkit.tasks.typed_questions import expected_level
from bertkit.workflows.finetune import finetune
from bertkit.workflows.predict import predict
from tests.conftest import WORDS, write_jsonl
from tests.server.conftest import Client

STATE = "the good film"
ASKED = {
    "liked": {"type": "yes_no", "instructions": "good"},
    "kind": {"type": "choice", "instructions": "film", "criteria": {"dull": None, "fine": "very good"}},
    "stars": {"type": "score", "instructions": "stars", "criteria": ["bad", "fine", "good"]},
}
OPENAI = [
    {"type": "predicate", "name": "liked", "instructions": "good"},
    {
        "type": "choice",
        "instructions": [{"type": "input_text", "text": "film"}],
        "choices": [{"value": "dull"}, {"value": "fine", "description": "very good"}],
    },
    {"type": "score", "instructions": "stars", "levels": [{"label": "bad"}, {"label": "fine"}, {"label": "good"}]},
]
TYPESAFE = {
    "liked": {"type": "noul", "instructions": "good"},
    "kind": {"type": "choice", "instructions": "film", "criteria": {"dull": None, "fine": "very good"}},
    "stars": {"type": "score", "instructions": "stars", "criteria": ["bad", "fine", "good"]},
}


@pytest.fixture(scope="module")
def decider(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("decider")
    answers = {"liked": True, "kind": "fine", "stars": 2}
    rows = [{"state": f"{STATE} {word}", "questions": ASKED, "answers": answers} for word in WORDS["filler"]]
    file = write_jsonl(folder / "rows.jsonl", rows)
    changes = {"model": str(tiny_model), "data.source": str(file), "training.epochs": 1, "training.precision": "fp32"}
    finetune(load_recipe("decide", changes), output=folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def asking(decider, trained):
    service = load_service(find_models([f"any={decider}", f"film={trained}"]), Limits())
    service.worker.start()
    yield Client(build_app(service))
    service.worker.stop()


@pytest.fixture(scope="module")
def expected(decider):
    recipe = load_recipe(str(decider / "recipe.yaml"), {"model": str(decider)})
    [answer] = predict(recipe, row={"state": STATE, "questions": ASKED})
    return answer["decisions"]


def test_answers_in_the_shape_of_openai_are_those_of_predict(asking, expected):
    reply = asking.post("/v1/decisions", {"model": "any", "input": STATE, "questions": OPENAI})
    assert reply.status == 200, reply.body
    liked, kind, stars = reply.json["answers"]
    assert (liked["type"], liked["name"]) == ("predicate", "liked")
    assert liked["probability"] == pytest.approx(expected["liked"]["probability"], abs=1e-6)
    assert {each["value"]: each["probability"] for each in kind["probabilities"]} == pytest.approx(
        expected["kind"]["probabilities"], abs=1e-6
    )
    assert kind["name"] is None
    assert kind["confidence"] == max(each["probability"] for each in kind["probabilities"])
    assert stars["score"] == pytest.approx(expected["stars"]["expected"], abs=1e-6)
    assert [(each["value"], each["label"]) for each in stars["probabilities"]] == [(0, "bad"), (1, "fine"), (2, "good")]
    usage = reply.json["usage"]
    assert usage["input_tokens"] == usage["total_tokens"] > 0


def test_answers_in_the_shape_of_typesafe_are_those_of_predict(asking, expected):
    reply = asking.post("/v1/systemone", {"model": "any", "state": STATE, "questions": TYPESAFE})
    assert reply.status == 200, reply.body
    answers = reply.json["answers"]
    assert answers["liked"]["noul"] == pytest.approx(expected["liked"]["probability"], abs=1e-6)
    assert answers["kind"]["probabilities"] == pytest.approx(expected["kind"]["probabilities"], abs=1e-6)
    assert answers["stars"]["legend"] == {"0": "bad", "1": "fine", "2": "good"}
    assert answers["stars"]["score"] == pytest.approx(expected["stars"]["expected"], abs=1e-6)


@pytest.mark.parametrize("kind", ["noul", "choice", "score"])
def test_answers_of_probabilities_are_those_of_transformers(kind):
    random = np.random.default_rng(3)
    for options in [2] if kind == "noul" else [1, 2, 3, 4, 7, 30]:
        labels = [f"option {n}" for n in range(options)]
        criteria = {"noul": None, "choice": dict.fromkeys(labels), "score": labels}[kind]
        question = SystemOneQuestion(type=kind, criteria=criteria)
        config = DecisionConfig(labels={kind: labels}, noul_options=["false", "true"])
        reference = TransformersQuestion.from_request("q", {"type": kind, "criteria": criteria}, config)
        # A small concentration gives nearly certain answers. The last two are a guess and a tie of the outer levels.
        drawn = [random.dirichlet(np.full(options, c)) for c in (0.05, 0.5, 5.0) for _ in range(40)]
        drawn += [np.full(options, 1 / options), np.eye(options)[[0, -1]].mean(axis=0)]
        for probabilities in np.array(drawn).tolist():
            by_label = dict(zip(labels, probabilities, strict=False))
            given = {"noul": None, "choice": by_label, "score": probabilities}[kind]
            decision = {"probability": probabilities[-1], "expected": expected_level(probabilities)}
            shown, answer = (
                question.format_answer({**decision, "probabilities": given}),
                reference.answer(probabilities),
            )
            assert shown.keys() == answer.keys()
            for key, value in answer.items():
                assert shown[key] == (value if isinstance(value, str) or key == "legend" else pytest.approx(value)), key


def test_a_question_is_answered_alike_alone_and_among_others(asking):
    together = asking.post("/v1/decisions", {"model": "any", "input": STATE, "questions": OPENAI * 20}).json["answers"]
    alone = asking.post("/v1/decisions", {"model": "any", "input": STATE, "questions": OPENAI[:1]}).json["answers"]
    for each in together[::3]:
        assert each["probability"] == pytest.approx(alone[0]["probability"], abs=1e-6)


def test_answers_follow_the_calibration_of_each_type(decider, tmp_path):
    """In both shapes they have the probabilities of `predict`, and say where the model abstains."""
    run = shutil.copytree(decider, tmp_path / "run")
    facts = {"model": fingerprint(run), "task": "typed_questions", "split": "all", "source": "rows", "rows": 20}
    promised = {"abstain_below": {"yes_no": 0.0, "score": 0.99}}
    write_calibration(run, SavedCalibration(**facts, temperature={"yes_no": 5.0, "choice": 0.1}, promised=promised))
    [answer] = predict(
        load_recipe(str(run / "recipe.yaml"), {"model": str(run)}), row={"state": STATE, "questions": ASKED}
    )
    liked, kind, stars = answer["decisions"].values()
    assert [each["abstain"] for each in (liked, kind, stars)] == [False, True, True]
    service = load_service(find_models([f"any={run}"]), Limits())
    service.worker.start()
    client = Client(build_app(service))
    given = client.post("/v1/decisions", {"model": "any", "input": STATE, "questions": OPENAI}).json["answers"]
    named = client.post("/v1/systemone", {"state": STATE, "questions": TYPESAFE}).json["answers"]
    service.worker.stop()
    for answers in (given, list(named.values())):
        assert [each["abstain"] for each in answers] == [False, True, True]
        assert answers[2]["score"] == pytest.approx(stars["expected"], abs=1e-6)
    assert given[1]["confidence"] == pytest.approx(kind["confidence"], abs=1e-6)
    assert given[0]["probability"] == named["liked"]["noul"] == pytest.approx(liked["probability"], abs=1e-6)


def test_messages_are_read_with_their_roles(asking):
    part = {"type": "input_text", "text": STATE}
    messages = [{"role": "user", "content": [part]}, {"type": "function_call", "name": "f", "arguments": "{}"}]
    asked = {"model": "any", "questions": OPENAI[:1]}
    as_text = f'user: {STATE}\nfunction_call: {{"name": "f", "arguments": "{{}}"}}'
    given, written = (asking.post("/v1/decisions", {**asked, "input": state}) for state in (messages, as_text))
    assert given.json["answers"] == written.json["answers"]


def test_a_classifier_answers_a_choice_among_its_labels_and_refuses_the_rest(asking):
    labels = {"type": "choice", "name": "mood", "instructions": "?", "choices": [{"value": "good"}, {"value": "bad"}]}
    reply = asking.post("/v1/decisions", {"model": "film", "input": STATE, "questions": [OPENAI[0], labels]})
    assert reply.json["answers"][0] == {"type": "refusal", "name": "liked"}
    mood = reply.json["answers"][1]
    [plain] = asking.post("/v1/models/film:predict", {"instances": [{"text": STATE}]}).json["predictions"]
    assert {each["value"]: each["probability"] for each in mood["probabilities"]} == pytest.approx(
        plain["probabilities"], abs=1e-6
    )
    refused = asking.post("/v1/systemone", {"model": "film", "state": STATE, "questions": TYPESAFE})
    assert refused.status == 422
    assert "questions.liked: this model only answers a choice among its labels" in refused.json["error"]


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"model": "none"}, 404, "model: no model is called 'none' here; there are any, film"),
        ({"questions": []}, 422, "questions: List should have at least 1 item"),
        ({"questions": [{"type": "box", "instructions": "x"}]}, 422, "\\[0\\].type: .*'predicate', 'choice'"),
        ({"questions": [{"type": "predicate"}]}, 422, "questions\\[0\\].*instructions: Field required"),
        (
            {"questions": [{**OPENAI[1], "choices": [{"value": "a"}, {"value": "a"}]}]},
            422,
            "two choices have the same value",
        ),
        ({"questions": [{"type": "choice", "instructions": "x"}]}, 422, "the criteria '{}'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 422, "'input_image': only text"),
        (
            {"questions": [{**OPENAI[1], "choices": [{"value": f"{n} good film"} for n in range(40)]}]},
            422,
            "and its options take .* tokens",
        ),
    ],
)
def test_a_wrong_request_is_refused_in_the_shape_of_openai(asking, change, status, message):
    reply = asking.post("/v1/decisions", {"model": "any", "input": STATE, "questions": OPENAI, **change})
    assert reply.status == status
    assert set(reply.json) == {"error"}
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(reply.json["error"]["message"])


def test_a_request_names_one_of_several_models(asking):
    reply = asking.post("/v1/systemone", {"state": STATE, "questions": TYPESAFE})
    assert (reply.status, "several models answer here" in reply.json["error"]) == (422, True)


def test_models_are_listed_for_both_clients(asking):
    listed = asking.get("/v1/models").json
    assert [model["name"] for model in listed["models"]] == [model["id"] for model in listed["data"]]
    assert set(listed["models"][0]) == {"name", "description", "release_date"}
