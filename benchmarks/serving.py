"""How many requests a server answers, and how fast, on the loopback.

    python -m benchmarks.serving RUN --texts FILE [--parts load,fairness] [--exported NAME=FOLDER ...]

RUN classifies texts, and FILE has one text per line. Each case is one line of serving.jsonl, and one that is there is
not measured again. `load` puts 1, 8, 32 and 128 clients on bertkit, on its exported folders, and on the peers of
`benchmarks.serving_peers`, in turns; `--engines bertkit bertkit@FOLDER` compares with another checkout. `fairness`
times short requests alone, and beside clients whose requests have 256 long rows each. `benchmarks.soak` compares every
answer with that of `bertkit predict`.
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

from benchmarks.harness import RESULTS, Report, measure_once, read_options, split_checkout, start_program, table
from benchmarks.load import machine
from bertkit.storage.files import split_lines

CLIENTS = [1, 8, 32, 128]
NAIVE, NAIVE_BF16, LITSERVE, OURS = "naive", "naive, bf16", "LitServe", "bertkit"


@contextmanager
def serving(run: Path, engine: str) -> Iterator[tuple[int, int]]:
    """Start a server in a process of its own; yield its port and the number of the process."""
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
                os.killpg(process.pid, signal.SIGKILL)  # processes of LitServe that outlive it would keep the port


async def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            await asyncio.open_connection("127.0.0.1", port)
            return
        except OSError:
            await asyncio.sleep(0.2)
    raise SystemExit("the server has ended before it answered")


def read_texts(file: Path) -> list[str]:
    """Read the distinct lines of a file."""
    return list(dict.fromkeys(line for line in split_lines(file.read_text(encoding="utf-8")) if line.strip()))


class Client:
    """One connection, on which requests follow each other."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: Any = None

    async def ask(self, inputs: Any, path: str = "/predict") -> tuple[int, Any]:
        """Return the status and the content of an answer, to a text or a list of lists of texts; bytes are no JSON."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        body = inputs if isinstance(inputs, bytes) else json.dumps({"inputs": inputs}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = re.search(r"content-length: (\d+)", answer)
        content = await reader.readexactly(int(length[1]) if length else 0)
        if "connection: close" in answer:
            writer.close()
            self.streams = None
        return int(answer.split(" ", 2)[1]), json.loads(content)


async def put_load(port: int, texts: Sequence[str], clients: int, seconds: float) -> tuple[list[float], list[int]]:
    """Let clients ask, each one request after the other; return the seconds and the status of each request."""
    numbers, ends_at = itertools.count(), time.perf_counter() + seconds
    latencies, statuses = list[float](), list[int]()

    async def ask_on() -> None:
        client = Client(port)
        for number in numbers:
            if (began := time.perf_counter()) >= ends_at:
                return
            try:
                status, _ = await client.ask(texts[number % len(texts)])
            except (OSError, asyncio.IncompleteReadError):
                status, client = 0, Client(port)
            latencies.append(time.perf_counter() - began)
            statuses.append(status)

    await asyncio.gather(*(ask_on() for _ in range(clients)))
    return latencies, statuses


def _describe(latencies: Sequence[float], seconds: float) -> dict[str, float]:
    p50, p99 = np.percentile(latencies, [50, 99]) * 1000
    return {"requests": len(latencies), "per_second": len(latencies) / seconds, "p50_ms": p50, "p99_ms": p99}


def measure_load(run: Path, texts: Sequence[str], engine: str, clients: int, seconds: float) -> dict[str, Any]:
    """Measure throughput and latency under so many clients, after a few seconds of warming up."""
    with serving(run, engine) as (port, _):
        asyncio.run(put_load(port, texts, clients, min(seconds, 3)))
        began = time.perf_counter()
        latencies, statuses = asyncio.run(put_load(port, texts, clients, seconds))
        taken = time.perf_counter() - began
    failed = sum(status != 200 for status in statuses)
    keys = {"engine": engine, "clients": clients, "machine": machine(os.cpu_count() or 1)["cpu"]}
    return {**keys, **_describe(latencies, taken), "failed": failed}


def measure_fairness(run: Path, texts: Sequence[str], engine: str, floods: int, seconds: float) -> dict[str, Any]:
    """Time the requests of one client with one text each, while others ask for 256 long ones each time."""
    long_text = " ".join(texts[:30])  # more than the model reads

    async def ask_all(port: int) -> tuple[list[float], list[float]]:
        ends_at = time.perf_counter() + seconds

        async def ask_on(inputs: Callable[[int], Any]) -> list[float]:
            client, latencies = Client(port), list[float]()
            for number in itertools.count():
                if (began := time.perf_counter()) >= ends_at:
                    return latencies
                status, content = await client.ask(inputs(number))
                assert status == 200, content
                latencies.append(time.perf_counter() - began)
            return latencies

        rows = [[f"{number} {long_text}"] for number in range(256)]
        short, *flooding = await asyncio.gather(
            ask_on(lambda number: texts[number % len(texts)]), *(ask_on(lambda _: rows) for _ in range(floods))
        )
        return short, list(itertools.chain.from_iterable(flooding))

    with serving(run, engine) as (port, _):
        asyncio.run(put_load(port, texts, 1, 1))
        short, flooding = asyncio.run(ask_all(port))
    found = {"engine": engine, "floods": floods, **_describe(short, seconds)}
    if flooding:
        found |= {"flood_seconds": median(flooding), "flood_rows_per_second": 256 * len(flooding) / seconds}
    return found


def serving_part(reports: Sequence[Mapping[str, Any]]) -> str:
    """Build the table of each server under each load, medians over the rounds."""
    loads = [case for case in reports if "clients" in case]
    cases: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for case in loads:
        cases.setdefault(case["engine"], {}).setdefault(case["clients"], []).append(case)

    def show(count: int, of_engine: tuple[str, dict[int, list[Mapping[str, Any]]]]) -> str:
        names = ("per_second", "p50_ms", "p99_ms")
        rate, p50, p99 = (median(case[name] for case in of_engine[1][count]) for name in names)
        return f"{rate:,.0f} ({p50:.0f}, {p99:.0f})"

    columns: dict[str, Any] = {"requests/s (p50 and p99, ms)": lambda of_engine: of_engine[0]}
    for count in sorted({case["clients"] for case in loads}):
        columns[f"{count} client{'s' if count > 1 else ''}"] = partial(show, count)
    rounds = sorted({len(rounds) for by_count in cases.values() for rounds in by_count.values()})
    failed, requests = (sum(case[name] for case in loads) for name in ("failed", "requests"))
    shown = " to ".join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))
    told = f"Medians of {shown} rounds. {failed} of {requests:,} requests failed. {loads[0]['machine']}; "
    return f"{table(columns, cases.items())}\n\n{told}the clients run on the same cores."


def main() -> None:
    own = {"texts": Path, "parts": "load", "clients": CLIENTS, "exported": [str]}
    own |= {"seconds": 30.0, "rounds": 3, "engines": [OURS, NAIVE, NAIVE_BF16, LITSERVE]}
    asked = read_options(__doc__, "run", **own, output=RESULTS / "serving.jsonl")
    run, parts, texts = Path(asked.run).resolve(), asked.parts.split(","), read_texts(asked.texts)
    cases: dict[str, partial[Report]] = {}
    if "load" in parts:
        names = [name for name in asked.engines if name != LITSERVE or find_spec("litserve")]
        engines = dict.fromkeys(names, run)
        exported = (each.partition("=") for each in asked.exported)
        engines |= {name: Path(folder).resolve() for name, _, folder in exported}
        for turn, clients, engine in itertools.product(range(1, asked.rounds + 1), asked.clients, engines):
            case = partial(measure_load, engines[engine], texts, engine, clients, asked.seconds)
            cases[f"{engine}, {clients} clients, round {turn}"] = case
    if "fairness" in parts:
        ours = [name for name in asked.engines if name.startswith(OURS)]
        for turn, floods, engine in itertools.product(range(1, asked.rounds + 1), (0, 1, 3), ours):
            name = f"{'' if engine == OURS else f'{engine}, '}fairness, {floods} floods, round {turn}"
            cases[name] = partial(measure_fairness, run, texts, engine, floods, asked.seconds)
    for name, measure in cases.items():
        measure_once(asked.output, {"case": name}, measure)


if __name__ == "__main__":
    main()
