"""Every command that takes a run x every task family: a pair works, or is refused in one line."""

from __future__ import annotations

import functools
import json
import shlex
import shutil
from pathlib import Path

import pytest
import typer

from bertkit.cli.main import app as cli
from bertkit.errors import BertkitError
from bertkit.recipe import load_recipe
from bertkit.server.app import create_app
from bertkit.tasks import task_names
from tests.analysis.test_explanations import RECIPES, fine_tune
from tests.kills import slow_unless

FEW = "--data demo --limit 24"
COMMANDS = {
    "calibrate": f"{{run}} {FEW} --on-overlap mark",
    "compare": "{run} {again}",
    "errors": "{run}",
    "eval": f"{{run}} {FEW} --on-overlap mark",
    "eval output": f"{{run}} {FEW} --on-overlap mark --output scored",
    "explain": "{run} --errors 2 --integration-steps 16",
    "predict": "{run} {rows}",
    "rerun": "{run} --output again",
    "prune": f"{{run}} {FEW} --output pruned --layers 1",
    "export": f"{{run}} {FEW} --output exported",
    "quantize": f"{{run}} {FEW} --output quantized --sample 4",
    "package": "{run} --output packaged",
    "distill": f"{{recipe}} --teacher {{run}} --model demo {FEW}",
    "embed": "--model {run} --text cat",
    "similar": "cat dog --model {run}",
    "map": "{texts} --model {run} --output map.html",
    "cluster": "{texts} --model {run} --clusters 2",
    "dedup": "{texts} --model {run} --threshold 0.9",
    "search build": "{texts} --model {run} --output index",
    "test": "{run} --limit 4",
    "tokenize": "cat --model {run}",
    "fill-mask": "'a [MASK]' --model {run}",
    "attention show": "cat --model {run}",
    "push": "{run} me/run --dry-run",
    "doctor": "{run}",
    "runs list": "{run}",
    "runs show": "{run}",
    "runs table": "{run} {again}",
    "runs rm": "{copied} --yes",
}
"""A command, or one with a word that tells its case -> its arguments."""

OF_NO_RUN = (
    "ablate attention_heads bench check finetune glue sweep probe encoders search_add search_delete "
    "search_query search_eval search_passages pretrain_tokenizer pretrain_sizes pretrain_recipe "
    "recipes_guess recipes_list recipes_show recipes_copy recipes_check serve"
)
"""Commands that read no run, read it as any folder of a model, or do not end (`serve`)."""

QUICK = [("squad2", name) for name in ("errors", "explain", "runs show")]


def every_command() -> set[str]:
    def walk(group, before):
        for name, command in group.commands.items():
            yield from walk(command, f"{before}{name} ") if hasattr(command, "commands") else [f"{before}{name}"]

    return set(walk(typer.main.get_command(cli), ""))


def find_command(name: str) -> typer.core.TyperCommand:
    found = typer.main.get_command(cli)
    for part in name.split():
        found = found.commands[part]
    return found


def command_of(case: str) -> str:
    return max((name for name in every_command() if f"{case} ".startswith(f"{name} ")), key=len)


def fine_tune_twice(folder: Path, name: str) -> tuple[Path, Path]:
    """Fine-tune the demo model by a recipe with two seeds, and return both runs."""
    for seed in (1, 2):
        changes = {"data.limit": 300 if name == "wsd" else 24, "training.seed": seed}
        fine_tune(name, folder / str(seed), **changes)
    return folder / "1" / "run", folder / "2" / "run"


def fill(template: str, folder: Path, name: str, runs: tuple[Path, Path]) -> list[str]:
    """Return the arguments of a case for two runs of a recipe, with the rows and texts that it reads in a folder."""
    run, again = runs
    records = [json.loads(line) for line in (run / "predictions.jsonl").read_text().split("\n")[:4] if line]
    rows, texts = folder / "rows.jsonl", folder / "texts.txt"
    rows.write_text("".join(json.dumps(record) + "\n" for record in records))
    texts.write_text("".join(f"the {word} is here\n" for word in ("cat", "dog", "cow", "hen")))
    copied = shutil.copytree(again, folder / "copied", ignore=shutil.ignore_patterns("*.safetensors"))
    given = {"copied": copied, "run": run, "again": again, "recipe": name, "rows": rows, "texts": texts}
    return shlex.split(template.format(**given))


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """Return the two runs of a recipe, which are trained once in all tests."""
    return functools.cache(lambda name: fine_tune_twice(tmp_path_factory.mktemp(name), name))


@pytest.fixture
def arguments(tmp_path, run_of):
    return lambda name, case: [*command_of(case).split(), *fill(COMMANDS[case], tmp_path, name, run_of(name))]


def test_every_command_is_among_those_that_are_tried_or_reads_no_run():
    tried = {command_of(case) for case in COMMANDS}
    assert tried | {name.replace("_", " ") for name in OF_NO_RUN.split()} == every_command()
    assert {load_recipe(name).task for name in RECIPES} == {*task_names()} - {"zero_shot"}


def pairs(cases):
    return slow_unless(QUICK, [(name, case) for name in RECIPES for case in cases])


SCORING = [case for case in COMMANDS if case.split()[0] in ("calibrate", "compare", "errors", "eval", "explain")]


@pytest.mark.parametrize("pair", pairs(SCORING), ids="-".join)
def test_a_run_of_any_family_is_scored_and_explained_or_refused_in_one_line(pair, run, arguments, timed_once):
    ended = run(*arguments(*pair))
    check(ended)
    assert ended.code or ended.out


@pytest.mark.parametrize("name", slow_unless(["sst2"], RECIPES))
def test_a_run_of_any_family_is_served_or_refused_in_one_line(name, run_of):
    try:
        app = create_app([str(run_of(name)[0])])
    except BertkitError as error:
        assert "\n" not in str(error)
    else:
        assert app.state.service.models


@pytest.mark.parametrize("pair", pairs([case for case in COMMANDS if case not in SCORING]), ids="-".join)
def test_any_other_command_works_for_a_family_or_is_refused_in_one_line(pair, run, arguments, timed_once):
    check(run(*arguments(*pair)))


def check(ended):
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert (ended.code == 0 and not errors) or (ended.code in (2, 3, 4) and len(errors) == 1), ended.err
    assert "Traceback" not in ended.err
    assert "no option is called" not in ended.last
