"""The socket of a server, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bertkit.errors import ResourceError, UsageError
from bertkit.server.app import build_app
from bertkit.server.run import DrainingServer, bind


@pytest.mark.enable_socket
def test_an_address_that_cannot_be_used_is_named_before_models_are_loaded():
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(ResourceError, match="cannot be used: address already in use"):
            bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UsageError, match="no such host"):
        bind("nowhere.invalid", 0)


@pytest.mark.enable_socket
def test_small_answers_are_sent_at_once():
    async def accept() -> int:
        accepted = asyncio.get_running_loop().create_future()
        with bind("127.0.0.1", 0) as listener:
            server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), sock=listener)
            _, client = await asyncio.open_connection(*listener.getsockname())
            writer = await accepted
            at_once = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for each in (client, writer, server):
                each.close()
        return int(at_once)

    assert asyncio.run(accept())


@contextlib.contextmanager
def served(service, **limits):
    """Serve in a thread, and yield the port and the server."""
    limits = {"drain_seconds": 0.0, **limits}
    hub_errors = replace(service, limits=replace(service.limits, **limits))
    hub_errors.worker = SimpleNamespace(
        is_alive=lambda: True, start=lambda: None, stop=lambda: None, submit=service.worker.submit
    )
    started = threading.Event()
    with bind("127.0.0.1", 0) as listener:
        server = DrainingServer(build_app(hub_errors), started.set)
        thread = threading.Thread(target=lambda: asyncio.run(server._serve([listener])))
        thread.start()
        assert started.wait(60)
        yield listener.getsockname()[1], server
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def ask(connection, path):
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    return connection.recv(65536).decode()


@pytest.mark.enable_socket
def test_more_connections_than_the_limit_get_503(service):
    with served(service, connections=2) as (port, _), contextlib.ExitStack() as opened:
        first, second, third = (
            opened.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(3)
        )
        assert ask(third, "/ready").startswith("HTTP/1.1 503")
        third.close()
        until = time.monotonic() + 30
        while not ask(second, "/ready").startswith("HTTP/1.1 200"):
            assert time.monotonic() < until
            second = opened.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        first.close()


@pytest.mark.enable_socket
def test_the_server_is_not_ready_for_a_while_before_it_stops(service):
    with served(service, drain_seconds=2.0) as (port, server):
        server.handle_exit(signal.SIGTERM, None)
        with socket.create_connection(("127.0.0.1", port), 30) as probe:
            answer = ask(probe, "/ready")
        assert answer.startswith("HTTP/1.1 503") and "connection: close" in answer


@pytest.mark.enable_socket
def test_a_request_that_never_arrives_does_not_keep_the_server_from_stopping(service):
    with served(service, answer_seconds=1.0) as (port, server):
        slow = socket.create_connection(("127.0.0.1", port), 30)
        slow.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n{")
        while not server.server_state.tasks:
            time.sleep(0.02)
        server.handle_exit(signal.SIGTERM, None)
    slow.close()


PROGRAM = """
import signal
from types import SimpleNamespace
from bertkit.server.run import DrainingServer

server = DrainingServer.__new__(DrainingServer)
server.service = SimpleNamespace(is_draining=False, limits=SimpleNamespace(drain_seconds=60))
signal.signal(signal.SIGTERM, server.handle_exit)
signal.raise_signal(signal.SIGTERM)
assert server.service.is_draining
signal.raise_signal(signal.SIGTERM)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
def test_a_second_signal_ends_the_process_at_once():
    assert subprocess.run([sys.executable, "-c", PROGRAM], check=False).returncode == -signal.SIGTERM
