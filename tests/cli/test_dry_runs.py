"""Every command with a dry run x what it may refuse: both end in the same line and exit code, and one writes nothing.

A new command with `--dry-run` is asked for on the day it is added.
"""

from __future__ import annotations

import shlex
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from bertkit.storage.files import hold_lock
from tests.cli.test_families import every_command, find_command
from tests.conftest import toy_rows, write_csv
from tests.kills import slow_unless

ROWS, TEXT = "classify --data data --epochs 1", "--data text.txt --steps 2"
COMMANDS = {
    "finetune": f"{ROWS} --model model",
    "finetune seeds": f"{ROWS} --model model --seeds 2",
    "finetune joining": f"{ROWS} --model model --seeds 2 --worker",
    "finetune several": "several.yaml --model model",
    "distill": f"{ROWS} --model model --teacher teacher",
    "distill text": "distilbert --data text.txt --teacher model --set training.steps=2",
    "sweep": f"{ROWS} --model model --space training.learning_rate=1e-4,1e-3",
    "sweep join": f"{ROWS} --model model --space training.learning_rate=1e-4,1e-3 --worker",
    "pretrain recipe": f"mlm {TEXT} --model model",
    "ablate": f"mlm {TEXT} --set model=model --space training.seed=1,2 --seeds 1 "
    "--finetune 'classify data.source=data'",
    "dedup": "data/train.csv --output clean.csv",
    "dedup vectors": "data/train.csv --output clean.csv --model model",
}
"""A command, or one with a word that tells its case -> its arguments."""
OPTIONS = {
    "a key that is unknown": "--set training.epoch=1",
    "a value that is unknown": "--set training.precision=fp17",
    "a value that transformers refuses": "--set training.extra.optim=adamww",
    "a batch that cannot be divided": "--set training.gradient_accumulation=7",
    "an output that is a file": "--output data/train.csv",
    "an output that is something else": "--output data",
    "an output below a file": "--output text.txt/out",
    "an output that another process writes": "--output held",
}
"""What a command may refuse -> options that ask for it."""
DAMAGE = {
    "no data": lambda: [shutil.rmtree("data"), Path("text.txt").unlink()],
    "data without rows": lambda: [Path("data/train.csv").write_text("text,label\n"), Path("text.txt").write_text("")],
    "no model": lambda: shutil.rmtree("model"),
    "a config that is damaged": lambda: Path("model/config.json").write_text("{"),
    "a tokenizer that is damaged": lambda: Path("model/tokenizer.json").write_text("{}"),
    "weights that are damaged": lambda: Path("model/model.safetensors").write_bytes(b"\0" * 1000),
    "a teacher that is damaged": lambda: Path("teacher/model.safetensors").write_bytes(b"\0" * 1000),
}
"""What a command may refuse -> what makes it of the files."""
MISTAKES = [*OPTIONS, *DAMAGE]


def test_every_command_with_a_dry_run_is_in_the_table():
    dry = {name for name in every_command() if any("--dry-run" in option.opts for option in find_command(name).params)}
    dry.remove("push")  # which lists files: tests/workflows/test_push.py
    assert dry == {max((name for name in dry if f"{case} ".startswith(f"{name} ")), key=len) for case in COMMANDS}


def begin(folder: Path, model: Path, teacher: Path) -> None:
    shutil.copytree(model, folder / "model")
    shutil.copytree(teacher, folder / "teacher", ignore=shutil.ignore_patterns("checkpoint-*"))
    for split, seed in (("train", 1), ("validation", 2)):
        write_csv(folder / "data" / f"{split}.csv", toy_rows(40, seed=seed))
    (folder / "text.txt").write_text("".join(f"{row['text']}\n\n" for row in toy_rows(60, seed=3)))
    tasks = "".join(f"  {name}: {{recipe: classify, data: {{source: data}}}}\n" for name in ("one", "two"))
    (folder / "several.yaml").write_text(f"name: several\ntasks:\n{tasks}training: {{epochs: 1}}\n")
    (folder / "held").mkdir()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("case", slow_unless(["finetune"], COMMANDS))
def test_a_dry_run_refuses_what_the_command_refuses(case, run, tiny_model, trained, tmp_path, monkeypatch):
    refused = set()
    mistakes = [mistake for mistake in MISTAKES if "teacher" not in mistake or "teacher" in COMMANDS[case]]
    for mistake in mistakes:
        ends = {}
        for dry in (True, False):
            folder = tmp_path / f"{dry}"
            folder.mkdir()
            begin(folder, tiny_model, trained)
            monkeypatch.chdir(folder)
            DAMAGE.get(mistake, lambda: None)()
            before = contents(folder)
            command = [
                case if case in every_command() else case.rpartition(" ")[0],
                COMMANDS[case],
                OPTIONS.get(mistake, ""),
            ]
            with ExitStack() as held:
                if OPTIONS.get(mistake) == "--output held":
                    held.enter_context(hold_lock(folder / "held/.lock"))
                    before = contents(folder)
                ended = run(*shlex.split(" ".join(command)), *(["--dry-run"] if dry else []))
                assert not dry or contents(folder) == before, mistake
            ends[dry] = ended.code, [line for line in ended.err.splitlines() if line.startswith("error: ")]
            shutil.rmtree(folder)
        assert ends[True] == ends[False], mistake
        refused |= {mistake} if ends[False][0] else set()
    assert len(refused) > len(mistakes) / 2  # a table of mistakes that no command refuses would pass too
