"""`bertkit pretrain`: learns, resumes bit by bit, tells what it will take, and refuses what cannot be."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from pathlib import Path

import pytest

from bertkit.pretraining.objectives import objective_names
from bertkit.recipe import load_pretrain_recipe
from bertkit.workflows.pretrain import _find_warnings
from tests.kills import check_kill, losses_of, slow_unless, weights_of

DEMO = Path(__file__).parents[2] / "bertkit" / "data" / "demo" / "model"
SIZE = ["--size", "tiny", "--set", "model_options={hidden_size: 32, num_attention_heads: 2, intermediate_size: 64}"]
QUICK = ["--batch-size", "8", "--max-length", "32", "--set", "training.precision=fp32", "--limit", "200"]
QUICK += ["--set", "training.eval_blocks=20", "--set", "training.log_every=2"]


def arguments(*more: object, recipe: str = "mlm", steps: int = 12) -> list[str]:
    command = ["pretrain", recipe, "--data", "demo", "--tokenizer", str(DEMO), *SIZE, *QUICK, "--output", "run"]
    return [*command, "--steps", str(steps), *map(str, more)]


@pytest.mark.slow
def test_a_model_learns_more_than_frequencies(run):
    shape = ["--set", "model_options.hidden_size=64", "--set", "model_options.initializer_range=0.05"]
    ended = run(*arguments(*shape, "--learning-rate", "5e-3", "--batch-size", "16", "--limit", 1500, steps=240))
    assert ended.code == 0, ended.err
    result = json.loads(Path("run/run.json").read_text())["result"]
    assert result["scores"]["loss"] < result["baselines"]["token frequencies"]["loss"] - 0.5
    assert result["scores"]["perplexity"] == pytest.approx(math.exp(result["scores"]["loss"]))
    assert "(token frequencies)" in ended.out
    assert "bertkit finetune cola --model run" in ended.out
    assert (Path("run") / "report.html").is_file()
    assert "Held-out text" in (Path("run") / "README.md").read_text()


def test_a_finished_run_says_so_and_gives_its_result(run):
    first = run(*arguments("--json", steps=4))
    again = run(*arguments("--json", steps=4))
    assert "already finished" in again.err
    assert json.loads(first.out) == json.loads(again.out)


def test_a_model_that_is_no_better_than_token_frequencies_says_so():
    recipe = load_pretrain_recipe("mlm", {"model": "m", "data.source": "d"})
    baselines = {"token frequencies": {"perplexity": 1000.0}}
    unbeaten = "The perplexity of 1,200.0 is no better than the 1,000.0 of a baseline (token frequencies). "
    bad = {"perplexity": 1200.0}
    assert _find_warnings(recipe, 10**6, bad, baselines, 63) == [
        f"{unbeaten}Try more --steps, another --learning-rate, or more text."
    ]
    assert _find_warnings(recipe, 10**6, {"perplexity": 900.0}, baselines, 63) == []
    short = load_pretrain_recipe("mlm", {"model": "m", "data.source": "d", "training.budget": "5m"})
    assert _find_warnings(short, 10**6, bad, baselines, 63) == [
        f"{unbeaten}Try a smaller --batch-size (5m made 63 steps of 256 blocks), a longer --budget, or another "
        "--learning-rate."
    ]
    changes = {"model": "m", "data.source": "d", "training.budget": "5m", "training.batch_size": 8}
    smallest = load_pretrain_recipe("mlm", changes)
    assert _find_warnings(smallest, 10**6, bad, baselines, 63) == [
        f"{unbeaten}Try a longer --budget, or another --learning-rate."
    ]


@pytest.fixture(scope="module")
def finished(zygote, tmp_path_factory) -> Path:
    """A run of four steps, which tests copy."""
    folder = tmp_path_factory.mktemp("finished")
    code, text = zygote.run(folder, arguments(steps=4))
    assert code == 0, text
    return folder / "run"


def test_training_goes_on_from_a_checkpoint(run, finished):
    shutil.copytree(finished, "run")
    settings = ["--data", "demo", "--model", "run", *QUICK, "--steps", 3, "--output", "more"]
    settings += ["--set", "training.evaluate_every=3"]  # the last step is the only one to keep
    ended = run("pretrain", "mlm", *settings)
    assert ended.code == 0, ended.err
    assert "tied" not in ended.err
    before, after = weights_of(Path("run")), weights_of(Path("more"))
    assert before.keys() == after.keys()
    assert before != after


def test_workers_change_nothing(run):
    assert run(*arguments(steps=6)).code == 0
    assert run(*arguments("--workers", 2, "--output", "two", steps=6)).code == 0
    assert weights_of(Path("run")) == weights_of(Path("two"))


@pytest.mark.slow
def test_accumulation_changes_nothing(run):
    still = ["--set", "model_options.hidden_dropout_prob=0", "--set", "model_options.attention_probs_dropout_prob=0"]
    for micro_batches in (1, 4):
        more = [*still, "--set", f"training.gradient_accumulation={micro_batches}", "--output", f"run{micro_batches}"]
        assert run(*arguments(*more, steps=6)).code == 0
    losses = [[entry["loss"] for entry in losses_of(Path(name)) if "loss" in entry] for name in ("run1", "run4")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_another_seed_is_another_run(run, finished):
    shutil.copytree(finished, "run")
    assert run(*arguments("--seed", 7, "--output", "other", steps=4)).code == 0
    assert weights_of(Path("run")) != weights_of(Path("other"))
    ended = run(*arguments("--seed", 7, steps=4))
    assert ended.code == 2
    assert "the folder holds another run (recipe.training.seed: 42 there, 7 requested)" in ended.last


@pytest.mark.parametrize("recipe", objective_names())
def test_every_objective_has_a_recipe(recipe):
    names = {load_pretrain_recipe(file.stem).objective for file in Path("recipes/pretrain").glob("*.yaml")}
    assert recipe in names


@pytest.mark.parametrize("workers", slow_unless([0], [0, 2]))
@pytest.mark.parametrize("step", slow_unless([8], [3, 8]))
def test_a_kill_changes_nothing(zygote, tmp_path_factory, step, workers):
    command = arguments("--workers", workers, "--set", "training.evaluate_every=5")
    fault = {"function": "transformers.trainer.Trainer.training_step", "call": step}
    check_kill(zygote, tmp_path_factory.mktemp, command, fault)


OWN = {
    "span": [],
    "bert": [
        "--set",
        "data.validation_fraction=0.1",
        "--set",
        "training.short_length=16",
        "--set",
        "training.dupe_factor=2",
    ],
    "albert": [],
    "electra": ["--size", "electra-small", "--set", "model_options.embedding_size=16"],
}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("recipe", OWN)
def test_a_kill_changes_nothing_for_any_objective(zygote, tmp_path_factory, recipe, workers):
    more = ["--workers", workers, "--set", "training.evaluate_every=4", *OWN[recipe]]
    if recipe == "electra":
        more += ["--set", "model_options.num_hidden_layers=2", "--set", "options.generator_size=0.5"]
    if recipe == "albert":
        more += ["--size", "albert-base", "--set", "model_options.num_hidden_layers=2"]
    step = random.Random(f"{recipe}/{workers}").randint(2, 11)
    fault = {"function": "transformers.trainer.Trainer.training_step", "call": step}
    check_kill(zygote, tmp_path_factory.mktemp, arguments(*more, recipe=recipe), fault)


@pytest.mark.slow
def test_a_kill_changes_nothing_for_a_narrower_student(zygote, tmp_path_factory):
    narrow = "options.student_options={hidden_size: 24, num_attention_heads: 4, intermediate_size: 48}"
    student = ["--set", "options.student_size=tiny", "--set", narrow, "--set", "training.evaluate_every=4"]
    command = ["distill", "tinybert", "--teacher", "demo", "--data", "demo", *QUICK, *student, "--output", "run"]
    fault = {"function": "transformers.trainer.Trainer.training_step", "call": 6}
    check_kill(zygote, tmp_path_factory.mktemp, [*command, "--set", "training.steps=12"], fault)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_named_and_the_same_command_goes_on(zygote, tmp_path):
    command = arguments("--workers", 1)
    fault = {"function": "bertkit.training.pretrain_batches.PretrainBatches.__getitems__", "call": 3}
    code, text = zygote.run(tmp_path, command, fault)
    assert code == 6
    last = text.splitlines()[-1]  # torch notices it in one of two ways
    assert re.match(r"error: DataLoader worker .* (is killed by signal: Killed|exited unexpectedly) - ", last)
    assert zygote.run(tmp_path, command)[0] == 0


@pytest.mark.slow
def test_short_blocks_come_first(run):
    settings = ["training.short_length=16", "training.short_fraction=0.5"]
    ended = run(*arguments(*(word for setting in settings for word in ("--set", setting)), "--json", steps=8))
    whole = run(*arguments("--output", "whole", "--json", steps=8))
    short, long = (json.loads(printed.out)["tokens"] for printed in (ended, whole))
    assert short == pytest.approx(0.75 * long, rel=0.1)


@pytest.mark.parametrize(
    ("command", "code", "line"),
    [
        (["mlm", "--data", "demo"], 2, "error: a new model needs a tokenizer - add --tokenizer DIR"),
        (["mlmm"], 2, "error: no recipe is called 'mlmm' - did you mean mlm"),
        (["mlm", "--budget", "soon"], 2, "error: training.budget = 'soon' is wrong: must be a time such as 90s"),
        (["mlm", "--model", "demo", "--tokenizer", "x"], 2, "error: a checkpoint brings its own tokenizer"),
        (["mlm", "--model", "demo", "--data", "nothing.txt"], 3, "error: no such"),
        (["mlm", "--model", "demo", "--data", "demo", "--max-length", "500"], 2, "error: training.max_length 500"),
        (["mlm", "--set", "options.mask_rates=1"], 2, "error: unknown key 'options.mask_rates' - did you mean"),
        (["mlm", "--set", "options.mask_rate=2"], 2, "error: options.mask_rate is 2 - give a number from 0.01 to 0.9"),
        (["mlm", "--set", "training.short_length=500"], 2, "error: training"),
        (
            ["mlm", "--data", "demo", "--tokenizer", str(DEMO), "--size", "deberta-v3-small"],
            2,
            "error: a model of type deberta-v2 cannot keep documents of a block apart - add --set training.packing",
        ),
    ],
)
def test_mistakes_end_in_one_line(run, command, code, line):
    ended = run("pretrain", *command)
    assert (ended.code, ended.last[: len(line)]) == (code, line)
    assert not Path("runs").exists()
