"""Feed bertkit nonsense: files of rows, recipes and requests with damaged bytes and values (see attack.py).

Files are read by the functions that commands call, in this process, and some by whole commands. Requests go to the app
of `bertkit serve` while others, whose answers are known, are computed beside them; some go over a socket, byte by byte
as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import logging
import random
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertkit.data.sources import read_splits
from bertkit.errors import BertkitError
from bertkit.recipe import load_recipe
from bertkit.tasks import load_task
from tests.server.conftest import Client, Reply, make_sentence_folder
from tests.server.test_running import served
from tools.attack_yard import REFUSED, Tally, Yard, find_crash

SCRAPS: tuple[bytes, ...] = (
    *(b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\x85", b"\xe2\x80\xa8", b"\xf0\x9f\x98\x80", b"\xed\xa0\x80"),
    *(b'"', b"'", b",", b";", b"\t", b"\r", b"\r\n", b"\n\n", b"\\", b"\\ud800", b"\\u0000", b" ", b": ", b"- ", b"#"),
    *(b"NaN", b"-Infinity", b"1e999", b"-1", b"9" * 500, b"null", b"true", b"{", b"}", b"[", b"]", b"[" * 20_000),
    *(b"&a *a", b"!!python/object:os.system", b"<<: ", b"\x1f\x8b", b"PK\x03\x04", b"PAR1", b"a" * 70_000),
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1.5,
        2**63,
        10**400,
        float("nan"),
        float("-inf"),
        "",
        " ",
        "\0",
        "\ud800",
        "a" * 70_000,
    ),
    *([], {}, [[]], [None], ["a", 1], {"a": None}, {"text": {"text": "a"}}, "\u2028", "good\nfilm", ["good"] * 300),
)
ROWS = [{"text": f"the {word} film number {n}", "label": word} for n, word in enumerate(("good", "bad") * 6)]
SENTENCE = "-DOCSTART- -X- O O\n\n" + "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\n. . O O\n\n" * 3
ANSWERS = {"text": "good film", "answer_start": 6}
ARTICLE = {"title": "A", "paragraphs": [{"context": "See a good film.", "qas": []}]}
ARTICLE["paragraphs"][0]["qas"] = [{"id": f"q{n}", "question": "What?", "answers": [ANSWERS]} for n in range(3)]  # type: ignore[index]


def as_csv(delimiter: str) -> bytes:
    """Return the rows as a table."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, ["text", "label"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return stream.getvalue().encode()


SEEDS: dict[str, tuple[str, bytes]] = {
    "rows.csv": ("classify", as_csv(",")),
    "rows.tsv": ("classify", as_csv("\t")),
    "rows.jsonl": ("classify", "".join(json.dumps(row) + "\n" for row in ROWS).encode()),
    "rows.json": ("classify", json.dumps(ROWS).encode()),
    "words.conll": ("tag", SENTENCE.encode()),
    "squad.json": ("squad", json.dumps({"version": "1.1", "data": [ARTICLE]}).encode()),
}
"""A file of rows -> the recipe that reads it, and its content."""

CLASSIFY = {"inputs": [["the good film"], ["a bad song"]]}
REQUESTS: dict[str, Any] = {
    "/predict": CLASSIFY,
    "/v1/models/run:predict": {"instances": [{"text": "the good film"}, {"text": "a song"}]},
    "/embed": {"inputs": ["the good film", "a dull book"], "normalize": True},
    "/v1/embeddings": {"input": ["the good film"], "model": "vectors", "encoding_format": "float"},
}
ANSWERED = {200, 400, 404, 405, 408, 413, 415, 422, 429}


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with one to four edits: a bit, a scrap, or a range that is gone, doubled or elsewhere."""
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
    """Return JSON of which one value, somewhere, is another, missing, doubled, or under another key."""
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.2:
        return rng.choice(VALUES)
    if isinstance(value, list):
        at = rng.randrange(len(value))
        return rng.choice((value[:at] + value[at + 1 :], value * 2, [*value[:at], mutate_value(value[at], rng)]))
    key = rng.choice(list(value))
    rest = {name: entry for name, entry in value.items() if name != key}
    changed = {**rest, key: mutate_value(value[key], rng)}
    return rng.choice(
        (changed, changed, changed, rest, {**rest, rng.choice(("", "Text", "\0", "x" * 300)): value[key]})
    )


def find_fault(read: Callable[[], Any]) -> tuple[str, str | None]:
    """Call a function; return whether it read or refused, and what is wrong: an error that is no line of bertkit's."""
    try:
        read()
    except BertkitError as error:
        line = str(error)
        is_line = error.exit_code in REFUSED and "\n" not in line and len(line) < 4000
        return "refused", None if is_line else f"{type(error).__name__}: {line[:300]!r}"
    except Exception as error:
        return "crashed", f"{type(error).__name__}: {str(error)[:300]}"
    return "read", None


def read_rows(file: Path, name: str) -> None:
    """Read a file of rows as a recipe does, and compare the texts with those of Python's own readers.

    Raises:
        ValueError: the rows are others.
    """
    recipe = load_recipe(name, {"data.source": str(file), "model": "demo"})
    task = load_task(recipe)
    splits = read_splits(recipe, task.COLUMNS, lambda row: task.read(row, recipe), lambda _: True)
    texts = sorted(row["text"] for split in splits.values() for row in split.rows) if name == "classify" else None
    expected = texts_of(file)
    if texts is not None and expected is not None and texts != sorted(expected):
        raise ValueError(f"other rows: {[text for text in texts if text not in expected][:3]} {len(texts)}")


def texts_of(file: Path) -> list[str] | None:
    """Return the texts that Python's own reader finds; None where it finds no plain rows or the format has none."""
    data = file.read_bytes()
    with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError, csv.Error, RecursionError):
        if file.suffix == ".jsonl":
            return [json.loads(line)["text"] for line in data.decode("utf-8-sig").split("\n") if line.strip()]
        if file.suffix == ".json":
            return [row["text"] for row in json.loads(data.decode("utf-8-sig"))]
        if file.suffix == ".csv":
            return [
                row["text"] for row in csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
            ]
    return None


def fuzz_rows(folder: Path, count: int, rng: random.Random, tally: Tally) -> None:
    """Damage files of rows, and read them."""
    for number in range(count):
        name = rng.choice(list(SEEDS))
        recipe, data = SEEDS[name]
        if name.endswith((".json", ".jsonl")) and number % 2:
            lines = data.split(b"\n") if name.endswith("l") else [data]
            at = rng.randrange(len(lines) - 1 or 1)
            lines[at] = json.dumps(mutate_value(json.loads(lines[at]), rng)).encode()
            data = b"\n".join(lines)
        else:
            data = mutate(data, rng)
        file = folder / name
        file.write_bytes(data)
        outcome, wrong = find_fault(lambda file=file, recipe=recipe: read_rows(file, recipe))  # type: ignore[misc]
        tally.add(f"rows: {name}", repr(data[:2000]), outcome, wrong)


def fuzz_recipes(folder: Path, count: int, rng: random.Random, tally: Tally) -> None:
    """Damage shipped recipes, and load them."""
    root = Path(__file__).parent.parent / "recipes" / "finetune"
    seeds = [path.read_bytes() for path in sorted(root.glob("*.yaml"))]
    file = folder / "recipe.yaml"
    for _ in range(count):
        data = mutate(rng.choice(seeds), rng)
        file.write_bytes(data)
        outcome, wrong = find_fault(lambda: load_task(load_recipe(str(file), {"model": "demo"})))
        tally.add("recipes", repr(data[:2000]), outcome, wrong)


def find_bad_reply(reply: Reply | None) -> tuple[str, str | None]:
    """Return the status of an answer and what is wrong with it: another status, or a body that is no JSON."""
    if reply is None:
        return "gone", None
    try:
        json.loads(reply.body)
    except ValueError:
        return str(reply.status), f"status {reply.status} with {reply.body[:200]!r}"
    wrong = None if reply.status in ANSWERED else f"status {reply.status}: {reply.body[:300]!r}"
    return str(reply.status), wrong


def is_close(first: Any, second: Any) -> bool:
    """Tell whether two answers are alike but for the rounding of sums, which depends on the batch."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(is_close(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(is_close, first, second))
    return abs(first - second) < 1e-4 if isinstance(first, float) and isinstance(second, float) else first == second


async def ask_badly(client: Client, path: str, rng: random.Random) -> tuple[bytes, Reply | None]:
    """Send a damaged request; return its body and the answer, None where the client has left before."""
    content = REQUESTS[path]
    body = json.dumps(mutate_value(content, rng)).encode()
    if rng.random() < 0.5:
        body = mutate(json.dumps(content).encode(), rng)
    headers = {"content_type": "application/json"}
    if rng.random() < 0.2:
        odd = (
            "text/plain",
            "application/json; charset=utf-16",
            "",
            "\x7f",
            "a" * 9000,
            "multipart/form-data",
            "-1",
            "1e9",
        )
        headers[rng.choice(("content_type", "content_length", "x_request_id", "authorization", "accept"))] = rng.choice(
            odd
        )
    at, leaves = rng.randrange(len(body) + 1), rng.random() < 0.1
    chunks = [body[:at], body[at:], *([None] if leaves else [])]
    try:
        return body, await client.ask(rng.choice(("POST",) * 9 + ("PUT",)), path, chunks, headers, leaves)
    except (IndexError, ValueError):  # nothing was sent, as to a client that is gone
        if leaves:
            return body, None
        raise


def fuzz_requests(service: Any, count: int, rng: random.Random, tally: Tally) -> None:
    """Send damaged requests among good ones, eight of each at a time, and compare the answers of the good ones."""
    from bertkit.server.app import app_of

    client = Client(app_of(service))
    texts = [f"the {word} film {n}" for n, word in enumerate(("good", "bad", "dull", "great"))]
    good = [
        (path, {"inputs": [[text]] if path == "/predict" else [text]})
        for text in texts
        for path in ("/predict", "/embed")
    ]
    known = [client.post(path, content).json for path, content in good]

    async def ask_all(paths: list[str]) -> list[Any]:
        bad = [ask_badly(client, path, rng) for path in paths]
        return await asyncio.gather(*bad, *(client.ask_json(path, content) for path, content in good))

    for _ in range(0, count, len(good)):
        paths = rng.choices(list(REQUESTS), k=len(good))
        replies = asyncio.run(ask_all(paths))
        for path, (body, reply) in zip(paths, replies, strict=False):
            tally.add(f"requests: {path}", repr(body[:2000]), *find_bad_reply(reply))
        for (path, content), reply, answer in zip(good, replies[len(good) :], known, strict=True):
            if reply.status != 200 or not is_close(reply.json, answer):
                tally.add("good requests", f"{path} {content}", "other answer", f"{reply.status} {reply.body[:300]!r}")


def fuzz_socket(port: int, count: int, rng: random.Random, tally: Tally) -> None:
    """Send damaged bytes over a socket, and ask something sane after each."""
    body = json.dumps(CLASSIFY)
    head = "POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    whole = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    chunks = "".join(f"{len(body[at : at + 9]):x}\r\n{body[at : at + 9]}\r\n" for at in range(0, len(body), 9))
    chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n".encode()
    expected = send(port, whole).partition(b"\r\n\r\n")[2]
    for number in range(count):
        data = mutate(whole if number % 2 else chunked, rng)
        reply = send(port, data)
        status = reply[9:12].decode("latin-1") or "closed"
        wrong = None if status == "closed" or (status.isdigit() and int(status) < 500) else f"answer {reply[:300]!r}"
        if send(port, whole).partition(b"\r\n\r\n")[2] != expected:
            wrong = "a sane request got another answer afterwards"
        tally.add("socket", repr(data[:2000]), status, wrong)


def send(port: int, data: bytes) -> bytes:
    """Send bytes, say that there are no more, and return what comes back; nothing where the server closed."""
    reply = b""
    with socket.create_connection(("127.0.0.1", port), 20) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
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
    ("finetune tag --data {file} --model demo --dry-run", ("words.conll",)),
    ("finetune squad --data {file} --model demo --dry-run", ("squad.json",)),
    ("recipes check {file}", ("recipe.yaml",)),
)


def fuzz_commands(yard: Yard, count: int, rng: random.Random, tally: Tally) -> None:
    """Give damaged files to whole commands."""
    recipe = (Path(__file__).parent.parent / "recipes" / "finetune" / "classify.yaml").read_bytes()
    for _ in range(count):
        command, names = rng.choice(COMMANDS)
        name = rng.choice(names)
        data = mutate(SEEDS[name][1] if name in SEEDS else recipe, rng)
        yard.begin("predict run")
        file = yard.trial / f"fuzzed-{name}"
        file.write_bytes(data)
        code, _, err = yard.run(command.format(file=file.name))
        wrong = find_crash(code, err)
        if file.read_bytes() != data:
            wrong = wrong or "the file was changed"
        tally.add(f"command: {command}", repr(data[:2000]), "refused" if code else "read", wrong)


def fuzz(yard: Yard, count: int, deadline: float, rng: random.Random, tally: Tally) -> None:
    """Feed all of it: of 400, 160 files of rows, 80 recipes, 148 requests, 11 over a socket, one to a whole command."""
    from bertkit.server.batching import Limits
    from bertkit.server.runs import find_models
    from bertkit.server.service import load_service
    from bertkit.storage.hub import find_model

    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vectors = make_sentence_folder(find_model("demo"), folder / "vectors")
        service = load_service(find_models([str(yard.store / "run"), str(vectors)]), Limits(request_rows=64))
        service.computer.start()
        with served(service, read_seconds=0.3) as (port, _):
            while tally.count < count and time.monotonic() < deadline:
                fuzz_rows(folder, 160, rng, tally)
                fuzz_recipes(folder, 80, rng, tally)
                fuzz_requests(service, 148, rng, tally)
                fuzz_socket(port, 11, rng, tally)
                fuzz_commands(yard, 1, rng, tally)
        service.computer.stop()
