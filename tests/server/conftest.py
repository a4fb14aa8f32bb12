"""A service of two tiny models in this process, and a client that speaks ASGI to its app."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Asks an ASGI app; a body may come in chunks, of which None never comes, and the client may leave."""

    def __init__(self, app) -> None:
        self.app = app

    def get(self, path, **headers) -> Reply:
        return asyncio.run(self.ask("GET", path, [b""], headers))

    def post(self, path, content, **headers) -> Reply:
        return asyncio.run(self.ask_json(path, content, **headers))

    async def ask_json(self, path, content, **headers) -> Reply:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return await self.ask("POST", path, [body], {"content_type": "application/json", **headers})

    async def ask(self, method: str, path: str, chunks: Sequence[bytes | None], headers, leaves: bool = False) -> Reply:
        waiting, sent = list(chunks), []

        async def receive():
            if waiting and waiting[0] is not None:
                body = waiting.pop(0)
                return {"type": "http.request", "body": body, "more_body": bool(waiting)}
            if not leaves:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        encoded = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": encoded}
        scope |= {"query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1", "client": ("c", 1)}
        await self.app({**scope, "server": ("s", 80)}, receive, send)
        start, *rest = sent
        sent_headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return Reply(start["status"], sent_headers, b"".join(message.get("body", b"") for message in rest))


def make_sentence_folder(model: Path, folder: Path) -> Path:
    """Make of a model a folder of sentence-transformers, with the mean pooled and a prompt."""
    shutil.copytree(model, folder)
    types = ("sentence_transformers.models.Transformer", ""), ("sentence_transformers.models.Pooling", "1_Pooling")
    entries = [{"idx": n, "name": str(n), "path": path, "type": name} for n, (name, path) in enumerate(types)]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir()
    dimension = json.loads((folder / "config.json").read_text())["hidden_size"]
    pooling = {"word_embedding_dimension": dimension, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    settings = {"prompts": {"query": "the "}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def sentence_folder(tiny_model, tmp_path_factory):
    """The tiny model as a folder of sentence-transformers."""
    return make_sentence_folder(tiny_model, tmp_path_factory.mktemp("sentences") / "vectors")


@pytest.fixture(scope="session")
def service(trained, sentence_folder):
    """A service of a classifier called `run` and an encoder called `vectors`, which computes."""
    from bertkit.server.batching import Limits
    from bertkit.server.models import find_models, load_service

    service = load_service(find_models([str(trained), str(sentence_folder)]), Limits(request_rows=64))
    service.worker.start()
    yield service
    service.worker.stop()


@pytest.fixture(scope="session")
def client(service):
    from bertkit.server.app import build_app

    return Client(build_app(service))


@pytest.fixture
def changed_client(service):
    """Build a client of the same models with other limits, or another field of the service."""
    from dataclasses import replace

    from bertkit.server.app import build_app

    def build(cors_origins=(), limits=None, root_path="", **fields) -> Client:
        fields["limits"] = replace(service.limits, **(limits or {}))
        return Client(build_app(replace(service, **fields), cors_origins, root_path))

    return build
