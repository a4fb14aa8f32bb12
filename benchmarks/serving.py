"""Throughput and latency of servers on the loopback interface.

    python -m benchmarks.serving RUN --texts FILE [--exported NAME=FOLDER ...]

RUN classifies texts, and FILE has one text per line. The same command resumes: each case is a line of serving.jsonl.
1 to 128 clients send requests to bertkit, its exported folders, and the peers of `benchmarks.serving_peers`, in turns;
`--engines bertkit bertkit@FOLDER` compares with another checkout. `benchmarks.soak` checks every response.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, make_table, measure_once, read_options, split_checkout, start_program
from benchmarks.load import machine
from bertkit.storage.files import split_lines

CLIENTS = [1, 8, 32, 128]
NAIVE, NAIVE_BF16, LITSERVE, OURS = "naive", "naive, bf16", "LitServe", "bertkit"


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


async def put_load(port: int, texts: Sequence[str], clients: int, seconds: float) -> list[tuple[float, int]]:
    """Send requests of several clients; return seconds and status of each request, 0 for a lost connection."""
    inputs, deadline = itertools.cycle(texts), time.perf_counter() + seconds
    results: list[tuple[float, int]] = []

    async def post_requests() -> None:
        client = Client(port)
        while (start := time.perf_counter()) < deadline:
            try:
                status, _ = await client.post(next(inputs))
            except (OSError, asyncio.IncompleteReadError):
                status, client = 0, Client(port)
            results.append((time.perf_counter() - start, status))

    await asyncio.gather(*(post_requests() for _ in range(clients)))
    return results


def measure_load(run: Path, texts: Sequence[str], engine: str, clients: int, seconds: float) -> dict[str, Any]:
    """Measure throughput and latency with a number of clients, after a warm-up of at most three seconds."""
    with run_server(run, engine) as (port, _):
        asyncio.run(put_load(port, texts, clients, min(seconds, 3)))
        start = time.perf_counter()
        results = asyncio.run(put_load(port, texts, clients, seconds))
        duration = time.perf_counter() - start
    p50, p99 = np.percentile([latency for latency, _ in results], [50, 99]) * 1000
    return {
        "engine": engine,
        "clients": clients,
        "machine": machine(os.cpu_count() or 1)["cpu"],
        "requests": len(results),
        "per_second": len(results) / duration,
        "p50_ms": p50,
        "p99_ms": p99,
        "failed": sum(status != 200 for _, status in results),
    }


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
    settings = {"texts": Path, "clients": CLIENTS, "exported": [str], "seconds": 30.0, "rounds": 3}
    settings["engines"] = [OURS, NAIVE, NAIVE_BF16, LITSERVE]
    options = read_options(__doc__, "run", **settings, output=RESULTS / "serving.jsonl")
    run, texts = Path(options.run).resolve(), read_texts(options.texts)
    engines = {name: run for name in options.engines if name != LITSERVE or find_spec("litserve")}
    exported = (item.partition("=") for item in options.exported)
    engines |= {name: Path(folder).resolve() for name, _, folder in exported}
    for index, clients, engine in itertools.product(range(1, options.rounds + 1), options.clients, engines):
        measure = partial(measure_load, engines[engine], texts, engine, clients, options.seconds)
        measure_once(options.output, {"case": f"{engine}, {clients} clients, round {index}"}, measure)


if __name__ == "__main__":
    main()
