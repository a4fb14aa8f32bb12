"""Pages that are given away name no path of the machine, wherever the user keeps models and data.

Each command that writes a page is in the table, so that a new one is asked for on the day it is added.
"""

from __future__ import annotations

import shlex
import shutil

import pytest

from tests.cli.test_dry_runs import begin
from tests.cli.test_families import every_command, find_command
from tests.kills import slow_unless
from tests.workflows.test_killed_outputs import RUNS

PAGES = {
    "finetune": "finetune classify --model {0}/model --data {0}/data --epochs 1 --output {0}/out",
    "finetune seeds": "finetune classify --model {0}/model --data {0}/data --epochs 1 --seeds 2 --output {0}/out",
    "distill": "distill classify --teacher {0}/teacher --student-layers 1 --data {0}/data --epochs 1 --output {0}/out",
    "sweep": "sweep classify --model {0}/model --data {0}/data --epochs 1 --space training.seed=1,2 --output {0}/out",
    "pretrain recipe": "pretrain recipe mlm --model {0}/model --data {0}/text.txt --steps 2 --output {0}/out",
    "compare": "compare {0}/teacher {0}/again --output {0}/page.html",
    "errors": "errors {0}/teacher --output {0}/page.html",
    "explain": "explain {0}/teacher --text 'a good film' --output {0}/page.html",
    "attention show": "attention show 'a good film' --model {0}/teacher --output {0}/page.html",
    "attention heads": "attention heads {0}/data/train.csv --model {0}/teacher --output {0}/page.html",
    "calibrate": "calibrate {0}/teacher --data {0}/data --on-overlap mark",
    "map": "map {0}/data/train.csv --model {0}/model --label label --output {0}/page.html",
    "probe": "probe classify --model {0}/model --data {0}/data --output {0}/page.html",
}
"""A command, or one with a word that tells its case -> the command line; {0} is a folder with what it reads."""
NO_PAGE = {"ablate", "glue", "rerun"}
"""Commands whose pages are those of `finetune`, `compare` and `pretrain`."""


def writes_page(name: str) -> bool:
    options = [option.help or "" for option in find_command(name).params if "--output" in option.opts]
    return any("page" in text.lower() for text in options)


def test_every_command_that_writes_a_page_is_in_the_table():
    covered = {max((name for name in every_command() if f"{case} ".startswith(f"{name} ")), key=len) for case in PAGES}
    pages = {name for name in every_command() if writes_page(name)} | RUNS | {"calibrate"}
    assert covered | NO_PAGE == pages


@pytest.mark.parametrize("case", slow_unless(["finetune", "errors"], PAGES))
def test_a_page_names_no_path_of_the_machine(case, run, tiny_model, trained, tmp_path, timed_once):
    folder = tmp_path / "secret"
    folder.mkdir()
    begin(folder, tiny_model, trained)
    shutil.copytree(folder / "teacher", folder / "again")
    ended = run(*shlex.split(PAGES[case].format(folder)))
    assert ended.code == 0, ended.err
    begun = {folder / run / name for run in ("teacher", "again") for name in ("report.html", "README.md")}
    pages = [file for file in folder.rglob("*") if file.suffix in (".html", ".md", ".svg") and file not in begun]
    assert pages
    for page in pages:
        lines = [line for line in page.read_text(encoding="utf-8").split("\n") if str(folder) in line]
        assert not lines, (page, lines)
