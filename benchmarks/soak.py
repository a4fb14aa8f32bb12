"""Whether a server stays whole under clients that do not stop, some of whose requests are wrong, on the loopback.

    python -m benchmarks.soak RUN --texts FILE [--seconds 600]

RUN classifies texts, and FILE has one text per line. 32 clients ask; every tenth request is wrong in one of the ways of
`WRONG`. Counted are the statuses of each kind and the answers that are not those of their text; the server's memory is
read eleven times.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, measure_once, read_options
from benchmarks.load import used_memory
from benchmarks.serving import OURS, Client, count_outcomes, expected_scores, put_load, serving
from bertkit.storage.files import split_lines

_BF16 = 0.02  # in bf16, how an answer is rounded depends on the shape of its batch
WRONG: dict[str, tuple[Any, str, int]] = {
    "no JSON": (b'{"inputs": "good', "/predict", 400),
    "a number": (7, "/predict", 422),
    "no text": ([], "/predict", 422),
    "too many rows": (["good"] * 2000, "/predict", 422),
    "no such address": ("good", "/nowhere", 404),
    "too large": (b'{"inputs": "' + b"good " * 1_000_000 + b'"}', "/predict", 413),
}
"""Kind of a wrong request -> its input, its address, and the status that it must have."""


def measure_soak(run: Path, texts: Sequence[str], seconds: float) -> dict[str, Any]:
    """Have 32 clients ask while every tenth request is wrong in one of the ways; read the memory each tenth of it."""
    expected = expected_scores(run, texts)
    answers, by_kind, megabytes = list[tuple[str, int, Any]](), Counter[str](), []

    async def ask_on(port: int, client_number: int, ends_at: float) -> None:
        client = Client(port)
        for number in itertools.count(client_number):
            if time.perf_counter() >= ends_at:
                return
            if number % 10:
                text = texts[number % len(texts)]
                answers.append((text, *await client.ask(text)))
            else:
                inputs, path, _ = WRONG[kind := list(WRONG)[number // 10 % len(WRONG)]]
                status, _ = await client.ask(inputs, path)
                by_kind[f"{kind}: {status}"] += 1

    async def ask_all(port: int, process: int) -> None:
        began = time.perf_counter()
        clients = [asyncio.create_task(ask_on(port, 37 * number, began + seconds)) for number in range(32)]
        for part in range(11):
            await asyncio.sleep(max(0.0, began + part * seconds / 10 - time.perf_counter()))
            megabytes.append(round(used_memory(process), 1))
        await asyncio.gather(*clients)

    with serving(run, OURS) as (port, process):
        asyncio.run(put_load(port, texts, 32, seconds=3))
        asyncio.run(ask_all(port, process))
    assert set(by_kind) == {f"{kind}: {status}" for kind, (_, _, status) in WRONG.items()}, by_kind
    return {
        "seconds": seconds,
        "by_kind": dict(by_kind),
        "megabytes": megabytes,
        **count_outcomes(answers, expected, _BF16),
    }


def main() -> None:
    asked = read_options(__doc__, "run", texts=Path, seconds=600.0, output=RESULTS / "soak.jsonl")
    lines = split_lines(asked.texts.read_text(encoding="utf-8"))
    texts, run = list(dict.fromkeys(line for line in lines if line.strip())), Path(asked.run).resolve()
    report = measure_once(asked.output, {"seconds": asked.seconds}, lambda: measure_soak(run, texts, asked.seconds))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
