"""The encoders of `benchmarks.ranking`: a random one, some that bertkit pretrains, and a published one cut short."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.seeds import run_command

RANDOM, WHOLE = "random", "MiniLM, 6 layers"
PRETRAINED = (200, 500)  # steps of 2,048 tokens
LAYERS = (1, 2, 3, 4)
VOCABULARY = 8000  # of the encoders that are pretrained here: what can be learnt of more in minutes is little
PRETRAINING = ("--size", "mini", "--max-length", "64", "--batch-size", "32", "--learning-rate", "1e-3")
ONCE = ("--set", "training.evaluate_every=1000000")


def names_of(steps: Sequence[int] = PRETRAINED, layers: Sequence[int] = LAYERS) -> list[str]:
    """Return the names of the encoders, the least trained first.

    >>> names_of([200], [1])
    ['random', 'pretrained, 200 steps', 'MiniLM, 1 layer', 'MiniLM, 6 layers']
    """
    cut = [f"MiniLM, {count} layer{'s' * (count > 1)}" for count in layers]
    return [RANDOM, *(f"pretrained, {count} steps" for count in steps), *cut, WHOLE]


def folder_of(name: str, work: Path) -> Path:
    """Return the folder that an encoder is written to."""
    return work / "encoders" / name.replace(", ", "-").replace(" ", "-")


def make_encoder(name: str, model: Path, text: Path, work: Path) -> dict[str, Any]:
    """Write an encoder that is not there yet, and return what it took."""
    folder, began, used = folder_of(name, work), time.monotonic(), _cpu_seconds()
    folder.parent.mkdir(parents=True, exist_ok=True)
    found = {}
    if name == WHOLE:
        folder.symlink_to(model.resolve())
    elif name == RANDOM:
        _make_random(model, folder)
    elif name.startswith("pretrained"):
        found = _pretrain(name.split()[1], text, work, folder)
    else:
        from bertkit.compression.target_shape import Shape
        from bertkit.workflows.prune import prune

        prune(str(model), folder, Shape(layers=tuple(range(int(name.split()[1])))))
    seconds = {"seconds": time.monotonic() - began, "cpu_seconds": _cpu_seconds() - used}
    return {"encoder": name, **{key: round(value, 1) for key, value in seconds.items()}, **found}


def _cpu_seconds() -> float:
    """Return the CPU seconds of this program and of those that it has started."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _make_random(model: Path, folder: Path) -> None:
    """Write an encoder of the shape of `model` whose weights are drawn anew."""
    import torch
    from transformers import AutoModel

    from bertkit.modeling.load import load_tokenizer
    from bertkit.modeling.weights import load_config

    torch.manual_seed(0)
    AutoModel.from_config(load_config(model)).save_pretrained(folder)
    load_tokenizer(model).save_pretrained(folder)


def _pretrain(steps: str, text: Path, work: Path, folder: Path) -> dict[str, Any]:
    tokenizer, run = work / "tokenizer", work / f"pretraining-{steps}"
    if not tokenizer.exists():
        words = ["--vocabulary-size", VOCABULARY, "--output", tokenizer]
        run_command(["pretrain", "tokenizer", "--data", text, *words], threads=1)
    options = ["--data", text, "--tokenizer", tokenizer, "--steps", steps, *PRETRAINING, *ONCE, "--output", run]
    result = run_command(["pretrain", "mlm", *options], threads=1)
    folder.symlink_to(run.resolve())
    held_out, frequencies = result["scores"]["loss"], result["baselines"]["token frequencies"]["loss"]
    return {"loss": round(held_out, 3), "loss_of_frequencies": round(frequencies, 3), "tokens": result["tokens"]}
