"""On an accelerator, no tensor lies on the wrong device, results are those of the CPU, and steps do not wait for it.

The accelerator is a pretended one: see tests/pretend/. On a machine with a GPU, it is that one instead:

    TEST_DEVICE=cuda python -m pytest -m "" tests/test_pretend.py
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shlex
import shutil

import pytest

from bertkit.pretraining.objectives import objective_names
from bertkit.recipe import load_pretrain_recipe, load_recipe, recipe_folder, recipe_names
from bertkit.tasks import task_names
from tests.analysis.test_explanations import RECIPES
from tests.cli.test_families import COMMANDS, command_of, every_command, fill, fine_tune_twice

DEVICE = os.environ.get("TEST_DEVICE", "pretend")
WHERE = {
    "cpu": {"environment": {"BERTKIT_DEVICE": "cpu"}},
    "pretend": {"device": "pretend"},
    "cuda": {"device": "pretend.gpu", "environment": {"BERTKIT_DEVICE": "cuda"}},
}
"""Device -> what the process of a command is told."""
only_pretend = pytest.mark.skipif(DEVICE != "pretend", reason="of the pretended device alone")

FEW = {
    "data.source": "demo",
    "training.batch_size": 4,
    "training.fast_dropout": False,  # the CPU then draws what other devices do
    "training.precision": "fp32",
    "training.steps": 2,
    "training.log_every": 50,  # reading a loss waits
    "training.unpad": False,  # and has the same batches
}
NEW = {"model": None, "tokenizer": "demo", "size": "tiny"}
OWN = {
    "wsd": {"data.limit": 300},
    "wsd-nearest": {"data.limit": 300},
    "albert": NEW,
    "bert": {"training.short_length": None, "data.validation_fraction": 0.1},
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
"""Recipe -> what else it needs to be trained for two steps."""

SENTENCE = "1\tcats\t_\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tran\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"
WORDS = ("cat", "dog", "cow", "hen")
PRETRAINING = sorted(file.stem for file in (recipe_folder() / "pretrain").glob("*.yaml"))


def first_of_each(names, owners) -> list[str]:
    return list(dict(zip(reversed(owners), reversed(names), strict=True)).values())


FAMILIES = first_of_each(recipe_names(), [load_recipe(name).task for name in recipe_names()])
OBJECTIVES = first_of_each(PRETRAINING, [load_pretrain_recipe(name).objective for name in PRETRAINING])
QUICK = ["cola", "ner", "mlm", "electra"]
"""One that classifies texts, one that tags words, and an objective of one model and of two."""

BESIDE = {
    "ablate": "mlm --data demo --tokenizer demo --size tiny --steps 2 --limit 60 --space objective=mlm,clm "
    "--set training.max_length=64 --set training.batch_size=4 --output made",
    "attention heads": "words.conllu --model demo",
    "bench": "{recipe} --model demo --data demo --steps 2",
    "doctor": "",
    "fill-mask": "'the [MASK] is here' --model demo",
    "glue": "--tasks cola --model demo --data demo --limit 16 --set training.steps=2 --output made",
    "predict zero-shot": "classify --zero-shot --model demo --text 'the cat is here' --set labels=[cat,dog]",
    "probe": "{recipe} --model demo --data demo --limit 16",
    "search add": "index {texts}",
    "search query": "index 'a cat' -k 2",
    "sweep": "{recipe} --model demo --data demo --limit 16 --space training.learning_rate=1e-4,2e-4 "
    "--set training.steps=2 --output made",
}
"""Commands that compute and read no run, as `COMMANDS` has those that do."""
NO_DEVICE = {
    *("check", "encoders", "finetune", "push", "serve", "search delete", "search eval", "search passages"),
    *("recipes guess", "recipes list", "recipes show", "recipes copy", "recipes check"),
    *("pretrain tokenizer", "pretrain sizes", "pretrain recipe"),
}
"""Commands that compute nothing on a device, or what trainings and `search build` do."""


@pytest.fixture
def call(zygote, tmp_path_factory):
    def run(function, *arguments, device=DEVICE):
        folder = tmp_path_factory.mktemp("called")
        out = folder / "out.txt"
        (code,) = zygote.answer(
            folder,
            [*arguments],
            function=f"pretend.checks.{function}",
            out=str(out),
            err=str(out),
            **WHERE[device],
        )
        assert code == 0, out.read_text()
        return folder

    return run


@only_pretend
def test_the_device_is_as_strict_as_a_gpu(call):
    call("check_strictness")


@only_pretend
def test_what_the_cpu_knows_of_a_batch_is_not_asked_of_the_device(call):
    call("check_host_copies")


# --- Training ---


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """A random BERT of two small layers with the tokenizer of the demo model; a GPU draws other dropout."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    from bertkit.storage.hub import find_model

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("small")
    tokenizer = AutoTokenizer.from_pretrained(find_model("demo"))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    if DEVICE != "pretend":
        sizes |= {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def case_of(name: str, model, **changes) -> str:
    changes = {"model": str(model), **FEW, **OWN.get(name, {}), **changes}
    if name in PRETRAINING:
        few = {"data.limit": 60, "training.max_length": 64, "training.evaluate_every": 2}
        return json.dumps({"command": "pretrain", "recipe": name, "changes": {**few, **changes}})
    return json.dumps({"command": "finetune", "recipe": name, "changes": {"data.limit": 8, **changes}})


def numbers_of(entries) -> dict[str, float]:
    flat = {f"{number} {key}": value for number, entry in enumerate(entries) for key, value in entry.items()}
    return {name: value for name, value in flat.items() if value is not None}


@pytest.fixture
def check_training(call, small_model, record_testsuite_property):
    """Train by recipes on both; they come to the same, and a step between two logs never waits for the device."""

    def check(names, **changes):
        cases = [case_of(name, small_model, **changes) for name in names]
        found = [call("train", *cases, device=device) for device in ("cpu", DEVICE)]
        for name in names:
            on_cpu, on_device = (json.loads((folder / f"{name}.json").read_text()) for folder in found)
            for what in (lambda trained: trained["log"], lambda trained: [trained["scores"]]):
                expected = pytest.approx(numbers_of(what(on_cpu)), rel=1e-3, abs=1e-5, nan_ok=True)
                assert numbers_of(what(on_device)) == expected, name
            waits = [*itertools.chain(*on_device["steps"][1:])]
            record_testsuite_property(f"waits of a step of {name}", waits)
            print(f"{name}: {waits}")  # noqa: T201 - `pytest -s` shows the table
            assert not waits, name

    return check


def test_every_family_and_objective_is_trained():
    assert {load_recipe(name).task for name in FAMILIES} == {*task_names()} - {"zero_shot"}
    assert {load_pretrain_recipe(name).objective for name in OBJECTIVES} == {*objective_names()}


def test_two_steps_of_some_families_and_objectives(check_training):
    check_training(QUICK)


@pytest.mark.slow
def test_two_steps_of_every_other_family_and_objective(check_training):
    check_training([name for name in [*FAMILIES, *OBJECTIVES] if name not in QUICK])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in [*recipe_names(), *PRETRAINING] if name not in FAMILIES + OBJECTIVES + QUICK]
)
def test_two_steps_of_every_other_recipe(check_training, name):
    check_training([name])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["windows_mean", "hierarchical"])
def test_two_steps_of_texts_in_windows(check_training, way):
    check_training(["classify"], **{"options.long_text": way, "training.max_length": 16})


# --- Commands ---


@pytest.fixture(scope="session")
def cola_runs(zygote, tmp_path_factory):
    """Two runs of the demo model, trained on the CPU, and an index of texts by the first."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        command = f"finetune cola --model demo --data demo --limit 24 --seed {seed} --set training.epochs=1 "
        command += f"--set training.batch_size=8 --set training.precision=fp32 --output run{seed}"
        code, text = zygote.run(folder, shlex.split(command), BERTKIT_DEVICE="cpu")
        assert code == 0, text
    (folder / "texts.txt").write_text("".join(f"the {word} is here\n" for word in WORDS))
    build = shlex.split("search build texts.txt --model run1 --output index")
    code, text = zygote.run(folder, build, BERTKIT_DEVICE="cpu")
    assert code == 0, text
    return folder


def test_every_command_is_tried_or_computes_nothing_else():
    assert {command_of(case) for case in (*COMMANDS, *BESIDE)} | NO_DEVICE == every_command()


@pytest.mark.slow
@pytest.mark.parametrize("case", [*COMMANDS, *(name for name in BESIDE if name not in COMMANDS)])
def test_a_command_ends_on_the_device_as_on_the_cpu(case, zygote, cola_runs, tmp_path):
    codes, texts = [], []
    for device in ("cpu", DEVICE):
        folder = tmp_path / device
        shutil.copytree(cola_runs, folder)
        shutil.copytree(folder / "run2", folder / "copied")
        (folder / "rows.jsonl").write_text(
            "".join(json.dumps({"sentence": f"the {word} is here"}) + "\n" for word in WORDS)
        )
        (folder / "words.conllu").write_text(SENTENCE)
        given = {"run": "run1", "again": "run2", "recipe": "cola", "model": "demo", "copied": "copied"}
        arguments = {**COMMANDS, **BESIDE}[case].format(rows="rows.jsonl", texts="texts.txt", **given)
        out = folder / "out.txt"
        command = [*command_of(case).split(), *shlex.split(arguments)]
        (code,) = zygote.answer(folder, command, out=str(out), err=str(out), **WHERE[device])
        codes.append(code)
        texts.append(out.read_text())
    assert codes[0] == codes[1], texts[1]
    assert "bertkit failed" not in texts[1]


@pytest.fixture(scope="session")
def runs_of(tmp_path_factory):
    """Return two runs of a recipe, which are trained on the CPU, once in all tests."""

    @functools.cache
    def train(name):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BERTKIT_DEVICE", "cpu")
            return fine_tune_twice(tmp_path_factory.mktemp(name), name)

    return train


ON_DISK = ("push", "runs", "serve", "tokenize")  # these read what a run says, and not its model
OF_FAMILIES = [
    case
    for case, template in {**COMMANDS, **BESIDE}.items()
    if ("{run}" in template or "{recipe}" in template) and case.split()[0] not in ON_DISK
]
"""Cases that run a model of a family, or train it."""


@pytest.mark.slow
@pytest.mark.parametrize("pair", list(itertools.product(RECIPES, OF_FAMILIES)), ids="-".join)
def test_a_command_on_a_run_of_any_family_ends_as_on_the_cpu(pair, zygote, runs_of, tmp_path):
    """What works on the device works on the CPU, as other tests show; what is refused is refused there in one line."""
    name, case = pair
    ended = []
    for device in (DEVICE, "cpu"):
        folder = tmp_path / device
        folder.mkdir()
        arguments = fill({**COMMANDS, **BESIDE}[case], folder, name, runs_of(name))
        out, err = folder / "out.txt", folder / "err.txt"
        command = [*command_of(case).split(), *arguments]
        (code,) = zygote.answer(folder, command, out=str(out), err=str(err), **WHERE[device])
        text = err.read_text()
        assert code != 1, f"{text}\n{out.read_text()}"
        if code == 0 or "machine.device" in text:  # scores of another device may differ, as `rerun` then says
            break
        ended.append(
            (code, [line.replace(str(folder), "") for line in text.splitlines() if line.startswith("error: ")])
        )
    assert len(ended) != 1, ended
    assert not ended or ended[0] == ended[1]
