"""Commands on XLA, in processes of their own: they come to what they come to on the CPU. See `make test-xla`."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from bertkit.storage import runs
from tests.conftest import write_csv

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("torch_xla"), reason="torch_xla is not installed"),
]

MOST_GRAPHS = 12
# graphs are compiled without optimization, which takes longer than it saves here
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PJRT_DEVICE": "CPU",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
}
FEW = ["--data", "demo", "--set", "training.precision=fp32", "--set", "training.batch_size=6"]
FEW += ["--set", "training.steps=6", "--set", "training.evaluate_every=3", "--set", "training.log_every=2"]
TUNED = ["--limit", "16", *FEW, "--set", "training.fast_dropout=false"]
PRETRAINED = ["--set", "data.limit=100", *FEW, "--set", "training.max_length=64", "--set", "training.short_length=null"]
TRAINED = {
    "finetune cola": TUNED,
    "finetune ner": [*TUNED, "--set", "training.batching=sorted"],
    "finetune squad": TUNED,
    "finetune stsb": TUNED,
    "finetune classify": [*TUNED, "--set", "options.long_text=windows_mean", "--max-length", "12"],
    "finetune rerank": [*TUNED, "--set", "options.loss=listwise"],
    "pretrain mlm": PRETRAINED,
    "pretrain bert": [*PRETRAINED, "--set", "data.validation_fraction=0.1"],
}
"""Command -> its options."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    folder: Path
    text: str
    seconds: float

    @property
    def graphs(self) -> int:
        """The number of graphs that it says it has compiled."""
        found = re.search(r"XLA: (\d+) graphs compiled", self.text)
        return int(found[1]) if found else 0

    def log(self, name: str) -> list[dict[str, float]]:
        """Return what a run has logged."""
        lines = (self.folder / name / "metrics.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in lines.rstrip("\n").split("\n")]


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    """A random BERT of two small layers without dropout, with the tokenizer of the demo model."""
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    from bertkit.storage.hub import find_model

    folder = tmp_path_factory.mktemp("still")
    tokenizer = AutoTokenizer.from_pretrained(find_model("demo"))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **sizes, **rates)
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Return a folder for a device, where commands work."""
    folders = {device: tmp_path_factory.mktemp(device) for device in ("xla", "cpu")}
    for folder in folders.values():
        write_csv(folder / "texts.csv", [{"text": " ".join(["the cat sleeps"] * (1 + n % 7))} for n in range(24)])
    return folders


@pytest.fixture(scope="module")
def run(work):
    """Run a command on a device in its folder."""

    def command(device: str, *arguments: object, devices: int = 1) -> Ended:
        start = time.perf_counter()
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "bertkit", *map(str, arguments), "--device", device],
            env={**os.environ, **ENVIRONMENT, "CPU_NUM_DEVICES": str(devices)},
            cwd=work[device],
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        return Ended(work[device], ended.stderr + ended.stdout, time.perf_counter() - start)

    return command


@pytest.fixture(scope="module")
def table(pytestconfig):
    """Collect what each command came to, and print it in the end."""
    rows = [("command", "graphs", "seconds XLA", "CPU", "XLA", "CPU")]
    yield rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    plugins = pytestconfig.pluginmanager
    terminal = plugins.getplugin("terminalreporter")
    with plugins.getplugin("capturemanager").global_and_fixture_disabled():
        terminal.ensure_newline()
        for row in rows:
            terminal.write_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


def note(table, command, ended, what=("", "")):
    on_xla, on_cpu = ended
    assert 0 < on_xla.graphs <= MOST_GRAPHS, on_xla.text
    assert on_cpu.graphs == 0
    seconds = (f"{one.seconds:.0f}" for one in ended)
    table.append((command, str(on_xla.graphs), *seconds, *what))


def numbers(log):
    return {
        f"{place} {name}": value
        for place, entry in enumerate(log)
        for name, value in entry.items()
        if value is not None and name != "eval_perplexity"  # the exponential of the loss
    }


@pytest.mark.parametrize("command", TRAINED)
def test_training_comes_to_what_it_does_on_the_cpu(command, run, table, still):
    name = command.replace(" ", "-")
    ended = [
        run(device, *command.split(), "--model", still, *TRAINED[command], "-o", name) for device in ("xla", "cpu")
    ]
    logs = [one.log(name) for one in ended]
    assert numbers(logs[0]) == pytest.approx(numbers(logs[1]), rel=1e-4, abs=1e-4)
    losses = [next(entry["eval_loss"] for entry in reversed(log) if "eval_loss" in entry) for log in logs]
    note(table, command, ended, [f"loss {loss:.6f}" for loss in losses])
    assert [runs.read_record(one.folder / name)["machine"]["device"] for one in ended] == ["xla", "cpu"]


def test_several_devices_come_to_what_one_does(run, table, still):
    ended = [run("xla", "finetune", "cola", "--model", still, *TUNED, "-o", f"of-{n}", devices=n) for n in (4, 1)]
    logs = [one.log(f"of-{n}") for n, one in zip((4, 1), ended, strict=True)]
    assert numbers(logs[0]) == pytest.approx(numbers(logs[1]), rel=1e-5, abs=1e-5)
    assert "4 x CPU (XLA)" in ended[0].text
    losses = (f"loss {log[0]['loss']:.6f}" for log in logs)  # of 4 devices, and of one
    assert ended[0].graphs <= MOST_GRAPHS
    table.append(("on 4 devices", str(ended[0].graphs), f"{ended[0].seconds:.0f}", "", *losses))


def test_a_killed_run_goes_on_to_the_same_weights(run, table, work):
    command = ["finetune", "cola", "--model", "demo", *TUNED]  # with dropout, whose random state a checkpoint keeps
    whole = run("xla", *command, "-o", "whole")
    arguments = [sys.executable, "-W", "ignore", "-m", "bertkit", *command, "-o", "killed", "--device", "xla"]
    process = subprocess.Popen(arguments, env={**os.environ, **ENVIRONMENT}, cwd=work["xla"], stderr=subprocess.DEVNULL)
    manifest = work["xla"] / "killed" / "checkpoint-3" / "bertkit-manifest.json"
    while not manifest.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    resumed = run("xla", *command, "-o", "killed")
    assert "resuming" in resumed.text
    assert resumed.graphs <= MOST_GRAPHS
    for file in ("model.safetensors", "metrics.jsonl", "predictions.jsonl"):
        assert (work["xla"] / "killed" / file).read_bytes() == (work["xla"] / "whole" / file).read_bytes()
    table.append(("kill and resume", str(resumed.graphs), f"{whole.seconds:.0f}", "", "same weights", ""))


def test_a_model_scores_predicts_and_embeds_as_on_the_cpu(run, table, work):
    for device in ("xla", "cpu"):  # of one and the same model
        run("cpu", "finetune", "cola", "--model", "demo", *TUNED, "-o", work[device] / "of-cpu")
    ended = [run(device, "eval", "of-cpu", "--output", "scored") for device in ("xla", "cpu")]
    scores = [
        json.loads((one.folder / "scored" / "evaluation.json").read_text())["results"][0]["scores"] for one in ended
    ]
    assert scores[0] == pytest.approx(scores[1])
    note(table, "eval", ended, [f"accuracy {score['accuracy']:.4f}" for score in scores])

    options = ("texts.csv", "--set", "data.columns.text=text", "--output", "predicted.jsonl")
    ended = [run(device, "predict", "of-cpu", *options) for device in ("xla", "cpu")]
    lines = [(one.folder / "predicted.jsonl").read_text().rstrip("\n").split("\n") for one in ended]
    records = [[json.loads(line) for line in of_one] for of_one in lines]
    found, expected = ([record["probabilities"]["acceptable"] for record in each] for each in records)
    assert len(found) == 24
    assert found == pytest.approx(expected, abs=1e-5)
    note(table, "predict", ended, [f"{probabilities[0]:.6f}" for probabilities in (found, expected)])

    options = ("texts.csv", "--model", "demo", "--precision", "fp32", "--output", "vectors.npy")
    ended = [run(device, "embed", *options) for device in ("xla", "cpu")]
    found, expected = (np.load(one.folder / "vectors.npy") for one in ended)
    np.testing.assert_allclose(found, expected, atol=1e-4)  # of vectors of length 11
    note(table, "embed", ended, [f"{vectors[0, 0]:.6f}" for vectors in (found, expected)])
