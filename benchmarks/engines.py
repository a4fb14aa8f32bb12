"""One training engine in its own process; it runs as many steps as requested, and then waits at a pipe.

    python -m benchmarks.engines ENGINE CASE.json FOLDER

ENGINE is `bertkit`, `bertkit:KEY=VALUE;KEY=VALUE` (changes of the recipe), a peer of `benchmarks.peers`, `bare` (a
plain loop over PyTorch; `bare:bf16` under autocast), or `peak` (only matrix products). Requests are lines of JSON on
stdin, reports are lines on stdout.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from benchmarks.harness import seconds_since_start
from benchmarks.load import get_shape, matrix_rates, peak_memory
from bertkit.hardware.device import find_device
from bertkit.progress import Silent

ALIASES = {
    "fp32": "training.precision=fp32",
    "compiled": "training.torch_compile=true",
    "graphs": "training.cuda_graphs=true",
    "compiled-graphs": "training.torch_compile=true;training.cuda_graphs=true",
    "unpadded": "training.unpad=true",
}
LENGTHS = "lengths"
"""Key in a batch of bertkit: the tokens of each text, (rows, texts)."""


class Gate(Silent):
    """Progress of bertkit that runs the requested steps, reports their cost, and waits for the next request."""

    def __init__(self, micro_batches: int = 1) -> None:
        self.channel = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # Output of libraries must not mix with the reports.
        self.micro_batches = micro_batches
        self.batches: list[list[int]] = []
        self.stages: list[str] = []

    def count(self, lengths: Sequence[int]) -> None:
        """Record the real tokens of each text of a batch; batches are used in this order."""
        self.batches.append(list(lengths))

    def open(self) -> None:
        """Report that training can start, and wait for the first request."""
        self.batches.clear()  # A trial before the training counted some.
        if (device := find_device()).tracks_memory:
            device.restart_peak_memory()
        self.report({"ready": seconds_since_start()})
        self._wait()

    def step(self) -> None:
        """End an optimizer step; after the last requested one, report and wait."""
        for _ in range(self.micro_batches):
            self.lengths.extend(self.batches.pop(0))
        self.steps -= 1
        if not self.steps:
            find_device().synchronize()
            seconds, processor = time.perf_counter() - self.started, time.process_time() - self.cpu
            counts = {"examples": len(self.lengths), "tokens": sum(self.lengths)}
            squares = sum(length * length for length in self.lengths)
            self.report({"seconds": seconds, "cpu": processor, "memory": used_memory(), **counts, "squares": squares})
            self._wait()

    def report(self, record: dict[str, Any]) -> None:
        """Write one line to the coordinator."""
        self.channel.write(json.dumps(record) + "\n")
        self.channel.flush()

    def listen(self) -> int:
        """Wait for the next number of steps; the end of the pipe ends the program."""
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        return int(json.loads(line)["steps"])

    def answer(self, work: Callable[[], dict[str, Any]]) -> None:
        """Do work that has no steps whenever it is requested, and report its cost and result."""
        self.report({"ready": seconds_since_start()})
        while True:
            self.listen()
            start, processor = time.perf_counter(), time.process_time()
            result = work()
            cost = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - processor}
            self.report({**cost, "memory_mb": round(peak_memory(os.getpid())), **result})

    def _wait(self) -> None:
        self.steps = self.listen()
        self.lengths: list[int] = []
        self.started, self.cpu = time.perf_counter(), time.process_time()

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Wait before the first step of training."""
        self.stages.append(name)
        if name == "training":
            self.open()

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """End a step of training."""
        if self.stages[-1] == "training":
            self.step()

    def finish(self) -> None:
        """End a stage."""
        self.stages.pop()


def used_memory() -> float:
    """Return the peak memory in MB: an accelerator's tensors in training, or this program."""
    device = find_device()
    return device.peak_memory() / 2**20 if device.tracks_memory else peak_memory(os.getpid())


def run_bertkit(case: Case, changes: str, folder: str) -> None:
    """Train as `bertkit finetune` or `pretrain` does, without evaluation."""
    from bertkit.recipe import parse_changes

    parsed = parse_changes([change for change in ALIASES.get(changes, changes).split(";") if change])
    recipe = case.load({"training.evaluate_every": 10**9, **parsed})
    gate = Gate(recipe.training.gradient_accumulation)
    import torch
    from torch.nn.utils.rnn import pad_sequence

    import bertkit.training.fit as training
    from bertkit.progress import use_progress
    from bertkit.tokens.features import ROW_MASK, text_lengths

    fit = training.fit

    def fit_counted(job: Any, *arguments: Any, **keywords: Any) -> Any:
        terms = job.loss_terms

        def collate(features: Sequence[Any]) -> Any:  # possibly in another process
            lengths = [torch.tensor(text_lengths(feature)) for feature in features]
            return {**job.data_collator(features), LENGTHS: pad_sequence(lengths, batch_first=True)}

        def count(batch: Any) -> Any:
            lengths = batch.pop(LENGTHS)
            lengths = lengths[batch[ROW_MASK]] if ROW_MASK in batch else lengths
            gate.count(lengths[lengths > 0].tolist())
            return terms.count(batch)

        def sums(model: Any, batch: Any) -> Any:
            return terms.sums(model, {name: values for name, values in batch.items() if name != LENGTHS})

        counted = replace(job, data_collator=collate, loss_terms=replace(terms, count=count, sums=sums))
        return fit(counted, *arguments, **keywords)

    training.fit = fit_counted
    if case.recipe == "mlm":
        from bertkit.workflows.pretrain import pretrain as train
    else:
        from bertkit.workflows.finetune import finetune as train
    with use_progress(gate):
        train(recipe, output=f"{folder}/run")


class CountingCollator:
    """Collator that reports to the gate how many real tokens each text has."""

    def __init__(self, collate: Any, gate: Gate) -> None:
        self.collate, self.gate = collate, gate

    def __getattr__(self, name: str) -> Any:
        """Return other attributes that a Trainer reads."""
        return getattr(self.collate, name)

    def __call__(self, features: Any) -> Any:
        """Return the batch."""
        batch = self.collate(features)
        self.gate.count(batch["attention_mask"].sum(1).tolist())
        return batch


def run_peer(case: Case, name: str, folder: str) -> None:
    """Train with a Trainer of transformers."""
    from transformers import TrainerCallback

    from benchmarks.peers import VARIANTS, make_pretrainer, make_trainer

    class GateCallback(TrainerCallback):  # type: ignore[misc]
        """Callback that opens the gate and reports each step to it."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            gate.open()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            gate.step()

    gate, make = Gate(), make_pretrainer if case.recipe == "mlm" else make_trainer
    trainer = make(case, VARIANTS[name], folder)
    trainer.data_collator = CountingCollator(trainer.data_collator, gate)
    trainer.add_callback(GateCallback())
    trainer.train()


def run_bare(case: Case, bf16: bool) -> None:
    """Train with a plain loop: random order, padding to the longest row of the batch, fused AdamW."""
    import torch
    from torch.utils.data import DataLoader
    from transformers import get_linear_schedule_with_warmup, set_seed

    from benchmarks.peer_rows import load_rows

    gate, settings = Gate(), case.load().training
    set_seed(case.seed)
    rows = load_rows(case, pad=False)
    device = find_device().type
    model = rows.load_model().to(device).train()
    arguments = set(inspect.signature(model.forward).parameters)
    features = [{key: value for key, value in row.items() if key in arguments} for row in rows.train]
    collate = CountingCollator(rows.collate, gate)
    loader = DataLoader(features, settings.batch_size, shuffle=True, drop_last=True, collate_fn=collate)
    rates = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **rates)
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
    """Measure matrix products with the model's shapes; a request takes about half a second per precision."""
    device = find_device()
    shape = get_shape(json.loads(Path(case.model, "config.json").read_text(encoding="utf-8")))
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
    raise SystemExit(f"{engine} finished all its steps before the measurement ended")


if __name__ == "__main__":
    main()
