"""Responses and memory of a server under constant load with some invalid requests, on the loopback interface.

    python -m benchmarks.soak RUN --texts FILE [--seconds 600]

RUN classifies texts, and FILE has one text per line. 32 clients send requests; every tenth request is invalid (see
`INVALID`). The report counts the statuses of each kind and the responses with scores of another text, and has eleven
readings of the server's memory.
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
from benchmarks.serving import OURS, Client, put_load, read_texts, run_server

TOLERANCE = 0.02  # maximum difference of probabilities; rounding in bf16 depends on the batch
INVALID: dict[str, tuple[Any, str, int]] = {
    "no JSON": (b'{"inputs": "good', "/predict", 400),
    "a number": (7, "/predict", 422),
    "no text": ([], "/predict", 422),
    "too many rows": (["good"] * 2000, "/predict", 422),
    "no such address": ("good", "/nowhere", 404),
    "too large": (b'{"inputs": "' + b"good " * 1_000_000 + b'"}', "/predict", 413),
}
"""Kind of an invalid request -> its input, its path, and the expected status."""


def predict_scores(run: Path, texts: Sequence[str]) -> dict[str, dict[str, float]]:
    """Predict each text with `bertkit predict`: text -> probabilities."""
    from bertkit.recipe import load_recipe
    from bertkit.workflows.predict import predict

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.jsonl"
        recipe = load_recipe(str(run / "recipe.yaml"), {"model": str(run), "data.columns.text": "text"})
        write_rows(({"text": text} for text in texts), file)
        return {record["text"]: record["probabilities"] for record in predict(recipe, source=file)}


def count_outcomes(
    responses: Sequence[tuple[str, int, Any]], expected: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Count the statuses and the responses with scores of another text, and find the largest difference."""
    differences = [
        max(abs(expected[text][entry["label"]] - entry["score"]) for entry in content)
        for text, status, content in responses
        if status == 200
    ]
    statuses = Counter(str(status) for _, status, _ in responses)
    mixed = sum(difference > TOLERANCE for difference in differences)
    counts = {"statuses": dict(statuses), "lost": statuses["0"], "mixed": mixed}
    return {**counts, "largest_difference": max(differences, default=0.0)}


def measure_soak(run: Path, texts: Sequence[str], seconds: float) -> dict[str, Any]:
    """Send requests of 32 clients, and read the server's memory eleven times."""
    expected = predict_scores(run, texts)
    responses, by_kind, megabytes = list[tuple[str, int, Any]](), Counter[str](), []

    async def post_requests(port: int, first: int, deadline: float) -> None:
        client = Client(port)
        for index in itertools.count(first):
            if time.perf_counter() >= deadline:
                return
            if index % 10:
                text = texts[index % len(texts)]
                responses.append((text, *await client.post(text)))
            else:
                inputs, path, _ = INVALID[kind := list(INVALID)[index // 10 % len(INVALID)]]
                status, _ = await client.post(inputs, path)
                by_kind[f"{kind}: {status}"] += 1

    async def run_clients(port: int, process: int) -> None:
        start = time.perf_counter()
        clients = [asyncio.create_task(post_requests(port, 37 * index, start + seconds)) for index in range(32)]
        for part in range(11):
            await asyncio.sleep(max(0.0, start + part * seconds / 10 - time.perf_counter()))
            megabytes.append(round(used_memory(process), 1))
        await asyncio.gather(*clients)

    with run_server(run, OURS) as (port, process):
        asyncio.run(put_load(port, texts, 32, 3))
        asyncio.run(run_clients(port, process))
    assert set(by_kind) == {f"{kind}: {status}" for kind, (_, _, status) in INVALID.items()}, by_kind
    memory = {"seconds": seconds, "by_kind": dict(by_kind), "megabytes": megabytes}
    return {**memory, **count_outcomes(responses, expected)}


def main() -> None:
    options = read_options(__doc__, "run", texts=Path, seconds=600.0, output=RESULTS / "soak.jsonl")
    texts, run, seconds = read_texts(options.texts), Path(options.run).resolve(), options.seconds
    report = measure_once(options.output, {"seconds": seconds}, lambda: measure_soak(run, texts, seconds))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
