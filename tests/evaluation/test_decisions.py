"""Runs of typed questions in transformers' pipeline for decisions: the answers are those of `predict`."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from transformers import AutoModelForDecision, pipeline
from transformers.models.auto import modeling_auto

from bertkit.evaluation.decisions import TypedQuestionsConfig, write_decision_config
from bertkit.modeling.heads.options import build_option_class
from bertkit.recipe import load_recipe
from bertkit.tokens.features import TaskContext
from bertkit.workflows.predict import predict
from tests.conftest import WORDS, make_tokenizer
from tests.modeling.tiny_models import make_tiny

QUESTIONS = {
    "liked": {"type": "noul", "instructions": [{"type": "text", "text": "good"}], "criteria": {"true": "very good"}},
    "kind": {"type": "choice", "instructions": "film", "criteria": {"dull": None, "fine": "good", "very bad": None}},
    "stars": {"type": "score", "criteria": ["bad", "fine", "good"]},
    "letter": {"type": "choice", "criteria": {f"{a} {b}": None for a in "abcdef" for b in "uvwxyz"}},  # 36 options
}
FEW = {name: QUESTIONS[name] for name in ("liked", "kind", "stars")}


def save_model(folder, model_type):
    tokenizer = make_tokenizer()
    ids = {"option_separator": tokenizer.sep_token_id, "option_marker": tokenizer.mask_token_id}
    ids |= {"vocab_size": len(tokenizer), "max_position_embeddings": 240, "pad_token_id": tokenizer.pad_token_id}
    make_tiny(model_type, lambda config: build_option_class(type(config))(config), config=ids).save_pretrained(folder)
    tokenizer.model_max_length = 200
    tokenizer.save_pretrained(folder)
    return folder


def check_answers(decide, states, questions, **changes):
    """Compare the answers of a pipeline with those of `predict`, which reads a list of parts as text only."""
    as_rows = {**questions, "liked": {**questions["liked"], "instructions": "good"}}
    settings = {"model": decide.model.name_or_path, "training.precision": "fp32", **changes}
    for state in states:
        [record] = predict(load_recipe("decide", settings), row={"state": state, "questions": as_rows})
        for name, answer in decide({"state": state, "questions": questions}).items():
            decision = record["decisions"][name]
            if answer["type"] == "noul":
                assert answer["noul"] == pytest.approx(decision["probability"], abs=1e-5)
                continue
            probabilities = decision["probabilities"]
            if answer["type"] == "score":
                assert answer["score"] == pytest.approx(decision["expected"], abs=1e-5)
                probabilities = dict(enumerate(probabilities))
            expected = {str(option): probability for option, probability in probabilities.items()}
            assert answer["probabilities"] == pytest.approx(expected, abs=1e-5)
            assert len(set(probabilities.values())) > 1  # The options are told apart.


@pytest.mark.parametrize(
    ("model_type", "one_pass"), [("bert", False), ("bert", True), ("modernbert", False), ("deberta-v2", False)]
)
def test_the_pipeline_answers_as_predict_does(model_type, one_pass, tmp_path):
    folder = save_model(tmp_path / "model", model_type)
    config = TypedQuestionsConfig(max_length=150, one_pass=one_pass, temperature={"noul": 2.0, "score": 0.5})
    config.save_pretrained(folder)
    words, rng = [word for words in WORDS.values() for word in words], random.Random(1)
    states = [" ".join(rng.choices(words, k=length)) for length in (1, 5, 20, 200)]
    states += [{"amount": 3}, [{"role": "user", "content": "good"}], "[MASK] [SEP]"]
    options = {"temperature": {"yes_no": 2.0, "score": 0.5, "choice": 1.0}, "one_pass": one_pass}
    decide = pipeline("decision", model=str(folder))
    assert type(decide.model).__name__.endswith("ForTypedQuestions")
    check_answers(decide, states, QUESTIONS, **{"options": options, "training.max_length": 150})
    # A copy that transformers saves is the same model.
    decide.save_pretrained(tmp_path / "copy")
    request = {"state": "good", "questions": FEW}
    assert pipeline("decision", model=str(tmp_path / "copy"))(request) == decide(request)


def test_only_an_import_of_bertkit_makes_transformers_answer(tmp_path):
    """Also if transformers is imported first; without bertkit, its template is an error."""
    folder = save_model(tmp_path / "model", "bert")
    write_decision_config(folder, TaskContext(load_recipe("decide"), make_tokenizer(), ()))
    request = {"state": "good", "questions": FEW}
    script = f"from transformers import pipeline\nload = lambda: pipeline('decision', model={str(folder)!r})\n"
    script += f"try: load()({request})\nexcept Exception as error: print(error)\n"
    script += f"import bertkit\nprint(load()({request})['liked'])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    error, answer = ended.stdout.splitlines()
    assert error == "a model of bertkit: run `import bertkit` before `pipeline(...)` to use it"
    assert answer == str(pipeline("decision", model=str(folder))(request)["liked"])


def test_models_of_transformers_are_loaded_as_before(tiny_model):
    with pytest.raises(ValueError, match=f"{tiny_model} is not a model of typed questions - train one"):
        AutoModelForDecision.from_pretrained(tiny_model)
    names = modeling_auto.MODEL_FOR_DECISION_MAPPING_NAMES
    assert names["qwen2"] == "JevForDecision"
    assert "qwen3" not in names


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"questions": FEW}, "a request is"),
        ({"state": None, "questions": FEW}, "None is not a state"),
        ({"state": "good", "questions": FEW, "assets": {"x": {}}}, "reads no images"),
        ({"state": "good", "questions": {"liked": {"type": "yes"}}}, "must be one of noul, choice, score, got 'yes'"),
        ({"state": "good", "questions": {"n": {"type": "noul", "instructions": "good " * 200}}}, "take .* tokens"),
        ({"state": "good", "questions": {"n": {"type": "noul", "instructions": [{"type": "image"}]}}}, "only text"),
    ],
)
def test_a_wrong_request_is_a_value_error(request_, message):
    with pytest.raises(ValueError, match=message):
        TypedQuestionsConfig().prepare_inputs(request_, make_tokenizer())
