"""What commands print is theirs: no warning, no progress bar and no traceback of a library beside it."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analysis.test_explanations import fine_tune
from tests.cli.listen import Sorted
from tests.cli.test_families import COMMANDS, command_of, every_command

DATA = "--model demo --data demo"
OTHERS = {
    "ablate": "mlm --data demo --size tiny --tokenizer demo --space objective=mlm,clm --seeds 1 --steps 2 "
    "--set training.batch_size=2 --set data.limit=200 "
    "--finetune 'cola data.source=demo data.limit=32 training.steps=2'",
    "bench": f"cola {DATA} --limit 16",
    "check": f"cola {DATA}",
    "encoders": "",
    "finetune": f"cola {DATA} --limit 32 --epochs 1",
    "glue": f"{DATA} --tasks cola,stsb --limit 32 --set training.steps=2",
    "pretrain recipe": f"mlm {DATA} --smoke-test",
    "pretrain sizes": "",
    "pretrain tokenizer": "--data demo --vocabulary-size 300 --limit 400 --output tokenizer",
    "probe": f"cola {DATA} --limit 48",
    "recipes check": "cola",
    "recipes copy": "cola mine.yaml",
    "recipes list": "",
    "recipes show": "cola",
    "sweep": f"cola {DATA} --limit 32 --set training.steps=2 --space training.seed=1,2",
}
"""Commands that read no run -> their arguments."""
UNHEARD = {
    *("attention heads", "search add", "search delete", "search eval", "search passages", "search query"),
    *("recipes guess", "serve"),
}
"""Commands that need parses, models of the hub, an index, or their own rows, or that do not end."""


def test_every_command_is_heard_or_named():
    assert {command_of(case) for case in COMMANDS} | OTHERS.keys() | UNHEARD == every_command()


@pytest.fixture
def calls(tmp_path):
    """Arguments of each command, and a folder of its own."""
    for seed in (1, 2):
        fine_tune("sst2", tmp_path / str(seed), **{"data.limit": 24, "training.seed": seed})
    run, again = tmp_path / "1" / "run", tmp_path / "2" / "run"
    rows, texts = tmp_path / "rows.jsonl", tmp_path / "texts.txt"
    rows.write_text("".join(f"{line}\n" for line in (run / "predictions.jsonl").read_text().splitlines()[:4]))
    texts.write_text("".join(f"the {word} is here\n" for word in ("cat", "dog", "cow", "hen")))
    paths = {"run": run, "again": again, "rows": rows, "texts": texts, "recipe": "sst2", "copied": again}
    last = ["runs rm"]  # it deletes what others read
    cases = {case: COMMANDS[case] for case in [*(set(COMMANDS) - set(last)), *last]}
    arguments = {case: [*command_of(case).split(), *shlex.split(text.format(**paths))] for case, text in cases.items()}
    arguments = {name: [*name.split(), *shlex.split(text)] for name, text in OTHERS.items()} | arguments
    found = []
    for number, of_one in enumerate(arguments.values()):
        folder = tmp_path / "heard" / str(number)
        folder.mkdir(parents=True)
        found.append((of_one, str(folder)))
    return found


@pytest.mark.slow
def test_nobody_but_bertkit_prints(calls):
    listened = subprocess.run(
        [sys.executable, "-m", "tests.cli.listen"], input=json.dumps(calls), text=True, capture_output=True, check=True
    )
    assert (listened.stdout, listened.stderr) == ("", "")
    beside, failed = {}, {}
    for arguments, folder in calls:
        files = {file.stem: file.read_text() for file in Path(folder).glob("*.txt")}
        name = " ".join(arguments[:3])
        if files["code"] != "0" and "error: " not in files["err"]:
            failed[name] = files
        if files["stdout"] or files["stderr"]:
            beside[name] = files["stdout"] + files["stderr"]
        assert "Traceback" not in files["err"], name
    assert (beside, failed) == ({}, {})


def test_what_a_library_prints_is_told_from_what_bertkit_prints(tmp_path):
    beside = io.StringIO()
    stream = Sorted(beside, tmp_path / "own.txt")
    for module in ("bertkit.cli.output", "transformers.trainer"):
        exec(f"print('of {module}', file=stream)", {"__name__": module, "stream": stream})
    stream.own.close()
    assert (beside.getvalue(), (tmp_path / "own.txt").read_text()) == (
        "of transformers.trainer\n",
        "of bertkit.cli.output\n",
    )
