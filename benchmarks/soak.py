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
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, measure_once, read_options, write_rows
from benchmarks.load import used_memory
from benchmarks.serving import OURS, Client, put_load, read_texts, serving

TOLERANCE = 0.02  # of a probability: in bf16, how an answer is rounded depends on the shape of its batch
WRONG: dict[str, tuple[Any, str, int]] = {
    "no JSON": (b'{"inputs": "good', "/predict", 400),
    "a number": (7, "/predict", 422),
    "no text": ([], "/predict", 422),
    "too many rows": (["good"] * 2000, "/predict", 422),
    "no such address": ("good", "/nowhere", 404),
    "too large": (b'{"inputs": "' + b"good " * 1_000_000 + b'"}', "/predict", 413),
}
"""Kind of a wrong request -> its input, its address, and the status that it must have."""


def expected_scores(run: Path, texts: Sequence[str]) -> dict[str, dict[str, float]]:
    """Predict each text with `bertkit predict`: text -> probabilities."""
    from bertkit.recipe import load_recipe
    from bertkit.workflows.predict import predict

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.jsonl"
        recipe = load_recipe(str(run / "recipe.yaml"), {"model": str(run), "data.columns.text": "text"})
        write_rows(({"text": text} for text in texts), file)
        return {record["text"]: record["probabilities"] for record in predict(recipe, source=file)}


def count_outcomes(
    answers: Sequence[tuple[str, int, Any]], expected: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Count the statuses, and the answers that are not those of their text; find the largest difference."""
    largest, wrong = 0.0, 0
    for text, status, content in answers:
        if status == 200:
            off = max(abs(expected[text][one["label"]] - one["score"]) for one in content)
            largest, wrong = max(largest, off), wrong + (off > TOLERANCE)
    statuses = Counter(str(status) for _, status, _ in answers)
    return {"statuses": dict(statuses), "lost": statuses["0"], "mixed": wrong, "largest_difference": largest}


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
        asyncio.run(put_load(port, texts, 32, 3))
        asyncio.run(ask_all(port, process))
    assert set(by_kind) == {f"{kind}: {status}" for kind, (_, _, status) in WRONG.items()}, by_kind
    return {
        "seconds": seconds,
        "by_kind": dict(by_kind),
        "megabytes": megabytes,
        **count_outcomes(answers, expected),
    }


def main() -> None:
    asked = read_options(__doc__, "run", texts=Path, seconds=600.0, output=RESULTS / "soak.jsonl")
    texts, run = read_texts(asked.texts), Path(asked.run).resolve()
    report = measure_once(asked.output, {"seconds": asked.seconds}, lambda: measure_soak(run, texts, asked.seconds))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
