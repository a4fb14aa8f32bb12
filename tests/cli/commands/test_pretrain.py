"""What the commands of `bertkit pretrain` print and refuse."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import typer

from bertkit.cli.commands.pretrain import print_estimate, print_pretrained, print_tokenizer
from bertkit.cli.main import app
from bertkit.modeling.sizes import read_sizes
from bertkit.recipe import recipe_names
from bertkit.workflows.pretrain_plan import PretrainEstimate
from bertkit.workflows.pretrain_results import PretrainResult
from bertkit.workflows.tokenizer import TokenizerReport

REPORT = TokenizerReport("tok", "bpe", False, 400, 2000, 16, 240, 1.35, 0.808, 0.0012, 22.1, 0.668, ["too little text"])


def test_what_the_tokenizer_does_to_held_out_text(capsys):
    print_tokenizer(REPORT)
    assert capsys.readouterr().out.splitlines() == [
        "tok: bpe, cased, 400 tokens",
        "  on 16 held-out of 2,000 documents (240 words):",
        "  tokens per word (fertility)    1.350",
        "  single-token words             80.8%",
        "  unknown tokens                0.120%",
        "  tokens per document             22.1",
        "  unused vocabulary              66.8%",
        "  warning: too little text",
    ]


def test_every_size_has_a_line(run):
    lines = run("pretrain", "sizes").out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(read_sizes())
    assert max(map(len, lines)) <= 80


def test_json_has_the_shape_of_a_size(run):
    printed = {size["size"]: size for size in json.loads(run("pretrain", "sizes", "--json").out)["sizes"]}
    assert printed["base"] == {
        "size": "base",
        "layers": 12,
        "hidden": 768,
        "heads": 12,
        "model": "bert",
        "vocabulary": 30_522,
        "parameters": 109_482_240,
    }


MODEL = {
    "role": "teacher",
    "parameters": 690_529,
    "disk_bytes": 2_800_000,
    "row_seconds": 0.0025,
    "rows_per_second": 378.9,
}


PRETRAINED = PretrainResult(
    recipe="mlm",
    model="tiny",
    objective="mlm",
    scores={"loss": 5.7959, "perplexity": 328.945},
    baselines={"token frequencies": {"perplexity": 129.682}},
    parameters=530_960,
    steps=4,
    tokens=129_401,
    seconds=200.0,
    corpus={"validation": {"documents": 16}},
    folder="runs/mlm",
    compared_models=[MODEL],
    warnings=["Look at the text."],
)


ESTIMATE = PretrainEstimate(
    "mlm", 530_960, 307, 4, 129_401, 3.0, 43_499.0, 1916.0, 0.1, {"train": {"documents": 16}}, "runs/mlm", 12_000_000
)


def test_a_result_has_scores_beside_the_baseline_and_what_to_do_next(capsys):
    print_pretrained(PRETRAINED)
    assert capsys.readouterr().out.splitlines() == [
        "mlm: tiny, 530,960 parameters, 4 steps, 129,401 tokens in 3 min 20 s",
        "  held-out documents           16",
        "  loss                     5.7959",
        "  perplexity              328.945  baseline 129.682 (token frequencies)",
        "  teacher and student on this machine",
        "    model    parameters   MB  ms/block  blocks/s",
        "    teacher     690,529  2.8      2.50       379",
        "  Look at the text.",
        "",
        "Next:",
        "  open runs/mlm/report.html",
        "  bertkit push runs/mlm YOUR_NAME/mlm",
    ]


def test_only_a_model_that_has_learned_something_is_to_be_fine_tuned(capsys):
    for perplexity, is_advised in ((129.7, False), (129.6, True)):
        print_pretrained(replace(PRETRAINED, scores={"perplexity": perplexity}))
        assert ("  bertkit finetune cola --model runs/mlm\n" in capsys.readouterr().out) == is_advised


def test_the_chance_level_of_pairs_stands_beside_their_accuracy(capsys):
    chance = {"more frequent label": {"pair_accuracy": 0.513}, "segment lengths": {"pair_accuracy": 0.505}}
    result = replace(PRETRAINED, scores={"pair_accuracy": 0.74}, baselines={**PRETRAINED.baselines, **chance})
    print_pretrained(result)
    assert capsys.readouterr().out.splitlines()[2:7] == [
        "  pair_accuracy            0.7400  baseline  0.5130 (more frequent label)",
        "  baselines",
        "    baseline             perplexity  pair_accuracy",
        "    token frequencies       129.682",
        "    more frequent label                     0.5130",
    ]


def test_an_estimate_counts_steps_or_the_tokens_of_a_budget(capsys):
    print_estimate(ESTIMATE)
    out = capsys.readouterr().out
    assert "steps    4: 129,401 tokens in 3.0 s\n" in out
    assert "memory   1,916 MB at peak\n" in out
    assert max(map(len, out.splitlines())) <= 80
    print_estimate(replace(ESTIMATE, steps=None, memory_mb=None))
    out = capsys.readouterr().out
    assert "budget   3.0 s: 129,401 tokens\n" in out
    assert "memory" not in out


def test_a_word_that_names_no_command_is_a_recipe(run):
    for arguments in (["pretrain", "mlmm"], ["pretrain", "recipe", "mlmm"]):
        ended = run(*arguments)
        assert (ended.code, ended.last) == (2, "error: no recipe is called 'mlmm' - did you mean mlm?")


def test_the_help_lists_the_recipes_and_what_they_are_about(run):
    commands, recipes = run("pretrain", "--help").out.split("\nRecipes:\n")
    assert re.findall(r"^  (\w+)  ", recipes, flags=re.M) == recipe_names("pretrain")
    assert "Devlin et" in recipes and "  sizes  " in commands


def test_the_shell_completes_commands_and_recipes():
    group = typer.main.get_command(app).commands["pretrain"]
    context = group.make_context("pretrain", [], resilient_parsing=True)
    assert [item.value for item in group.shell_complete(context, "s")] == ["sizes", "span"]
    assert [item.value for item in group.shell_complete(context, "m")] == ["mlm"]
