"""`bertkit serve`."""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal

from bertkit.cli.options import argument, option
from bertkit.cli.terminal import is_json_wanted
from bertkit.errors import UsageError
from bertkit.progress import use_progress

ORDER = 56
EXAMPLE = "bertkit serve runs/sst2 runs/ner --port 8000"

OriginOption = Annotated[list[str] | None, option("Website whose pages may call the server (CORS); repeatable.", "URL")]
DrainOption = Annotated[float, option("Time after SIGTERM in which new requests are still accepted.", "SECONDS", min=0)]
LogOption = Annotated[Literal["text", "json"], option("Format of the log on stderr; json has a line per request.")]


def command(
    runs: Annotated[
        list[str],
        argument("Runs, folders of seeds or sentence-transformers folders; NAME=RUN names a model.", "RUN"),
    ],
    recipe: Annotated[
        str | None, option("Recipe for models that bertkit did not train; it defines how rows are read.", "RECIPE")
    ] = None,
    host: Annotated[str, option("Address to listen on; 0.0.0.0 for all networks.", "HOST")] = "127.0.0.1",
    port: Annotated[int, option("Port; 0 for a free one.", "PORT", min=0, max=65535)] = 8000,
    api_key_file: Annotated[
        str | None,
        option("File with the API key that requests must send.", "FILE", "environment variable BERTKIT_API_KEY"),
    ] = None,
    cors_origin: OriginOption = None,
    root_path: Annotated[str, option("URL path under which a proxy publishes the server, such as /bert.", "PATH")] = "",
    queue: Annotated[int, option("Maximum rows that wait for a model; further ones get 429.", "ROWS", min=1)] = 1024,
    request_rows: Annotated[int, option("Maximum rows per request; larger ones get 413.", "ROWS", min=1)] = 256,
    body_bytes: Annotated[int, option("Maximum bytes per request; larger ones get 413.", "BYTES", min=1024)] = 1 << 20,
    timeout: Annotated[float, option("Maximum time per request; slower ones get 504.", "SECONDS", min=0.1)] = 30.0,
    batch_tokens: Annotated[
        int | None, option("Maximum tokens per batch.", "N", "1024 on a CPU, 4096 on a GPU", min=1)
    ] = None,
    connections: Annotated[int, option("Maximum number of open connections; further ones get 503.", "N", min=1)] = 1024,
    drain: DrainOption = 1.0,
    log: LogOption = "text",
) -> None:
    """Serve trained models over HTTP.

    The server has its own API, the routes of text-embeddings-inference, the embeddings route of OpenAI, and a page to
    try each model.
    """
    from bertkit.workflows.serve import LoggedProgress, check_packages, log_json_lines, serve

    if log == "json":  # before anything is logged
        log_json_lines()
    if is_json_wanted():
        raise UsageError("serve has no JSON output", "leave --json out; --log json writes the log as JSON")
    check_packages()
    from bertkit.server.batching import Limits

    # The limits keep one client from filling the memory, or the queue that all clients share.
    limits = Limits(
        queue_rows=queue,
        request_rows=request_rows,
        body_bytes=body_bytes,
        answer_seconds=timeout,
        batch_tokens=batch_tokens,
        connections=connections,
        drain_seconds=drain,
    )
    api_key = _read_key(api_key_file)
    root_path = _check_root(root_path)
    with use_progress(LoggedProgress() if log == "json" else None):
        serve(runs, limits, host, port, recipe, api_key=api_key, cors_origins=cors_origin or (), root_path=root_path)


def _check_root(path: str) -> str:
    """Return a URL path without the slash at its end.

    Raises:
        UsageError: If the text is not a URL path.
    """
    if path.strip("/") and not re.fullmatch(r"(/[\w.~-]+)+/?", path, re.ASCII):
        raise UsageError(f"--root-path {path!r} is not a URL path", "write e.g. --root-path /bert")
    return path.rstrip("/")


def _read_key(file: str | None) -> str | None:
    """Return the API key from a file or the environment, or None; other users could see the value of an option."""
    from bertkit.recipe.sections import expand_path

    if file is None:
        return os.environ.get("BERTKIT_API_KEY") or None
    try:
        key = expand_path(file).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise UsageError("no such --api-key-file", "write a key into it, or name another file", file=file) from None
    if not key:
        raise UsageError("the file of the API key is empty", "write a key into it", file=file)
    return key
