"""Where the time of a training step goes on a CPU, by torch's profiler.

    python -m benchmarks.profiling TASK --tokenizer DIR --data DIR [--type bert] [--shape small]

Profiles 20 steps of bertkit on an encoder with random weights, and adds a line to profile.jsonl. Set OMP_NUM_THREADS=1.
A part is what its operations take themselves. `python` is the rest: Python, masks of dropout, waiting for a batch.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.cases import make_case
from benchmarks.encoders import make_model
from benchmarks.engines import Gate, run_bertkit
from benchmarks.harness import RESULTS, Report, measure_once, read_options, table

PARTS = {
    "products": ("addmm", "mm", "matmul", "linear", "mkldnn_linear"),
    "attention": ("bmm", "baddbmm", "scaled_dot_product", "softmax", "varlen", "tril", "masked_fill"),
    "activation": ("gelu", "silu", "tanh"),
    "norms": ("native_layer_norm", "layer_norm", "rms_norm"),
    "gathering": ("index", "gather", "scatter", "embedding", "take", "nonzero", "unique"),
    "copies and casts": ("copy", "to_copy", "clone", "cat", "constant_pad", "fill", "zero"),
    "sums": ("add", "sub", "mul", "div", "neg", "sum", "where", "pow", "sqrt"),
    "optimizer": ("fused_adam", "foreach", "linalg", "norm", "Optimizer.step"),
}
"""Part -> how the names of its operations begin, without their library and underscores; the longest one decides."""
WARM, STEPS = 10, 20


class ProfiledGate(Gate):
    """Profiles the steps that follow the first ones, and leaves training with `Profiled`."""

    def __init__(self, parts: int = 1) -> None:
        from torch.profiler import ProfilerActivity, profile

        super().__init__(parts)
        self.profile, self.turns = profile(activities=[ProfilerActivity.CPU]), 0

    def tell(self, facts: dict[str, Any]) -> None:
        """Keep what a turn took."""
        if self.turns == 2:
            self.profile.stop()
            seconds = Counter[str]()
            for event in self.profile.key_averages():
                seconds[part_of(event.key)] += event.self_cpu_time_total / 1e6
            raise Profiled({**facts, "parts": seconds})

    def listen(self) -> int:
        """Run some steps, and then those that are profiled."""
        self.turns += 1
        if self.turns == 2:
            self.profile.start()
        return WARM if self.turns == 1 else STEPS


class Profiled(Exception):
    """Steps have been profiled: their facts."""


def part_of(operation: str) -> str:
    """Return the part that an operation belongs to; `other` if its name is in none."""
    library, _, name = operation.rpartition("::")
    name = (name if library else operation).strip("_")
    fits = [(len(begin), part) for part, begins in PARTS.items() for begin in begins if name.startswith(begin)]
    return max(fits)[1] if fits else "other"


def measure(task: str, names: Report, tokenizer: Path, data: Path) -> Report:
    """Profile a training; return the share of each part, and the tokens of a step."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(names["type"], names["shape"], tokenizer, folder / "model")
        try:
            run_bertkit(make_case(task, folder / "model", data, limit=2000), "", str(folder), ProfiledGate)
        except Profiled as error:
            facts = error.args[0]
    shares = {part: round(facts["parts"][part] / facts["seconds"], 3) for part in [*PARTS, "other"]}
    return {**names, "tokens": facts["tokens"] // STEPS, **shares}


def profile_part(lines: list[Report]) -> str:
    """Write the table of the benchmarks page."""
    titles = ["task", "encoder", "tokens a step", *PARTS, "other", "python"]
    rows = []
    for line in lines:
        shares = [line[part] for part in [*PARTS, "other"]]
        shares.append(max(0.0, 1 - sum(shares)))
        about = [line["task"], f"{line['type']}, {line['shape']}", line["tokens"]]
        rows.append([*about, *(f"{share:.0%}" for share in shares)])
    return table(titles, rows, "ll" + "r" * (len(titles) - 2))


def main() -> None:
    asked = read_options(__doc__, "task data", tokenizer=Path, type="bert", shape=("small", "small or base"))
    names = {"task": asked.task, "type": asked.type, "shape": asked.shape}
    line = measure_once(
        RESULTS / "profile.jsonl", names, lambda: measure(asked.task, names, asked.tokenizer, asked.data)
    )
    print(profile_part([line]))


if __name__ == "__main__":
    main()
