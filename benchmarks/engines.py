"""One engine in a program of its own, which trains for as many steps as it is told and then sleeps on a pipe.

    python -m benchmarks.engines ENGINE CASE.json FOLDER

ENGINE is `bertkit`, `bertkit:KEY=VALUE;KEY=VALUE` (changes of the recipe), a peer of `benchmarks.peers`, `bare` (a
plain loop over PyTorch; `bare:bf16` under autocast), or `peak` (matrix products only). Commands are lines of JSON on
stdin, answers on stdout. Of masked language modeling, `bertkit:whole-head` computes the head for all tokens.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from benchmarks.harness import seconds_since_start
from benchmarks.load import matrix_rates, peak_memory, shape_of
from bertkit.hardware.device import find_device

SHORT = {
    "fp32": "training.precision=fp32",
    "compiled": "training.torch_compile=true",
    "graphs": "training.cuda_graphs=true",
    "compiled-graphs": "training.torch_compile=true;training.cuda_graphs=true",
    "unpadded": "training.unpad=true",
    "whole-head": "",
}
"""Names of some changes."""
LENGTHS = "lengths"
"""Name in a batch of bertkit's: the tokens of each text of a row, (rows, texts)."""


class Gate:
    """Lets training go on for the steps it is told, then tells what they took and waits.

    It is a bertkit progress too: `start`, `update` and `finish` are those of `bertkit.progress.Progress`.
    """

    def __init__(self, parts: int = 1) -> None:
        self.channel = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print must not come between the answers
        self.parts = parts  # batches that the collator makes for one optimizer step
        self.batches: list[list[int]] = []
        self.stretches: list[str] = []
        self.wanted = 0

    def count(self, lengths: Sequence[int]) -> None:
        """Note the real tokens of each text of a batch; batches are used in this order."""
        self.batches.append(list(lengths))

    def open(self) -> None:
        """Say that training is about to begin, and wait for the first command."""
        self.batches.clear()  # of what was tried before training
        if (device := find_device()).tracks_memory:
            device.restart_peak_memory()
        self.tell({"ready": seconds_since_start()})
        self._wait()

    def step(self) -> None:
        """End an optimizer step; after the last one wanted, tell and wait."""
        for _ in range(self.parts):
            self.done.extend(self.batches.pop(0))
        self.wanted -= 1
        if not self.wanted:
            find_device().synchronize()
            seconds = time.perf_counter() - self.began
            took = {"seconds": seconds, "cpu": time.process_time() - self.cpu, "memory": used_memory()}
            squares = sum(length * length for length in self.done)
            self.tell({**took, "examples": len(self.done), "tokens": sum(self.done), "squares": squares})
            self._wait()

    def tell(self, facts: dict[str, Any]) -> None:
        """Write one line to the coordinator."""
        self.channel.write(json.dumps(facts) + "\n")
        self.channel.flush()

    def listen(self) -> int:
        """Wait for the next number of steps; the end of the pipe ends the program, whatever it is in the middle of."""
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        return int(json.loads(line)["steps"])

    def answer(self, work: Callable[[], dict[str, Any]]) -> None:
        """Do a work without steps each time that the coordinator asks for it; tell what it took and returned."""
        self.tell({"ready": seconds_since_start()})
        while True:
            self.listen()
            start, processor = time.perf_counter(), time.process_time()
            result = work()
            took = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - processor}
            self.tell({**took, "memory_mb": round(peak_memory(os.getpid())), **result})

    def _wait(self) -> None:
        self.wanted = self.listen()
        self.done: list[int] = []
        self.began, self.cpu = time.perf_counter(), time.process_time()

    def start(self, what: str, total: int, done: int = 0) -> None:
        """Wait before the first step of training."""
        self.stretches.append(what)
        if what == "training":
            self.open()

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """End a step of training."""
        if self.stretches[-1] == "training":
            self.step()

    def record(self, entry: Mapping[str, Any]) -> None:
        """Take nothing."""

    def finish(self) -> None:
        """End a stretch."""
        self.stretches.pop()


def used_memory() -> float:
    """Return the peak memory in MB: of an accelerator's tensors since training began, or of this program."""
    device = find_device()
    return device.peak_memory() / 2**20 if device.tracks_memory else peak_memory(os.getpid())


def run_bertkit(case: Case, changes: str, folder: str, gate_class: type[Gate] = Gate) -> None:
    """Train as `bertkit finetune` or `pretrain` does; scoring waits for the end, which a measurement never reaches."""
    from bertkit.recipe import parse_changes

    if changes == "whole-head":
        predict_everywhere()
    given = parse_changes([change for change in SHORT.get(changes, changes).split(";") if change])
    recipe = case.load({"training.evaluate_every": 10**9, **given})
    from bertkit.progress import use_progress

    gate = gate_class(recipe.training.gradient_accumulation)
    import torch
    from torch.nn.utils.rnn import pad_sequence

    import bertkit.training.fit as training
    from bertkit.tokens.features import ROW_MASK, text_lengths

    fit = training.fit

    def counted(job: Any, *arguments: Any, **keywords: Any) -> Any:
        terms = job.loss_terms

        def collate(features: Sequence[Any]) -> Any:  # maybe in another process
            lengths = [torch.tensor(text_lengths(feature)) for feature in features]
            return {**job.data_collator(features), LENGTHS: pad_sequence(lengths, batch_first=True)}

        def count(batch: Any) -> Any:
            lengths = batch.pop(LENGTHS)
            lengths = lengths[batch[ROW_MASK]] if ROW_MASK in batch else lengths
            gate.count(lengths[lengths > 0].tolist())
            return terms.count(batch)

        def sums(model: Any, batch: Any) -> Any:
            return terms.sums(model, {name: values for name, values in batch.items() if name != LENGTHS})

        counting = replace(job, data_collator=collate, loss_terms=replace(terms, count=count, sums=sums))
        return fit(counting, *arguments, **keywords)

    training.fit = counted
    if case.recipe == "mlm":
        from bertkit.workflows.pretrain import pretrain as train
    else:
        from bertkit.workflows.finetune import finetune as train
    with use_progress(gate):
        train(recipe, output=f"{folder}/run")


def predict_everywhere() -> None:
    """Compute the head of masked language modeling for all tokens, as others do, and not for the masked ones alone."""
    from bertkit.modeling import masked_head
    from bertkit.pretraining.objectives import mlm

    def run_whole(model: Any, batch: Any) -> Any:
        masked = batch["labels"] != masked_head.IGNORE_INDEX
        outputs = model(**{name: values for name, values in batch.items() if name != "labels"})
        outputs["logits"] = outputs.logits[masked][None]
        return outputs, batch["labels"][masked]

    mlm.run_at_masked = run_whole


class Counted:
    """A collator that tells the gate how many real tokens each text has."""

    def __init__(self, collate: Any, gate: Gate) -> None:
        self.collate, self.gate = collate, gate

    def __getattr__(self, name: str) -> Any:
        """Return what else a Trainer reads of its collator."""
        return getattr(self.collate, name)

    def __call__(self, features: Any) -> Any:
        """Return the batch."""
        batch = self.collate(features)
        self.gate.count(batch["attention_mask"].sum(1).tolist())
        return batch


def run_peer(case: Case, name: str, folder: str) -> None:
    """Train with one of transformers' Trainers, as far as the gate lets it."""
    from transformers import TrainerCallback

    from benchmarks.peers import VARIANTS, make_pretrainer, make_trainer

    class Steps(TrainerCallback):  # type: ignore[misc]
        """Opens the gate and tells it of each step."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            gate.open()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            gate.step()

    gate, make = Gate(), make_pretrainer if case.recipe == "mlm" else make_trainer
    trainer = make(case, VARIANTS[name], folder)
    trainer.data_collator = Counted(trainer.data_collator, gate)
    trainer.add_callback(Steps())
    trainer.train()


def run_bare(case: Case, bf16: bool) -> None:
    """Train with a plain loop: fp32 or autocast, random order, padded to the longest row of the batch, fused AdamW."""
    import torch
    from torch.utils.data import DataLoader
    from transformers import get_linear_schedule_with_warmup, set_seed

    from benchmarks.peer_rows import load_material

    gate, settings = Gate(), case.load().training
    set_seed(case.seed)
    material = load_material(case, pad=False)
    device = find_device().type
    model = material.load_model().to(device).train()
    known = set(inspect.signature(model.forward).parameters)
    features = [{key: value for key, value in row.items() if key in known} for row in material.train]
    loader = DataLoader(
        features, settings.batch_size, shuffle=True, drop_last=True, collate_fn=Counted(material.collate, gate)
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )
    steps = int(len(loader) * settings.epochs)
    schedule = get_linear_schedule_with_warmup(optimizer, int(steps * settings.warmup_ratio), steps)
    gate.open()
    while True:
        for batch in loader:
            with torch.autocast(device, torch.bfloat16, enabled=bf16):
                loss = model(**{name: values.to(device) for name, values in batch.items()}).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            gate.step()


def run_peak(case: Case) -> None:
    """Measure matrix products at the model's shapes; each command takes about half a second for each precision."""
    device = find_device()
    shape = shape_of(json.loads(Path(case.model, "config.json").read_text(encoding="utf-8")))
    Gate().answer(lambda: {"rates": matrix_rates(shape, 0.5, device, 1024 if device.is_cpu else 16384)})


def main() -> None:
    engine, file, folder = sys.argv[1:]
    case = Case.read(file)
    name, _, changes = engine.partition(":")
    if name == "peak":
        run_peak(case)
    elif name == "bare":
        run_bare(case, changes == "bf16")
    elif name == "bertkit":
        run_bertkit(case, changes, folder)
    else:
        run_peer(case, name, folder)
    raise SystemExit(f"{engine} has trained all its steps before the measurement ended")


if __name__ == "__main__":
    main()
