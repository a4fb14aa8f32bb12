"""Send bertkit damaged files, recipes and requests (see attack.py).

The functions of commands read files of each kind (attack_targets.py) in this process, and complete commands read some.
Requests go to the app of `bertkit serve` together with valid requests, whose responses are compared; some go over a
socket as raw bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import logging
import random
import socket
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.server.conftest import Client, Reply, make_sentence_folder
from tests.server.test_decisions import OPENAI, STATE, TYPESAFE
from tests.server.test_run import served
from tools.attack_targets import Target, all_targets, try_target, warm_up
from tools.attack_yard import Yard, find_crash

SCRAPS: tuple[bytes, ...] = (
    *(b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\x85", b"\xe2\x80\xa8", b"\xf0\x9f\x98\x80", b"\xed\xa0\x80"),
    *(b'"', b"'", b",", b";", b"\t", b"\r", b"\r\n", b"\n\n", b"\\", b"\\ud800", b"\\u0000", b" ", b": ", b"- ", b"#"),
    *(b"NaN", b"-Infinity", b"1e999", b"-1", b"9" * 500, b"null", b"true", b"{", b"}", b"[", b"]", b"[" * 20_000),
    *(b"&a *a", b"!!python/object:os.system", b"<<: ", b"\x1f\x8b", b"PK\x03\x04", b"PAR1", b"a" * 70_000),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 2**63, 10**400, float("nan"), float("-inf")),
    *("", " ", "\0", "\ud800", "a" * 70_000),
    *([], {}, [[]], [None], ["a", 1], {"a": None}, {"text": {"text": "a"}}, "\u2028", "good\nfilm", ["good"] * 300),
)

CLASSIFY = {"inputs": [["the good film"], ["a bad song"]]}
REQUESTS: dict[str, Any] = {
    "/predict": CLASSIFY,
    "/v1/models/run:predict": {"instances": [{"text": "the good film"}, {"text": "a song"}]},
    "/embed": {"inputs": ["the good film", "a dull book"], "normalize": True},
    "/v1/embeddings": {"input": ["the good film"], "model": "vectors", "encoding_format": "float"},
    "/v1/decisions": {"input": STATE, "questions": OPENAI},
    "/v1/systemone": {"state": STATE, "questions": TYPESAFE},
}
PACKED = {".gz": (gzip.decompress, gzip.compress), ".spacy": (zlib.decompress, zlib.compress)}
HEADERS = ("content_type", "content_length", "x_request_id", "authorization", "accept")
HEADER_VALUES = (
    *("text/plain", "application/json; charset=utf-16", "", "\x7f", "a" * 9000, "multipart/form-data", "-1", "1e9"),
)
ANSWERED = {200, 400, 404, 405, 413, 415, 422, 429}


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with one to four edits: a bit, a scrap, or a range that is removed, repeated or moved."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((1, 1, 4, 20, 200)))
        span, kind = data[start:end], rng.randrange(6)
        if kind == 0 and span:
            data = data[:start] + bytes([span[0] ^ 1 << rng.randrange(8)]) + data[start + 1 :]
        elif kind in (1, 2):
            data = data[:start] + rng.choice(SCRAPS) + data[start:]
        elif kind == 3:
            data = data[:start] + data[end:]
        elif kind == 4:
            data = data[:end] + span + data[end:]
        else:
            data = data[:start] if rng.random() < 0.3 else span + data[:start] + data[end:]
    return data


def mutate_value(value: Any, rng: random.Random) -> Any:
    """Return JSON with one value that is replaced, removed, repeated, or under another key."""
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.2:
        return rng.choice(VALUES)
    if isinstance(value, list):
        position = rng.randrange(len(value))
        return rng.choice(
            (
                value[:position] + value[position + 1 :],
                value * 2,
                [*value[:position], mutate_value(value[position], rng)],
            )
        )
    key = rng.choice(list(value))
    rest = {name: entry for name, entry in value.items() if name != key}
    changed = {**rest, key: mutate_value(value[key], rng)}
    renamed = {**rest, rng.choice(("", "Text", "\0", "x" * 300)): value[key]}
    return rng.choice((changed, changed, changed, rest, renamed))


def damage_content(target: Target, rng: random.Random) -> bytes:
    """Return the content of a target with damaged bytes, or with a damaged value or unpacked content."""
    unpack, pack = PACKED.get(Path(target.file).suffix, (None, None))
    if unpack and pack and rng.random() < 0.5:
        return pack(mutate(unpack(target.content), rng))
    is_lines = target.file.endswith(".jsonl")
    if (is_lines or target.file.endswith(".json")) and rng.random() < 0.5:
        lines = target.content.split(b"\n") if is_lines else [target.content]
        position = rng.randrange(len(lines) - 1 or 1)
        lines[position] = json.dumps(mutate_value(json.loads(lines[position]), rng)).encode()
        return b"\n".join(lines)
    return mutate(target.content, rng)


def find_bad_reply(reply: Reply | None) -> tuple[str, str | None]:
    """Return the status of a response, and its failure: an unexpected status, or a body that is not JSON."""
    if reply is None:
        return "gone", None
    try:
        json.loads(reply.body)
        is_json = True
    except ValueError:
        is_json = False
    is_good = is_json and reply.status in ANSWERED
    return str(reply.status), None if is_good else f"status {reply.status}: {reply.body[:300]!r}"


def is_close(first: Any, second: Any) -> bool:
    """Return whether two responses are equal up to rounding, which depends on the batch."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(is_close(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(is_close, first, second))
    return abs(first - second) < 1e-4 if isinstance(first, float) and isinstance(second, float) else first == second


async def post_damaged(client: Client, path: str, rng: random.Random) -> tuple[bytes, Reply | None]:
    """Send a damaged request; return its body and the response, or None if the client disconnects."""
    content = REQUESTS[path]
    body = json.dumps(mutate_value(content, rng)).encode()
    if rng.random() < 0.5:
        body = mutate(json.dumps(content).encode(), rng)
    headers = {"content_type": "application/json"}
    if rng.random() < 0.2:
        value = rng.choice(HEADER_VALUES)
        headers[rng.choice(HEADERS)] = value
    position, leaves = rng.randrange(len(body) + 1), rng.random() < 0.1
    chunks = [body[:position], body[position:], *([None] if leaves else [])]
    try:
        return body, await client.ask(rng.choice(("POST",) * 9 + ("PUT",)), path, chunks, headers, leaves)
    except (IndexError, ValueError):  # The server sent nothing, because the client disconnected.
        if leaves:
            return body, None
        raise


EvalResult = tuple[str, str, str, str, str | None]
"""Name, kind, outcome, input and failure of a trial."""


class Trial(NamedTuple):
    """Index and result of a trial."""

    index: int
    name: str
    kind: str
    outcome: str
    how: str
    failure: str | None


def list_valid(client: Client) -> Iterator[tuple[str, Any, Any]]:
    """Yield valid requests: the path, the content and the response."""
    for word in ("good", "bad", "dull", "great"):
        for path in ("/predict", "/embed"):
            text = f"the {word} film"
            content = {"inputs": [[text]] if path == "/predict" else [text]}
            yield path, content, client.post(path, content).json


def fuzz_requests(client: Client, valid: list[tuple[str, Any, Any]], rng: random.Random) -> Iterator[EvalResult]:
    """Send damaged requests and as many valid requests, and compare the responses to the valid ones."""

    async def post_all(paths: list[str]) -> list[Any]:
        damaged = [post_damaged(client, path, rng) for path in paths]
        return await asyncio.gather(*damaged, *(client.ask_json(path, content) for path, content, _ in valid))

    paths = rng.choices(list(REQUESTS), k=len(valid))
    replies = asyncio.run(post_all(paths))
    for path, (body, reply) in zip(paths, replies, strict=False):
        status, failure = find_bad_reply(reply)
        yield path, "requests", status, repr(body[:2000]), failure
    for (path, content, answer), reply in zip(valid, replies[len(valid) :], strict=True):
        if reply.status != 200 or not is_close(reply.json, answer):
            yield path, "requests", "other answer", str(content), f"{reply.status} {reply.body[:300]!r}"


def fuzz_socket(port: int, rng: random.Random) -> Iterator[EvalResult]:
    """Send damaged bytes over a socket, and a valid request afterwards."""
    body = json.dumps(CLASSIFY)
    head = "POST /predict HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    parts = (body[start : start + 9] for start in range(0, len(body), 9))
    chunks = "".join(f"{len(part):x}\r\n{part}\r\n" for part in parts)
    chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n".encode()
    data = mutate(rng.choice((request, chunked)), rng)
    reply = send(port, data)
    status = reply[9:12].decode("latin-1") or "closed"
    failure = None if status == "closed" or (status.isdigit() and int(status) < 500) else f"response {reply[:300]!r}"
    reply = send(port, request)
    if not reply.startswith(b"HTTP/1.1 200") or b"score" not in reply:
        failure = f"the response to a valid request afterwards is {reply[:300]!r}"
    yield "socket", "sockets", status, repr(data[:2000]), failure


def send(port: int, data: bytes) -> bytes:
    """Send bytes, and return the response until the server closes the connection or is silent for a second."""
    reply = b""
    with socket.create_connection(("127.0.0.1", port), 1) as connection, contextlib.suppress(OSError):
        connection.sendall(data)
        while part := connection.recv(65536):
            reply += part
    return reply


COMMANDS = (
    ("predict run {file} -o result.jsonl", ("rows.csv", "rows.tsv", "rows.jsonl", "rows.json")),
    ("embed {file} --model demo --precision fp32 -o result.npy", ("rows.csv", "rows.jsonl")),
    ("check classify --data {file}", ("rows.csv", "rows.jsonl")),
    ("dedup {file} -o result.csv", ("rows.csv", "rows.tsv")),
    ("tokenize {file} --model demo", ("rows.csv",)),
    ("compare {file} run", ("rows.jsonl",)),
    ("finetune ner --data {file} --model demo --dry-run", ("words.conll",)),
    ("finetune squad --data {file} --model demo --dry-run", ("squad.json",)),
    ("recipes check {file}", ("recipe.yaml",)),
    ("test run {file} --limit 8", ("cases.yaml",)),
)


def fuzz_command(yard: Yard, targets: dict[str, Target], rng: random.Random) -> Iterator[EvalResult]:
    """Run a command with a damaged file."""
    command, names = rng.choice(COMMANDS)
    target = targets[rng.choice(names)]
    data = damage_content(target, rng)
    yard.prepare("predict run")
    file = yard.trial / f"fuzzed-{target.file}"
    file.write_bytes(data)
    end = yard.run(command.format(file=file.name))
    failure = find_crash(command, end.code, end.err)
    if file.read_bytes() != data:
        failure = failure or "the file was changed"
    yield command, "commands", "refused" if end.code else "read", repr(data[:2000]), failure


def fuzz_file(targets: dict[str, Target], folder: Path, rng: random.Random) -> Iterator[EvalResult]:
    """Damage a file, and read it."""
    name = rng.choice(list(targets))
    data = damage_content(targets[name], rng)
    outcome, failure = try_target(targets[name], data, folder)
    yield name, "files", outcome, repr(data[:2000]), failure


def fuzz(yard: Yard, seed: int, deadline: float, only: list[int] | None) -> Iterator[Trial]:
    """Yield trials: 320 of 400 read a file, 72 send eight requests, 6 use a socket, and 2 run a command."""
    from bertkit.server.app import build_app
    from bertkit.server.batching import Limits
    from bertkit.server.models import find_models, load_service
    from bertkit.storage.hub import find_model

    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vectors = make_sentence_folder(find_model("demo"), folder / "vectors")
        runs = [str(yard.store / "run"), f"asked={yard.store / 'of-decide'}", str(vectors)]
        service = load_service(find_models(runs), Limits(request_rows=64))
        service.worker.start()
        targets, client = all_targets(folder / "kept", yard.store), Client(build_app(service))
        for target in targets.values():
            warm_up(target, folder)
        valid = list(list_valid(client))
        with served(service) as (port, _):
            for index in only or itertools.count():
                if time.monotonic() > deadline:
                    break
                rng = random.Random(f"{seed} {index}")
                draw = rng.randrange(400)
                if draw < 320:
                    results = fuzz_file(targets, folder, rng)
                elif draw < 392:
                    results = fuzz_requests(client, valid, rng)
                elif draw < 398:
                    results = fuzz_socket(port, rng)
                else:
                    results = fuzz_command(yard, targets, rng)
                for result in results:
                    yield Trial(index, *result)
        service.worker.stop()
