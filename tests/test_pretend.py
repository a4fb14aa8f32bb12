"""Commands on an accelerator: no tensor lies on the wrong device, results are those of the CPU, and steps do not wait."""

from __future__ import annotations

import json

import pytest

from bertkit.pretraining.objectives import objective_names
from bertkit.recipe import load_pretrain_recipe, load_recipe, recipe_folder, recipe_names
from bertkit.tasks import task_names
from tests.kills import Zygote

FEW = {
    "data.source": "demo",
    "training.batch_size": 4,
    "training.fast_dropout": False,  # the CPU then draws what other devices do
    "training.precision": "fp32",
    "training.steps": 2,
    "training.unpad": False,  # and has the same batches
}
NEW = {"model": None, "tokenizer": "demo", "size": "tiny"}
OWN = {
    "wsd": {"data.limit": 300},  # rows of a few words each
    "wsd-nearest": {"data.limit": 300},
    "albert": NEW,
    "bert": {"training.short_length": None, "data.validation_share": 0.1},
    "distilbert": {"training.short_length": None},
    "electra": {
        **NEW,
        "size": "electra-small",
        "options.generator_size": 0.5,
        "model_options": {"num_hidden_layers": 2, "embedding_size": 16, "hidden_size": 32},
    },
    "roberta": NEW,
    "tinybert": {"options.student_size": None, "options.student_layers": 1},
}
"""Recipe -> what it needs to be trained for two steps."""

PRETRAINING = sorted(file.stem for file in (recipe_folder() / "pretrain").glob("*.yaml"))


def first_of_each(names, recipes) -> list[str]:
    return list({owner: name for name, owner in reversed([*zip(names, recipes, strict=True)])}.values())


FAMILIES = first_of_each(recipe_names(), [load_recipe(name).task for name in recipe_names()])
OBJECTIVES = first_of_each(PRETRAINING, [load_pretrain_recipe(name).objective for name in PRETRAINING])


@pytest.fixture(scope="session")
def device_zygote(tmp_path_factory):
    zygote = Zygote(tmp_path_factory.mktemp("cache"), modules=["--pretend", "pretend.checks"])
    yield zygote
    zygote.close()


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """A random BERT of two small layers with the tokenizer of the demo model."""
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    from bertkit.storage.hub import find_model

    folder = tmp_path_factory.mktemp("small")
    tokenizer = AutoTokenizer.from_pretrained(find_model("demo"))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def train(device_zygote, small_model, tmp_path_factory):
    """Train by recipes on the CPU and on the device, and return what each came to on both."""

    def case(name: str) -> str:
        changes = {"model": str(small_model), **FEW, **OWN.get(name, {})}
        if name in PRETRAINING:
            changes = {"data.limit": 100, "training.max_length": 64, "training.evaluate_every": 2, **changes}
            return json.dumps({"command": "pretrain", "recipe": name, "changes": changes})
        return json.dumps({"command": "finetune", "recipe": name, "changes": {"data.limit": 8, **changes}})

    def run(names, device):
        folder = tmp_path_factory.mktemp("trained")
        out = folder / "out.txt"
        cases = [case(name) for name in names]
        (code,) = device_zygote.answer(
            folder, cases, function="pretend.checks.train", device=device, out=str(out), err=str(out)
        )
        assert code == 0, out.read_text()
        return {name: json.loads((folder / f"{name}.json").read_text()) for name in names}

    return lambda names: (run(names, None), run(names, "pretend"))


def test_every_family_and_objective_is_walked():
    assert {load_recipe(name).task for name in FAMILIES} == {*task_names()} - {"zero_shot"}
    assert {load_pretrain_recipe(name).objective for name in OBJECTIVES} == {*objective_names()}


def check(names, train):
    on_cpu, on_device = train(names)
    for name in names:
        for what in ("log", "scores"):
            assert flat(on_device[name][what]) == pytest.approx(
                flat(on_cpu[name][what]), rel=1e-3, abs=1e-5, nan_ok=True
            ), name
    waits = {name: result["steps"][1] for name, result in on_device.items() if len(result["steps"]) > 1}
    assert not any(on_cpu[name]["steps"][1] for name in waits)
    for name in names:
        print(name, waits.get(name))


def flat(found):
    entries = found if isinstance(found, list) else [found]
    return {
        f"{number} {key}": value
        for number, entry in enumerate(entries)
        for key, value in entry.items()
        if value is not None
    }


def test_two_steps_of_every_family_and_objective(train):
    check([*FAMILIES, *OBJECTIVES], train)
