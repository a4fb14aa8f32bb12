"""How many requests a server answers, how fast, and whether any is lost or mixed up, on the loopback.

    python -m benchmarks.serving RUN --texts FILE --out results.jsonl [--parts load,many,overload,memory]
        [--exported NAME=FOLDER ...] [--rounds 3]

RUN classifies texts, and FILE has one text per line. Each case is one JSON line in the results, and one that is there
is not measured again. `load` puts 1, 8, 32 and 64 clients on bertkit, on its exported folders, and on the peers of
`benchmarks.serving_peers`, in turns. `many` compares every answer with that of `bertkit predict`, `overload` counts
refusals of a short queue, and `memory` reads the server's memory as requests go by.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.cases import ROOT
from benchmarks.load import machine
from benchmarks.schedules import read_runs
from bertkit.storage.files import split_lines

CLIENTS = (1, 8, 32, 64)
TOLERANCE = 1e-5  # of a probability
NAIVE, LITSERVE, OURS = "naive", "LitServe", "bertkit"


@contextmanager
def serving(run: Path, engine: str, *options: str) -> Iterator[tuple[int, int]]:
    """Start a server in a process of its own; yield its port and the number of the process."""
    port = 8600 + os.getpid() % 1000
    command = [sys.executable, "-m", "bertkit", "serve", f"model={run}", "--port", str(port), *options]
    if engine in (NAIVE, LITSERVE):
        command = [sys.executable, "-m", "benchmarks.serving_peers", engine, str(run), str(port)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log, stdout=log, start_new_session=True)
        try:
            asyncio.run(_wait_for(port, process))
            yield port, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # processes of LitServe that outlive it would keep the port


async def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            await asyncio.open_connection("127.0.0.1", port)
            return
        except OSError:
            await asyncio.sleep(0.2)
    raise SystemExit("the server has ended before it answered")


class Client:
    """One connection, on which requests follow each other."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: Any = None

    async def ask(self, text: str) -> tuple[int, Any]:
        """Return the status and the content of an answer."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        body = json.dumps({"inputs": text}).encode()
        head = "POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = re.search(r"content-length: (\d+)", answer)
        content = await reader.readexactly(int(length[1]) if length else 0)
        if "connection: close" in answer:
            writer.close()
            self.streams = None
        return int(answer.split(" ", 2)[1]), json.loads(content)


async def put_load(
    port: int, texts: Sequence[str], clients: int, *, requests: int = 0, seconds: float = 0
) -> tuple[list[float], list[tuple[str, int, Any]]]:
    """Let clients ask, each one request after the other; return the seconds of each request, and all answers."""
    numbers, ends_at = itertools.count(), time.perf_counter() + seconds
    latencies, answers = list[float](), list[tuple[str, int, Any]]()

    async def ask_on() -> None:
        client = Client(port)
        for number in numbers:
            if (requests and number >= requests) or (seconds and time.perf_counter() >= ends_at):
                return
            text, began = texts[number % len(texts)], time.perf_counter()
            try:
                status, content = await client.ask(text)
            except (OSError, asyncio.IncompleteReadError) as error:
                status, content, client = 0, str(error), Client(port)
            latencies.append(time.perf_counter() - began)
            answers.append((text, status, content))

    await asyncio.gather(*(ask_on() for _ in range(clients)))
    return latencies, answers


def expected_scores(run: Path, texts: Sequence[str]) -> dict[str, dict[str, float]]:
    """Predict each text with `bertkit predict`: text -> probabilities."""
    from bertkit.recipe import load_recipe
    from bertkit.workflows.predict import predict

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.jsonl"
        recipe = load_recipe(str(run / "recipe.yaml"), {"model": str(run), "data.columns.text": "text"})
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
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


def _describe(latencies: Sequence[float], seconds: float) -> dict[str, float]:
    p50, p99 = np.percentile(latencies, [50, 99]) * 1000
    return {"requests": len(latencies), "per_second": len(latencies) / seconds, "p50_ms": p50, "p99_ms": p99}


def measure_load(run: Path, texts: Sequence[str], engine: str, clients: int, seconds: float) -> dict[str, Any]:
    """Measure throughput and latency under so many clients, after a few seconds of warming up."""
    with serving(run, engine) as (port, _):
        asyncio.run(put_load(port, texts, clients, seconds=min(seconds, 3)))
        began = time.perf_counter()
        latencies, answers = asyncio.run(put_load(port, texts, clients, seconds=seconds))
        taken = time.perf_counter() - began
    failed = sum(status != 200 for _, status, _ in answers)
    keys = {"engine": engine, "clients": clients, "machine": machine(os.cpu_count() or 1)["cpu"]}
    return {**keys, **_describe(latencies, taken), "failed": failed}


def measure_many(run: Path, texts: Sequence[str], requests: int, *options: str) -> dict[str, Any]:
    """Compare the answers to many requests with those of predict; 64 clients, or 256 for a queue that is too short."""
    expected, clients = expected_scores(run, texts), 256 if options else 64
    with serving(run, "bertkit", *options) as (port, _):
        began = time.perf_counter()
        latencies, answers = asyncio.run(put_load(port, texts, clients, requests=requests))
        seconds = time.perf_counter() - began
    return {**_describe(latencies, seconds), **count_outcomes(answers, expected)}


def measure_memory(run: Path, texts: Sequence[str], requests: int, parts: int = 10) -> dict[str, Any]:
    """Read the server's memory ten times while requests go by."""
    with serving(run, "bertkit") as (port, process):
        megabytes = []
        for _ in range(parts):
            asyncio.run(put_load(port, texts, 32, requests=requests // parts))
            status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
            megabytes.append(int(status.split("VmRSS:")[1].split()[0]) / 1024)
    return {"requests": requests, "megabytes": [round(value, 1) for value in megabytes]}


def serving_part(reports: Sequence[Mapping[str, Any]]) -> str:
    """Write the table of docs/benchmarks.md: each server under each load, medians over the rounds."""
    loads = [one for one in reports if "clients" in one]
    counts = sorted({one["clients"] for one in loads})
    heads = "".join(f" {count} client{'s' if count > 1 else ''} |" for count in counts)
    lines = [f"| requests/s (p50 and p99, ms) |{heads}", f"|---|{'---:|' * len(counts)}"]
    for engine in dict.fromkeys(one["engine"] for one in loads):
        cells = []
        for count in counts:
            of_case = [one for one in loads if (one["engine"], one["clients"]) == (engine, count)]
            rate, p50, p99 = (median(one[name] for one in of_case) for name in ("per_second", "p50_ms", "p99_ms"))
            cells.append(f"{rate:,.0f} ({p50:.0f}, {p99:.0f})")
        lines.append(f"| {engine} | {' | '.join(cells)} |")
    rounds = max(Counter((one["engine"], one["clients"]) for one in loads).values())
    failed = sum(one["failed"] for one in loads)
    requests = sum(one["requests"] for one in loads)
    lines += ["", f"Medians of {rounds} rounds. {failed} of {requests:,} requests failed. "]
    lines[-1] += f"{loads[0]['machine']}; the clients run on the same cores."
    return "\n".join(lines)


def main() -> None:
    """Measure the cases that are not in the results yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", default="load,many,overload,memory")
    parser.add_argument("--clients", type=int, nargs="*", default=CLIENTS)
    parser.add_argument("--exported", nargs="*", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=100_000)
    options = parser.parse_args()
    run, parts, count = options.run.resolve(), options.parts.split(","), options.requests
    texts = list(dict.fromkeys(line for line in split_lines(options.texts.read_text(encoding="utf-8")) if line.strip()))
    done = {one["case"] for one in read_runs(options.out)}
    cases: dict[str, Any] = {}
    if "load" in parts:
        engines = {OURS: run, NAIVE: run} | ({LITSERVE: run} if find_spec("litserve") else {})
        engines |= {
            name: Path(folder).resolve() for name, _, folder in (each.partition("=") for each in options.exported)
        }
        for turn, clients, engine in itertools.product(range(1, options.rounds + 1), options.clients, engines):
            case = (measure_load, engines[engine], engine, clients, options.seconds)
            cases[f"{engine}, {clients} clients, round {turn}"] = case
    if "many" in parts:
        cases[f"{count:,} requests"] = (measure_many, run, count)
    if "overload" in parts:
        cases[f"overload, {count:,} requests"] = (measure_many, run, count, "--queue", "64")
    if "memory" in parts:
        cases[f"memory, {2 * count:,} requests"] = (measure_memory, run, 2 * count)
    for case, (measure, folder, *arguments) in cases.items():
        if case not in done:
            line = json.dumps({"case": case, **measure(folder, texts, *arguments)})
            print(line, flush=True)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
