"""The socket of a server."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bertkit.errors import ResourceError, StoppedError, UsageError
from bertkit.server.app import app_of
from bertkit.server.batching import Ticket
from bertkit.server.running import bind, make_server, run_server


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
    """Serve in a thread, and yield the port and what stops it."""
    answering = replace(service, limits=replace(service.limits, drain_seconds=0.0, **limits))
    answering.computer = SimpleNamespace(
        is_alive=True, start=lambda: None, stop=lambda: None, submit=service.computer.submit
    )
    started = threading.Event()
    with bind("127.0.0.1", 0) as listener:
        running = make_server(app_of(answering), started.set)
        thread = threading.Thread(target=lambda: asyncio.run(running._serve([listener])))
        thread.start()
        assert started.wait(60)
        yield listener.getsockname()[1], running
        running.should_exit = True
        thread.join(60)


def ask(connection, path, *, method="GET"):
    connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    return connection.recv(65536).decode()


@pytest.mark.enable_socket
def test_a_second_request_that_trickles_in_is_given_up(service):
    with served(service, read_seconds=0.3) as (port, _), socket.create_connection(("127.0.0.1", port), 30) as slow:
        assert ask(slow, "/health").startswith("HTTP/1.1 200")
        with contextlib.suppress(OSError):  # the server has closed the connection
            for _ in range(100):
                slow.sendall(b"G")
                threading.Event().wait(0.05)
            pytest.fail("the connection is still open")


@pytest.mark.enable_socket
def test_probes_have_a_place_whatever_is_open(service):
    with served(service, connections=4) as (port, _), contextlib.ExitStack() as opened:
        silent = [opened.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(12)]
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port), 30) as probe:
                assert ask(probe, "/health").startswith("HTTP/1.1 200")
        assert silent[0].recv(1) == b""  # the one that has waited longest
        assert ask(silent[-1], "/ready").startswith("HTTP/1.1 200")


@pytest.mark.enable_socket
def test_a_second_signal_gives_up_requests_without_an_answer_and_says_so(service, monkeypatch):
    def never(lane, values, render):
        asked.set()
        return Ticket(asyncio.get_running_loop().create_future(), [None], render, 0.0, 1, 0.0)

    asked = threading.Event()
    monkeypatch.setattr(service.computer, "submit", never)
    body = b'{"inputs": "good"}'
    with served(service) as (port, running), socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
        client.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        assert asked.wait(30)
        running.handle_exit(signal.SIGTERM, None)
        running.handle_exit(signal.SIGTERM, None)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100) == b""
    assert running.given_up == 1
    ended = SimpleNamespace(given_up=running.given_up, signal=running.signal, run=lambda sockets: None)
    monkeypatch.setattr("bertkit.server.running.make_server", lambda *_: ended)
    with pytest.raises(StoppedError, match="stopped by a second SIGTERM; 1 request was given up") as stopped:
        run_server(None, None)
    assert stopped.value.exit_code == 143
