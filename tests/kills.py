"""Commands in processes of their own: killed in the middle, run in parallel, or watched as they import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

# Where a command can be killed: functions by their dotted path.
TRAINER = "transformers.trainer.Trainer"
TRAINING_STEP = f"{TRAINER}.training_step"
SAVE_PRETRAINED = "transformers.modeling_utils.PreTrainedModel.save_pretrained"
SAVE_STATE = "transformers.trainer_callback.TrainerState.save_to_json"
EVALUATE = "bertkit.training.trainer.BertkitTrainer.evaluate"
SAVE_MODEL = "bertkit.training.trainer.BertkitTrainer.save_model"
UNPAD = "bertkit.modeling.unpadding.hooks._Unpadding.unpad"
COMMIT = "bertkit.storage.checkpoints.commit"
WRITE_MANIFEST = "bertkit.storage.checkpoints.write_with_checksum"
KEEP_ONLY = "bertkit.storage.checkpoints.keep_only"
EXPORT_MODEL = "bertkit.workflows.finetune_results.export_model"
WRITE_PREDICTIONS = "bertkit.workflows.finetune_results.write_predictions"
WRITE_REPORT = "bertkit.workflows.finetune_results.write_report"
FINISH = "bertkit.workflows.finetune_results.finish"
COMPARE = "bertkit.workflows.distill._compare_models"

# Packages that a light command does not import.
HEAVY = {
    "torch",
    "transformers",
    "datasets",
    "evaluate",
    "sklearn",
    "scipy",
    "accelerate",
    "numpy",
    "pandas",
    "pyarrow",
}


def slow_unless(quick, cases):
    """Return parameters of a test, with those that only `make test-all` runs marked as slow."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]


class Zygote:
    """A process that forks one child per command (see zygote.py); a light one has imported nothing heavy.

    One that is to run every command imports some `modules` more.
    """

    def __init__(
        self, cache: Path, light: bool = False, preload: Path | None = None, modules: Iterable[str] = ()
    ) -> None:
        self.has_faults = preload is not None
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "zygote.py"), *(["--light"] if light else []), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "BERTKIT_CACHE": str(cache), "LD_PRELOAD": str(preload or "")},
        )

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def answer(self, folder: Path, arguments: list[object], **request: object) -> list[int]:
        """Return how each process of a command ended; see zygote.py for what a request may say."""
        defaults = {
            "fault": None,
            "modules": None,
            "processes": 1,
            "path": None,
            "stdin": None,
            "environment": {},
            "device": None,
            "function": None,
        }
        request = defaults | request
        request |= {"folder": str(folder), "arguments": [str(argument) for argument in arguments]}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def run(
        self, folder: Path, arguments: list[object], fault: dict | None = None, **environment: str
    ) -> tuple[int, str]:
        """Return how a command ended, and what it printed."""
        out = folder / "out.txt"
        out.unlink(missing_ok=True)
        (code,) = self.answer(folder, arguments, fault=fault, environment=environment, out=str(out), err=str(out))
        return code, out.read_text()

    def launch(
        self,
        folder: Path,
        arguments: list[object],
        processes: int = 2,
        path: str | None = None,
        stdin: Path | None = None,
    ) -> tuple[list[int], str, str]:
        """Return how each process of a parallel run ended, and what all of them printed to stdout and to stderr.

        `path` is a folder to import modules from, as PYTHONPATH names it; `stdin` is a file to read.
        """
        with tempfile.TemporaryDirectory() as printed:
            out, err = Path(printed, "out"), Path(printed, "err")
            codes = self.answer(
                folder,
                arguments,
                out=str(out),
                err=str(err),
                processes=processes,
                path=path,
                stdin=stdin and str(stdin),
            )
            return codes, out.read_text(), err.read_text()

    def imports(self, folder: Path, arguments: list[object]) -> set[str]:
        """Return the packages that have been imported when a command ends."""
        with tempfile.TemporaryDirectory() as printed:
            out, modules = Path(printed, "out"), Path(printed, "modules")
            self.answer(folder, arguments, out=str(out), err=str(out), modules=str(modules))
            return set(modules.read_text().split())


def read_lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def weights_of(run: Path) -> dict[str, list]:
    return {name: tensor.tolist() for name, tensor in load_file(run / "model.safetensors").items()}


def losses_of(run: Path) -> list[dict]:
    entries = read_lines(run / "metrics.jsonl")
    return [{name: value for name, value in entry.items() if "runtime" not in name} for entry in entries]


def check_kill(zygote, make_folder, command: list[str], fault: dict) -> None:
    """Run a command whole, and once more with a kill in between: both must end alike."""
    whole, broken = make_folder("whole"), make_folder("broken")
    code, text = zygote.run(whole, command)
    assert code == 0, text
    assert zygote.run(broken, command, fault)[0] == -9
    code, text = zygote.run(broken, command)
    assert code == 0, text
    assert weights_of(broken / "run") == weights_of(whole / "run")
    assert losses_of(broken / "run") == losses_of(whole / "run")
    results = [json.loads((folder / "run" / "run.json").read_text())["result"] for folder in (whole, broken)]
    assert results[0]["scores"] == results[1]["scores"]


def exact(value: object) -> object:
    """Return a saved state with its tensors and arrays as lists, which are compared number by number."""
    if isinstance(value, dict):
        return {name: exact(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [exact(entry) for entry in value]
    return value.tolist() if isinstance(value, (torch.Tensor, np.ndarray)) else value


def everything(run: Path) -> dict[str, object]:
    """Return all that a run leaves which must not depend on how often it was broken off."""
    contents: dict[str, object] = {}
    for file in sorted(run.rglob("*")):
        name = str(file.relative_to(run))
        if file.suffix == ".safetensors":
            contents[name] = {key: tensor.tolist() for key, tensor in load_file(file).items()}
        elif file.suffix in (".pt", ".pth"):
            contents[name] = exact(torch.load(file, weights_only=False))
        elif file.name in ("metrics.jsonl", "predictions.jsonl", "config.json", "tokenizer.json", "recipe.yaml"):
            contents[name] = file.read_text()
        elif file.name == "trainer_state.json":
            contents[name] = json.loads(file.read_text())["log_history"]
        elif file.name == "eval_results.json":
            contents[name] = json.loads(file.read_text())
    record = json.loads((run / "run.json").read_text())
    results = record.get("results") or [record["result"]]  # pretraining has one, which compares models by their speed
    contents["results"] = [{**result, "seconds": 0, "compared_models": None} for result in results]
    contents["compared"] = [model["scores"] for model in record.get("compared_models", [])]
    contents["best"] = (record["best_step"], record["steps"], record["status"], record.get("error"))
    return contents


def check_equal(run: Path, unbroken: Path) -> None:
    ours, theirs = everything(run), everything(unbroken)
    assert sorted(ours) == sorted(theirs)
    for name in theirs:
        assert ours[name] == theirs[name], name
