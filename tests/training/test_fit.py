"""Training beside what must change nothing: micro-batches, accumulation, several processes."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bertkit.storage import checkpoints, runs
from tests.conftest import LEARN, finetune, toy_rows, write_csv
from tests.kills import read_lines, slow_unless


def test_a_loss_that_is_no_number_stops_the_run_and_is_never_kept(run, tiny_model, toy_data, monkeypatch):
    from bertkit.training.trainer import BertkitTrainer

    honest, calls = BertkitTrainer.compute_loss, [0]

    def poisoned(self, *arguments, **keywords):
        calls[0] += 1
        loss = honest(self, *arguments, **keywords)
        if calls[0] == 9:
            with torch.no_grad():
                next(self.model.parameters()).fill_(float("nan"))
        return loss

    monkeypatch.setattr(BertkitTrainer, "compute_loss", poisoned)
    ended = finetune(run, tiny_model, toy_data, "--epochs", 3)
    assert ended.code == 7
    assert ended.last == (
        "error: the loss or a weight is not finite at step 10; the last good checkpoint is checkpoint-6 - "
        "try a smaller --learning-rate, or --set training.precision=fp32"
    )
    assert json.loads(Path("runs/classify/run.json").read_text())["status"] == "diverged"
    assert [folder.name for folder in Path("runs/classify").glob("checkpoint-*")] == ["checkpoint-6"]


@pytest.mark.parametrize("name", slow_unless(["optimizer.pt"], ["optimizer.pt", "scheduler.pt", "rng_state.pth"]))
def test_code_in_a_checkpoint_is_never_run(run, tiny_model, toy_data, name):
    class Harm:
        def __reduce__(self):
            return os.mkdir, ("harm",)

    settings = ("--epochs", 1, "--learning-rate", "1e-8", "--set", "training.evaluate_every=3")
    settings += ("--set", "training.keep_optimizer=true")
    assert finetune(run, tiny_model, toy_data, *settings).code == 0
    folder = Path("runs/classify")
    shutil.rmtree(folder / "checkpoint-6")
    checkpoint = folder / "checkpoint-3"
    facts = {**checkpoints.read_manifest(checkpoint), "finished": False}
    (checkpoint / checkpoints.MANIFEST).unlink()
    torch.save(Harm(), checkpoint / name)
    checkpoints.commit(checkpoint, {fact: facts[fact] for fact in ("step", "finished", "seconds", "losses", "state")})
    runs.write_record(folder, {**runs.read_record(folder), "status": "running"})
    ended = finetune(run, tiny_model, toy_data, *settings)
    assert (ended.code, ended.last) == (
        4,
        "error: a file of the newest checkpoint holds more than tensors: loading it could run code "
        "(runs/classify) - delete that checkpoint, then repeat the command",
    )
    assert not Path("harm").exists()


def test_the_learning_rate_rises_to_its_peak_over_the_warmup_and_falls_to_zero(run, toy_data, still_model):
    options = ("--learning-rate", 0.003, "--set", "training.log_every=1", "--set", "training.warmup_ratio=0.5")
    assert finetune(run, still_model, toy_data, "--epochs", 1, *options).code == 0
    entries = read_lines(Path("runs/classify/metrics.jsonl"))
    rates = [entry["learning_rate"] for entry in entries if "learning_rate" in entry]
    assert rates == pytest.approx([0, 0.001, 0.002, 0.003, 0.002, 0.001])


def test_accumulation_changes_nothing(run, toy_data, still_model):
    losses = []
    for micro_batches in (1, 4):
        setting = f"training.gradient_accumulation={micro_batches}"
        options = ("--epochs", 1, "--output", f"run{micro_batches}", "--set", setting, "--set", "training.log_every=1")
        assert finetune(run, still_model, toy_data, *options).code == 0
        losses.append([e["loss"] for e in read_lines(Path(f"run{micro_batches}/metrics.jsonl")) if "loss" in e])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.slow
def test_a_batch_computed_in_micro_batches_changes_nothing(run, toy_data, still_model, monkeypatch):
    losses = []
    for most in (2**25, 2**12):
        monkeypatch.setattr("bertkit.training.micro_batches._MAX_ATTENTION_BYTES", most)
        options = ("--epochs", 1, "--output", f"run{most}", "--set", "training.log_every=1")
        assert finetune(run, still_model, toy_data, *options).code == 0
        losses.append([e["loss"] for e in read_lines(Path(f"run{most}/metrics.jsonl")) if "loss" in e])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_run_is_that_of_plain_layers_and_resumes(run, toy_data, still_model, monkeypatch):
    from functools import partial

    from safetensors.torch import load_file

    compiled = ("--set", "training.torch_compile=true")
    options = ("--epochs", 1, "--set", "training.log_every=1", "--set", "training.evaluate_every=3")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    assert finetune(run, still_model, toy_data, *options, "--output", "plain").code == 0
    assert finetune(run, still_model, toy_data, *options, *compiled, "--output", "unbroken").code == 0
    shutil.copytree("unbroken", "resumed")
    shutil.rmtree("resumed/checkpoint-6")
    folder = Path("resumed/checkpoint-3")
    facts = {**checkpoints.read_manifest(folder), "finished": False}
    (folder / checkpoints.MANIFEST).unlink()
    checkpoints.commit(folder, {fact: facts[fact] for fact in ("step", "finished", "seconds", "losses", "state")})
    runs.write_record(Path("resumed"), {**runs.read_record(Path("resumed")), "status": "running"})
    assert finetune(run, still_model, toy_data, *options, *compiled, "--output", "resumed").code == 0
    plain, unbroken, resumed = (
        load_file(f"{name}/checkpoint-6/model.safetensors") for name in ("plain", "unbroken", "resumed")
    )
    torch.testing.assert_close(unbroken, plain, rtol=0, atol=1e-5)
    assert all(torch.equal(resumed[name], weights) for name, weights in unbroken.items())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batches_for_a_gpu_are_pinned_and_copied_without_waiting(device, monkeypatch):
    from bertkit.training.trainer import BertkitTrainer

    copied = []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *place, **how: copied.append((place, how)) or self)
    arguments = SimpleNamespace(world_size=1, process_index=0, dataloader_pin_memory=True, device=torch.device(device))
    batches = SimpleNamespace(loader=lambda *_, **__: SimpleNamespace(pin_memory=False))
    trainer = SimpleNamespace(args=arguments, batches=batches, collate=None, padding_reason=None)
    assert BertkitTrainer.get_train_dataloader(trainer).pin_memory == (device == "cuda")
    BertkitTrainer._on_device(trainer, {"input_ids": torch.ones(1)})
    assert copied == [((torch.device(device),), {"non_blocking": True})]


LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "accelerate": [
        *("accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1"),
        *("--mixed_precision", "no", "--dynamo_backend", "no", "--num_cpu_threads_per_process", "1"),
        *("--main_process_port", str(20000 + os.getpid() % 10000)),
    ],
}


@pytest.mark.parametrize("most", [0.5, 1.0, 5.0])
@pytest.mark.parametrize("gradient", [[3.0, 4.0], [0.3, 0.4], [0.6, 0.8], [0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_gradients_are_clipped_as_torch_clips_them(gradient, most):
    from bertkit.training.trainer import BertkitTrainer

    models = [torch.nn.Linear(2, 1, bias=False) for _ in range(2)]
    for model in models:
        model.weight.grad = torch.tensor([gradient])
    trainer = SimpleNamespace(args=SimpleNamespace(device=torch.device("cpu"), max_grad_norm=most), model=models[0])
    norms = (
        BertkitTrainer._clip_grad_norm(trainer, models[0]),
        torch.nn.utils.clip_grad_norm_(models[1].parameters(), most),
    )
    torch.testing.assert_close(*norms, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(*(model.weight.grad for model in models), rtol=0, atol=0, equal_nan=True)


def launch(launcher: str, arguments: list[object]) -> tuple[int, str, str]:
    """Run a command in two processes that a real launcher starts."""
    ended = subprocess.run(
        [sys.executable, "-m", *LAUNCHERS[launcher], "-m", "bertkit", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("launcher", slow_unless(["zygote"], ["zygote", "fsdp", *LAUNCHERS]))
def test_two_processes_learn_the_same_as_one(run, zygote, still_model, launcher, tmp_path):
    data = tmp_path / "odd"
    data.mkdir()
    write_csv(data / "train.csv", toy_rows(97, seed=1))
    write_csv(data / "validation.csv", toy_rows(41, seed=2))
    settings = ["--epochs", "2", "--set", "training.log_every=1", "--seed", "3"]
    assert finetune(run, still_model, data, *settings, "--output", "one").code == 0
    arguments = ["finetune", "classify", "--model", still_model, "--data", data, *LEARN, *settings, "--output", "two"]
    if launcher in ("zygote", "fsdp"):
        arguments += ["--set", f"training.fsdp={launcher == 'fsdp'}"]
        codes, out, err = zygote.launch(Path.cwd(), [*arguments, "--json"])
        code = max(map(abs, codes))
    else:
        code, out, err = launch(launcher, [*arguments, "--json"])
    assert code == 0, err
    printed = json.loads(out)  # one object: only the first process prints
    ours, theirs = read_lines(Path("one/metrics.jsonl")), read_lines(Path("two/metrics.jsonl"))
    assert len(ours) == len(theirs)
    for one, two in zip(ours, theirs, strict=True):
        assert one == pytest.approx(two, abs=1e-4)
    assert printed["results"][0]["rows"] == 41
    assert "training" not in err or err.count("new head: ") == 1
