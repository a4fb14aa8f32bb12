"""Throughput and latency of servers on the loopback interface.

    python -m benchmarks.serving RUN --texts FILE [--parts load,fairness] [--exported NAME=FOLDER ...]

RUN classifies texts, and FILE has one text per line. The same command resumes: each case is a line of serving.jsonl.
`load` measures bertkit, its exported folders, and the peers of `benchmarks.serving_peers` with 1 to 128 clients, in
turns; `--engines bertkit bertkit@FOLDER` compares with another checkout. `fairness` measures short requests without
and with clients whose requests have 256 long rows each. `benchmarks.soak` checks every response.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, Report, make_table, measure_once, read_options, split_checkout, start_program
from benchmarks.load import machine
from bertkit.storage.files import split_lines

CLIENTS = [1, 8, 32, 128]
NAIVE, NAIVE_BF16, LITSERVE, OURS = "naive", "naive, bf16", "LitServe", "bertkit"
LONG_ROWS = 256


@contextmanager
def run_server(run: Path, engine: str) -> Iterator[tuple[int, int]]:
    """Start a server in its own process; yield its port and process id."""
    port, cores = 8600 + os.getpid() % 1000, os.cpu_count() or 1
    words: list[object] = ["bertkit", "serve", f"model={run}", "--port", port]
    if engine in (NAIVE, NAIVE_BF16, LITSERVE):
        words = ["benchmarks.serving_peers", engine, run, port]
    with tempfile.TemporaryFile("w+") as log, tempfile.TemporaryDirectory() as cache:
        checkout = split_checkout(engine)[1]
        process = start_program(words, cores, Path(cache), checkout, stderr=log, stdout=log, start_new_session=True)
        try:
            asyncio.run(_wait_for(port, process))
            yield port, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # Processes of LitServe that survive would keep the port.


async def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            await asyncio.open_connection("127.0.0.1", port)
            return
        except OSError:
            await asyncio.sleep(0.2)
    raise SystemExit("the server ended before it accepted connections")


def read_texts(file: Path) -> list[str]:
    """Read the distinct lines of a file."""
    return list(dict.fromkeys(line for line in split_lines(file.read_text(encoding="utf-8")) if line.strip()))


class Client:
    """Connection that sends requests one after the other."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: Any = None

    async def post(self, inputs: Any, path: str = "/predict") -> tuple[int, Any]:
        """Return the status and the JSON of a response; bytes are sent unchanged, other inputs as JSON."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        body = inputs if isinstance(inputs, bytes) else json.dumps({"inputs": inputs}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        response = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = re.search(r"content-length: (\d+)", response)
        content = await reader.readexactly(int(length[1]) if length else 0)
        if "connection: close" in response:
            writer.close()
            self.streams = None
        return int(response.split(" ", 2)[1]), json.loads(content)


async def post_until(port: int, deadline: float, inputs: Iterator[Any]) -> list[tuple[float, int]]:
    """Send requests of one client until a deadline; return seconds and status of each, 0 for a lost connection."""
    client, results = Client(port), []
    for content in inputs:
        if (start := time.perf_counter()) >= deadline:
            break
        try:
            status, _ = await client.post(content)
        except (OSError, asyncio.IncompleteReadError):
            status, client = 0, Client(port)
        results.append((time.perf_counter() - start, status))
    return results


async def put_load(port: int, texts: Sequence[str], clients: int, seconds: float) -> list[tuple[float, int]]:
    """Send requests of several clients; return the seconds and the status of each request."""
    inputs, deadline = itertools.cycle(texts), time.perf_counter() + seconds
    results = await asyncio.gather(*(post_until(port, deadline, inputs) for _ in range(clients)))
    return list(itertools.chain.from_iterable(results))


def _describe(latencies: Sequence[float], seconds: float) -> dict[str, float]:
    p50, p99 = np.percentile(latencies, [50, 99]) * 1000
    return {"requests": len(latencies), "per_second": len(latencies) / seconds, "p50_ms": p50, "p99_ms": p99}


def measure_load(run: Path, texts: Sequence[str], engine: str, clients: int, seconds: float) -> dict[str, Any]:
    """Measure throughput and latency with a number of clients, after a warm-up of at most three seconds."""
    with run_server(run, engine) as (port, _):
        asyncio.run(put_load(port, texts, clients, min(seconds, 3)))
        start = time.perf_counter()
        results = asyncio.run(put_load(port, texts, clients, seconds))
        duration = time.perf_counter() - start
    failed = sum(status != 200 for _, status in results)
    identity = {"engine": engine, "clients": clients, "machine": machine(os.cpu_count() or 1)["cpu"]}
    return {**identity, **_describe([latency for latency, _ in results], duration), "failed": failed}


def measure_fairness(run: Path, texts: Sequence[str], engine: str, floods: int, seconds: float) -> dict[str, Any]:
    """Measure one client with short requests, while `floods` clients send 256 long rows per request."""
    long_text = " ".join(texts[:30])  # longer than the maximum length of the model
    rows = [[f"{index} {long_text}"] for index in range(LONG_ROWS)]

    async def post_all(port: int) -> list[list[tuple[float, int]]]:
        deadline = time.perf_counter() + seconds
        inputs = [itertools.cycle(texts), *(itertools.repeat(rows) for _ in range(floods))]
        return await asyncio.gather(*(post_until(port, deadline, contents) for contents in inputs))

    with run_server(run, engine) as (port, _):
        asyncio.run(put_load(port, texts, 1, 1))
        results = asyncio.run(post_all(port))
    assert {status for client in results for _, status in client} == {200}
    short, *flooding = ([latency for latency, _ in client] for client in results)
    report = {"engine": engine, "floods": floods, **_describe(short, seconds)}
    if latencies := list(itertools.chain.from_iterable(flooding)):
        report["flood_seconds"] = median(latencies)
        report["flood_rows_per_second"] = LONG_ROWS * len(latencies) / seconds
    return report


def serving_part(reports: Sequence[Mapping[str, Any]]) -> str:
    """Build a table of each server with each number of clients, with medians over the rounds."""
    loads = [case for case in reports if "clients" in case]
    cases: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for case in loads:
        cases.setdefault(case["engine"], {}).setdefault(case["clients"], []).append(case)

    def format_cell(rounds: Sequence[Mapping[str, Any]]) -> str:
        names = ("per_second", "p50_ms", "p99_ms")
        rate, p50, p99 = (median(case[name] for case in rounds) for name in names)
        return f"{rate:,.0f} ({p50:.0f}, {p99:.0f})"

    counts = sorted({case["clients"] for case in loads})
    titles = ["requests/s (p50 and p99, ms)", *(f"{count} client{'s' if count > 1 else ''}" for count in counts)]
    rows = [[engine, *(format_cell(by_count[count]) for count in counts)] for engine, by_count in cases.items()]
    rounds = sorted({len(runs) for by_count in cases.values() for runs in by_count.values()})
    failed, requests = (sum(case[name] for case in loads) for name in ("failed", "requests"))
    numbers = " to ".join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))
    note = f"Medians of {numbers} rounds. {failed} of {requests:,} requests failed. {loads[0]['machine']}; "
    return f"{make_table(titles, rows)}\n\n{note}the clients run on the same cores."


def main() -> None:
    settings = {"texts": Path, "parts": "load", "clients": CLIENTS, "exported": [str]}
    settings |= {"seconds": 30.0, "rounds": 3, "engines": [OURS, NAIVE, NAIVE_BF16, LITSERVE]}
    options = read_options(__doc__, "run", **settings, output=RESULTS / "serving.jsonl")
    run, parts, texts = Path(options.run).resolve(), options.parts.split(","), read_texts(options.texts)
    cases: dict[str, Callable[[], Report]] = {}
    rounds = range(1, options.rounds + 1)
    if "load" in parts:
        engines = {name: run for name in options.engines if name != LITSERVE or find_spec("litserve")}
        exported = (item.partition("=") for item in options.exported)
        engines |= {name: Path(folder).resolve() for name, _, folder in exported}
        for index, clients, engine in itertools.product(rounds, options.clients, engines):
            case = partial(measure_load, engines[engine], texts, engine, clients, options.seconds)
            cases[f"{engine}, {clients} clients, round {index}"] = case
    if "fairness" in parts:
        ours = [name for name in options.engines if name.startswith(OURS)]
        for index, floods, engine in itertools.product(rounds, (0, 1, 3), ours):
            name = f"{'' if engine == OURS else f'{engine}, '}fairness, {floods} floods, round {index}"
            cases[name] = partial(measure_fairness, run, texts, engine, floods, options.seconds)
    for name, measure in cases.items():
        measure_once(options.output, {"case": name}, measure)


if __name__ == "__main__":
    main()
